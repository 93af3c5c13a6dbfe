"""Suites: TOML files that say which cells a bench has.

=================  ================================================================================
``[suite]``        ``title``; ``minutes`` and ``memory``, the budgets of every cell
``[runs.NAME]``    a run ``file`` under another name, with settings of its own: ``set.section.key``
``[data.NAME]``    made-up rows: the fields of `daskxml.data.synthetic.SyntheticSpec`
``[[matrix]]``     runs x data x workers x seeds x executors: see `Matrix`
``[[script]]``     a benchmark script: see `Script`
=================  ================================================================================

A name under ``run`` that no ``[runs.NAME]`` has is a run file beside the suite or one that comes
with daskxml; a name under ``data`` that no ``[data.NAME]`` has is a dataset card.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from daskxml.bench.parts import Heading, Matrix, NamedRun, Script, VirtualWorkers
from daskxml.config.decode import decode, suggestion
from daskxml.config.source import read_toml
from daskxml.data.synthetic import SyntheticSpec
from daskxml.errors import ConfigError

_TABLES = ("suite", "runs", "data", "matrix", "script")

Part = TypeVar("Part")


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A suite as its file says it.

    Attributes
    ----------
    name, title
        The file's stem, and what the suite is for.
    path
        The file; run files may lie beside it.
    runs, made_up
        ``[runs.NAME]`` and ``[data.NAME]``.
    """

    name: str
    title: str
    path: Path
    runs: Mapping[str, NamedRun]
    made_up: Mapping[str, SyntheticSpec]
    matrices: tuple[Matrix, ...]
    scripts: tuple[Script, ...]

    @property
    def data(self) -> list[str]:
        """The data sets of all matrices, each once."""
        return list(dict.fromkeys(name for matrix in self.matrices for name in matrix.data))


def packaged_suites() -> dict[str, Path]:
    """Return the suites that come with daskxml, by name.

    Examples
    --------
    >>> "smoke" in packaged_suites()
    True
    """
    package = Path(__file__).parents[1]
    # In the wheel they lie inside the package, in a source tree beside it.
    for folder in (package / "suites", package.parent / "benchmarks" / "suites"):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.toml"))}
    return {}


def load_suite(given: str | Path) -> Suite:
    """Read a suite: a TOML file, or the name of one that comes with daskxml.

    Raises
    ------
    ConfigError
        If there is no such suite, or for a wrong key or value, with its place.

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
    """The tables of one file, on their way to a `Suite`."""

    def __init__(self, path: Path) -> None:
        self.path, self.tables = path, read_toml(path)
        for name in self.tables:
            if name not in _TABLES:
                raise ConfigError(
                    f"{path}: [{name}] is no part of a suite{suggestion(name, _TABLES)}"
                )
        self.heading = self._part("[suite]", Heading, self._table("suite"))

    def read(self) -> Suite:
        """Build every part."""
        matrices = tuple(self._matrix(*found) for found in self._listed("matrix"))
        scripts = tuple(self._part(place, Script, table) for place, table in self._listed("script"))
        if not matrices and not scripts:
            raise ConfigError(f"{self.path}: nothing to measure: give a [[matrix]] or a [[script]]")
        made_up = self._table("data")
        return Suite(
            name=self.path.stem,
            title=self.heading.title,
            path=self.path,
            runs={name: self._run(name, table) for name, table in self._table("runs").items()},
            made_up={
                name: self._part(f"[data.{name}]", SyntheticSpec, table)
                for name, table in made_up.items()
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
        """Yield the place and the values of every ``[[name]]``, with the suite's budgets."""
        tables = self.tables.get(name, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise ConfigError(f"{self.path}: {name} must be tables, each headed [[{name}]]")
        budgets = {"minutes": self.heading.minutes, "memory": self.heading.memory}
        for number, table in enumerate(tables, 1):
            yield f"[[{name}]] {number}", budgets | table

    def _matrix(self, place: str, table: dict[str, Any]) -> Matrix:
        virtual = self._part(f"{place} simulate", VirtualWorkers, table.pop("simulate", {}))
        overrides, each = self._flat(place, table.pop("set", {})), table.pop("each", {})
        matrix = self._part(place, Matrix, table)
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
