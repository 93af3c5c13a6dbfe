"""What a suite's file may say: runs, matrices of them, and scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from daskxml.config.decode import suggestion
from daskxml.config.fields import bounded, check_ranges, size
from daskxml.errors import ConfigError

EXECUTORS = ("cluster", "simulate")
_SAME_NAME = ("jitter", "bandwidth", "latency", "message")  # as the options of the command


@dataclass(frozen=True, kw_only=True)
class Heading:
    """``[suite]``: what it is for, and the budgets of a cell that has none of its own."""

    title: str = ""
    minutes: float = bounded(30.0, above=0)
    memory: int = size("4GiB")

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class NamedRun:
    """``[runs.NAME]``: a run file, and ``section.key`` to the values that it gets here."""

    file: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class VirtualWorkers:
    """``simulate`` of a matrix: workers and costs, as the options of ``daskxml simulate``.

    Attributes
    ----------
    speeds, names
        Of every worker; with ``workers = n`` the first n speeds, beginning again where they end.
    pools
        Which of them are pools, and of how many threads: ``["cpu=56"]``.
    cost
        Fixed seconds of a batch, seconds a row, seconds a stored feature; empty: as on a V100.
    pool_cost
        The same of a pool's batch; empty: as of anybody's.
    jitter, bandwidth, latency, message
        As the options of the same names; empty: their defaults.
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
class Matrix:
    """``[[matrix]]``: a cell for every combination of run, data, workers, seed and executor.

    Attributes
    ----------
    run, data
        Names of run files and of data sets.
    workers
        Counts of workers; 0 takes those of the run file, or all of ``simulate.speeds``.
    seeds
        Of every random choice; the table has the median over them and their range.
    executors
        ``cluster`` (``daskxml train`` on local workers) and ``simulate``.
    minutes, memory
        What a cell may take, by the clock and in all of its processes; beyond them it is ended.
    target_metric, target
        Where it is not 0, the table has the seconds of training until the metric was as good.
    overrides, each
        ``set.section.key`` of the file, what all these runs get, and ``each.RUN.section.key``,
        what one of them does; both by ``section.key``.
    virtual
        ``simulate`` of the file.
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
class Script:
    """``[[script]]``: a Python script that writes a JSON file with ``rows`` of figures.

    It finds the folder to write to in the variable ``DASKXML_RESULTS``.

    Attributes
    ----------
    name, file, arguments
        What the table calls it, its file beside the suite or in ``benchmarks/``, its arguments.
    result
        The name of the JSON file, without the suffix.
    rows
        Columns that together name a row.
    smaller, larger, told
        Columns that are kept as figures: smaller ones are better, larger ones, or neither.
    repeats
        How often it is run: what seeds are to a matrix.
    minutes, memory
        As of `Matrix`.
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
        """All columns that are kept."""
        return (*self.smaller, *self.larger, *self.told)
