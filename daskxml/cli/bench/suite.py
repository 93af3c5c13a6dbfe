"""Suites: TOML files that define the cells of a bench.

=================  ================================================================================
``[suite]``        ``title``; ``minutes`` and ``memory``, the default budget of a cell
``[runs.NAME]``    a run ``file`` under another name, with settings of its own: ``set.section.key``
``[data.NAME]``    generated rows: the fields of `daskxml.data.synthetic.SyntheticSpec`
``[[matrix]]``     runs x data x workers x seeds x executors: see `RunMatrix`
``[[script]]``     a benchmark script: see `BenchmarkScript`
=================  ================================================================================

A name under ``run`` without a ``[runs.NAME]`` is a run file beside the suite or a packaged one; a
name under ``data`` without a ``[data.NAME]`` is a dataset card.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from daskxml.config.toml import decode, read_toml, suggestion
from daskxml.core.errors import ConfigError
from daskxml.core.fields import bounded, check_ranges, size
from daskxml.data.synthetic import SyntheticSpec

EXECUTORS = ("cluster", "simulate")
_TABLES = ("suite", "runs", "data", "matrix", "script")
_SAME_NAME = ("jitter", "bandwidth", "latency", "message")  # as the options of the command

Part = TypeVar("Part")


@dataclass(frozen=True, kw_only=True)
class SuiteSection:
    """``[suite]``: its purpose, and the budget of cells that have none of their own."""

    title: str = ""
    minutes: float = bounded(30.0, above=0)
    memory: int = size("4GiB")

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class NamedRun:
    """``[runs.NAME]``: a run file, and its overrides by ``section.key``."""

    file: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class VirtualWorkers:
    """``simulate`` of a matrix: workers and costs, as the options of ``daskxml simulate``.

    Attributes
    ----------
    speeds, names
        Of the workers; ``workers = n`` takes the first n speeds, cyclically.
    pools
        Workers that are thread pools, with their threads: ``["cpu=56"]``.
    cost, pool_cost
        Fixed seconds of a batch, seconds per row, seconds per stored feature; empty: as on a V100,
        and as `cost`.
    jitter, bandwidth, latency, message
        The options of the same names; empty: their defaults.
    """

    speeds: tuple[float, ...] = bounded((1.0, 0.92, 0.84, 0.76), above=0)
    names: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    cost: tuple[float, ...] = bounded((), low=0)
    pool_cost: tuple[float, ...] = bounded((), low=0)
    jitter: float | None = None
    bandwidth: str = ""
    latency: float | None = None
    message: float | None = None

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.speeds:
            raise ConfigError("speeds = []: must have one for each worker")
        if self.names and len(self.names) != len(self.speeds):
            raise ConfigError(f"names = {list(self.names)}: must be as many as speeds")
        for name in ("cost", "pool_cost"):
            if len(getattr(self, name)) not in (0, 3):
                given = list(getattr(self, name))
                raise ConfigError(f"{name} = {given}: must be three numbers: fixed, row, non-zero")

    def options(self, workers: int) -> tuple[str, ...]:
        """Return the options of ``daskxml simulate``.

        Examples
        --------
        >>> VirtualWorkers(speeds=(1.0, 0.5), jitter=0.0).options(workers=3)
        ('--speeds', '1.0,0.5,1.0', '--jitter', '0.0')
        """
        count = workers or len(self.speeds)
        speeds = [str(self.speeds[i % len(self.speeds)]) for i in range(count)]
        if self.names and count == len(self.names):
            speeds = [f"{name}={speed}" for name, speed in zip(self.names, speeds, strict=True)]
        given = [("--speeds", ",".join(speeds)), *(("--pool", pool) for pool in self.pools)]
        costs = {"--cost": self.cost, "--pool-cost": self.pool_cost}
        given += [(name, ",".join(map(str, cost))) for name, cost in costs.items() if cost]
        others = {name: getattr(self, name) for name in _SAME_NAME}
        given += [(f"--{name}", str(v)) for name, v in others.items() if v not in (None, "")]
        return tuple(word for pair in given for word in pair)


@dataclass(frozen=True, kw_only=True)
class RunMatrix:
    """``[[matrix]]``: a cell for every combination of run, data, workers, seed and executor.

    Attributes
    ----------
    run, data
        Names of run files and of data sets.
    workers
        Worker counts; 0: as in the run file, or all of ``simulate.speeds``.
    seeds
        Repeats; the table has the median over them and their range.
    executors
        ``cluster`` (``daskxml train`` on local workers) and ``simulate``.
    minutes, memory
        Budget of a cell: wall-clock time, and memory of all its processes. Beyond it, it is killed.
    target_metric, target
        If the target is not 0, the table has the training time until the metric reached it.
    overrides, each
        The file's ``set.section.key``, for all of these runs, and ``each.RUN.section.key``, for one
        of them; both by ``section.key``.
    virtual
        The file's ``simulate``.
    """

    run: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    workers: tuple[int, ...] = bounded((0,), low=0)
    seeds: tuple[int, ...] = bounded((0,), low=0)
    executors: tuple[str, ...] = ("cluster",)
    minutes: float = bounded(30.0, above=0)
    memory: int = size("4GiB")
    target_metric: str = "P@1"
    target: float = bounded(0.0, low=0, high=1)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    each: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    virtual: VirtualWorkers = field(default_factory=VirtualWorkers)

    def __post_init__(self) -> None:
        check_ranges(self)
        for name in ("run", "data", "workers", "seeds", "executors"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ConfigError(f"{name} = {list(values)}: must name at least one, each once")
        for name in set(self.executors).difference(EXECUTORS):
            raise ConfigError(f"executors: {name!r} is none{suggestion(name, EXECUTORS)}")


@dataclass(frozen=True, kw_only=True)
class BenchmarkScript:
    """``[[script]]``: a Python script that writes a JSON file with ``rows`` of figures.

    The environment variable ``DASKXML_RESULTS`` is the folder to write to.

    Attributes
    ----------
    name, file, arguments
        Its name in the table, its file beside the suite or in ``benchmarks/``, its arguments.
    result
        The name of the JSON file, without the suffix.
    rows
        Columns that together identify a row.
    smaller, larger, told
        Columns that are kept as figures: where smaller is better, where larger is, and others.
    repeats
        Number of calls, the counterpart of a matrix's seeds.
    minutes, memory
        See `RunMatrix`.
    """

    name: str
    file: str
    result: str
    rows: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    smaller: tuple[str, ...] = ()
    larger: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    repeats: int = bounded(3, low=1)
    minutes: float = bounded(30.0, above=0)
    memory: int = size("4GiB")

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.rows or not self.columns:
            raise ConfigError(
                "rows, or smaller and larger, are empty: name the columns that tell rows apart, "
                "and those to keep"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are kept as figures."""
        return (*self.smaller, *self.larger, *self.told)


@dataclass(frozen=True, kw_only=True)
class Suite:
    """The contents of a suite's file.

    Attributes
    ----------
    name, title
        The file's stem, and its purpose.
    path
        The file; run files may lie beside it.
    runs, synthetic
        ``[runs.NAME]`` and ``[data.NAME]``.
    """

    name: str
    title: str
    path: Path
    runs: Mapping[str, NamedRun]
    synthetic: Mapping[str, SyntheticSpec]
    matrices: tuple[RunMatrix, ...]
    scripts: tuple[BenchmarkScript, ...]

    @property
    def data(self) -> list[str]:
        """The names of the data sets of all matrices, without repetitions."""
        return list(dict.fromkeys(name for matrix in self.matrices for name in matrix.data))


def packaged_suites() -> dict[str, Path]:
    """Return the packaged suites by name.

    Examples
    --------
    >>> "smoke" in packaged_suites()
    True
    """
    package = Path(__file__).parents[2]
    # In the wheel they lie inside the package, in a source tree beside it.
    for folder in (package / "suites", package.parent / "benchmarks" / "suites"):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.toml"))}
    return {}


def load_suite(given: str | Path) -> Suite:
    """Read a suite: a TOML file, or the name of a packaged one.

    Raises
    ------
    ConfigError
        If there is no such suite, or a key or value in it is wrong; the message has its place.

    Examples
    --------
    >>> load_suite("smoke").name
    'smoke'
    """
    path, packaged = Path(given), packaged_suites()
    if not path.is_file():
        if str(given) not in packaged:
            raise ConfigError(f"{given}: no such suite{suggestion(path.stem, packaged)}")
        path = packaged[str(given)]
    return _Reader(path).read()


class _Reader:
    """Builds a `Suite` from the tables of a file."""

    def __init__(self, path: Path) -> None:
        self.path, self.tables = path, read_toml(path)
        for name in self.tables:
            if name not in _TABLES:
                raise ConfigError(
                    f"{path}: [{name}] is no part of a suite{suggestion(name, _TABLES)}"
                )
        self.defaults = self._part("[suite]", SuiteSection, self._table("suite"))

    def read(self) -> Suite:
        """Return the suite."""
        matrices = tuple(self._matrix(*found) for found in self._listed("matrix"))
        scripts = tuple(
            self._part(place, BenchmarkScript, table) for place, table in self._listed("script")
        )
        if not matrices and not scripts:
            raise ConfigError(f"{self.path}: nothing to measure: give a [[matrix]] or a [[script]]")
        return Suite(
            name=self.path.stem,
            title=self.defaults.title,
            path=self.path,
            runs={name: self._run(name, table) for name, table in self._table("runs").items()},
            synthetic={
                name: self._part(f"[data.{name}]", SyntheticSpec, table)
                for name, table in self._table("data").items()
            },
            matrices=matrices,
            scripts=scripts,
        )

    def _table(self, name: str) -> dict[str, Any]:
        table = self.tables.get(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{self.path}: {name} must be a table, like [{name}]")
        return table

    def _listed(self, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the place and the values of every ``[[name]]``, with the suite's default budget."""
        tables = self.tables.get(name, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise ConfigError(f"{self.path}: {name} must be tables, each headed [[{name}]]")
        budgets = {"minutes": self.defaults.minutes, "memory": self.defaults.memory}
        for number, table in enumerate(tables, 1):
            yield f"[[{name}]] {number}", budgets | table

    def _matrix(self, place: str, table: dict[str, Any]) -> RunMatrix:
        virtual = self._part(f"{place} simulate", VirtualWorkers, table.pop("simulate", {}))
        overrides, each = self._flat(place, table.pop("set", {})), table.pop("each", {})
        matrix = self._part(place, RunMatrix, table)
        by_run = self._each(f"{place} each", each, matrix.run)
        return dataclasses.replace(matrix, overrides=overrides, each=by_run, virtual=virtual)

    def _each(self, place: str, each: Any, runs: Sequence[str]) -> dict[str, dict[str, Any]]:
        if not isinstance(each, dict):
            raise ConfigError(f"{self.path}: {place}: must be tables by the names of runs")
        for run in each:
            if run not in runs:
                raise ConfigError(f"{self.path}: {place}.{run}: no such run{suggestion(run, runs)}")
        return {run: self._flat(f"{place}.{run}", tables) for run, tables in each.items()}

    def _run(self, name: str, table: Any) -> NamedRun:
        place, values = f"[runs.{name}]", dict(table) if isinstance(table, dict) else table
        overrides = self._flat(place, values.pop("set", {})) if isinstance(table, dict) else {}
        return dataclasses.replace(self._part(place, NamedRun, values), overrides=overrides)

    def _flat(self, place: str, tables: Any) -> dict[str, Any]:
        """Return ``set.section.key = value`` by ``section.key``."""
        if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
            raise ConfigError(f"{self.path}: {place}: settings must be section.key = value")
        return {f"{name}.{key}": value for name, t in tables.items() for key, value in t.items()}

    def _part(self, place: str, kind: type[Part], table: Any) -> Part:
        if not isinstance(table, dict):
            raise ConfigError(f"{self.path}: {place} must be a table")
        try:
            return decode(kind, table, skip=("overrides", "each", "virtual"))
        except (ConfigError, TypeError) as error:  # a TypeError names a field that is missing
            problem = str(error).replace(f"{kind.__name__}.__init__() ", "")
            raise ConfigError(f"{self.path}: {place}: {problem}") from error
