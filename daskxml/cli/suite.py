"""Suites: TOML files that say which run files ``daskxml bench`` trains, and with which data.

================  =================================================================================
``[suite]``       ``title``; ``minutes`` and ``memory``, the limits of each run
``[data.NAME]``   generated rows: the fields of `daskxml.data.synthetic.SyntheticSpec`
``[[matrix]]``    runs x data x workers x seeds x executors: see `Matrix`
================  =================================================================================
"""

from __future__ import annotations

import hashlib
import itertools
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from daskxml.cli.arguments import build_parser
from daskxml.config import load_run_config
from daskxml.config.toml import decode, read_toml, suggestion
from daskxml.core.errors import ConfigError
from daskxml.core.fields import Checked, bounded, size
from daskxml.core.files import packaged
from daskxml.data.settings import load_card, verify_file
from daskxml.data.synthetic import SyntheticSpec, write_xml

FOLDER = "{folder}"  # in a command: the folder of the measurement
_TABLES = ("suite", "data", "matrix")

Part = TypeVar("Part")
Rows = dict[str, Any] | str  # the settings of a run with a data set, or why there are no files


@dataclass(frozen=True, kw_only=True)
class Limits(Checked):
    """``[suite]``: its title; the minutes of each run by the clock, and memory of its processes."""

    title: str = ""
    minutes: float = bounded(30.0, above=0)
    memory: int = size("4GiB")


@dataclass(frozen=True, kw_only=True)
class Matrix(Checked):
    """``[[matrix]]``: a run for every combination of run file, data, workers, seed and executor.

    Attributes
    ----------
    run
        Run files beside the suite or packaged ones, each with settings of its own:
        ``"elastic strategy.lr=3.0"``.
    data
        Names of ``[data.NAME]`` or of dataset cards.
    workers
        Worker counts; 0: as in the run file, or as many as there are speeds.
    seeds
        The table has the median over them and their range.
    executors
        ``cluster`` (``daskxml train`` on local workers) and ``simulate``.
    settings
        For all of these runs: ``["model.hidden=[128]"]``.
    speeds, simulate
        Of simulated workers, repeated for as many as there are; and other options of ``daskxml
        simulate``, as one text.
    target
        If not 0, the table has the training time until the run's ``training.target_metric``
        reached it.
    """

    run: tuple[str, ...]
    data: tuple[str, ...]
    workers: tuple[int, ...] = bounded((0,), low=0)
    seeds: tuple[int, ...] = bounded((0,), low=0)
    executors: tuple[Literal["cluster", "simulate"], ...] = ("cluster",)
    settings: tuple[str, ...] = ()
    speeds: tuple[float, ...] = bounded((1.0, 0.92, 0.84, 0.76), above=0)
    simulate: str = ""
    target: float = bounded(0.0, low=0, high=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("run", "data", "workers", "seeds", "executors"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise self.refusal(name, "must name at least one, each once")

    def options(self, workers: int) -> list[str]:
        """Return options of ``daskxml simulate``.

        Examples
        --------
        >>> both = {"speeds": (1.0, 0.5), "simulate": "--jitter 0"}
        >>> Matrix(run=("slide",), data=("demo",), **both).options(workers=3)
        ['--speeds', '1.0,0.5,1.0', '--jitter', '0']
        """
        given = shlex.split(self.simulate)
        if "--speeds" in given:
            return given
        count = workers or len(self.speeds)
        speeds = [str(self.speeds[number % len(self.speeds)]) for number in range(count)]
        return ["--speeds", ",".join(speeds), *given]


@dataclass(frozen=True, kw_only=True)
class Suite:
    """The contents of a suite's file; its name is the file's stem."""

    path: Path
    limits: Limits
    synthetic: Mapping[str, SyntheticSpec]
    matrices: tuple[Matrix, ...]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run.

    Attributes
    ----------
    names
        Its row of the table: run, data, workers and executor; cells with the same differ by their
        seed.
    command
        Arguments of the command, with `FOLDER` for the cell's folder.
    run_file
        The text of its run file.
    target
        A metric, and the level whose time the table has; 0 is none.
    missing
        Why it cannot be done; empty if it can.
    """

    names: tuple[str, ...]
    seed: int
    command: tuple[str, ...]
    run_file: str
    target: tuple[str, float]
    missing: str

    @property
    def title(self) -> str:
        """One line for a reader."""
        return f"{', '.join(filter(None, self.names))}: seed {self.seed}"


def load_suite(given: str | Path) -> Suite:
    """Read a suite: a TOML file, or the name of a packaged one.

    Raises
    ------
    ConfigError
        If there is no such suite, or a key or value in it is wrong; the message has its place.

    Examples
    --------
    >>> load_suite("smoke").path.stem
    'smoke'
    """
    path, known = Path(given), packaged("suites")
    if not path.is_file():
        if str(given) not in known:
            raise ConfigError(f"{given}: no such suite{suggestion(path.stem, known)}")
        path = known[str(given)]
    tables = read_toml(path)
    for name in tables:
        if name not in _TABLES:
            raise ConfigError(f"{path}: [{name}] is no part of a suite{suggestion(name, _TABLES)}")
    data, matrices = tables.get("data", {}), tables.get("matrix", [])
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: data must be tables, each headed [data.NAME]")
    if not isinstance(matrices, list) or not matrices:
        raise ConfigError(f"{path}: nothing to measure: give tables headed [[matrix]]")
    return Suite(
        path=path,
        limits=_part(path, "[suite]", Limits, tables.get("suite", {})),
        synthetic={
            name: _part(path, f"[data.{name}]", SyntheticSpec, table)
            for name, table in data.items()
        },
        matrices=tuple(
            _part(path, f"[[matrix]] {number}", Matrix, table)
            for number, table in enumerate(matrices, 1)
        ),
    )


def _part(path: Path, place: str, kind: type[Part], table: Any) -> Part:
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {place} must be a table")
    try:
        return decode(kind, table)
    except (ConfigError, TypeError) as error:  # a TypeError names a field that is missing
        problem = str(error).replace(f"{kind.__name__}.__init__() ", "")
        raise ConfigError(f"{path}: {place}: {problem}") from error


def plan(suite: Suite, rows: Mapping[str, Rows]) -> list[Cell]:
    """Return the cells of a suite in their order: seeds take turns, as a machine's speed drifts.

    Parameters
    ----------
    rows
        By the names of data sets (`find_rows`).

    Raises
    ------
    ConfigError
        If a run file or an option is wrong, or two cells are the same.
    """
    cells: dict[str, Cell] = {}
    for cell in (cell for matrix in suite.matrices for cell in _cells(suite, matrix, rows)):
        if cell.title in cells:
            raise ConfigError(f"{suite.path}: {cell.title} is there twice")
        cells[cell.title] = cell
    order = list(dict.fromkeys(cell.seed for cell in cells.values()))
    return sorted(cells.values(), key=lambda cell: order.index(cell.seed))


def _cells(suite: Suite, matrix: Matrix, rows: Mapping[str, Rows]) -> Iterator[Cell]:
    axes = (matrix.run, matrix.data, matrix.workers, matrix.executors, matrix.seeds)
    for run, data, workers, executor, seed in itertools.product(*axes):
        name, *own = shlex.split(run) or [""]
        found = rows[data]
        given: dict[str, Any] = {"run.seed": seed} | ({} if isinstance(found, str) else found)
        if workers and executor == "cluster":
            given["cluster.workers"] = workers
        words = ["train", f"{FOLDER}/run.toml", "--out", f"{FOLDER}/run"]
        if executor == "simulate":
            words = ["simulate", *words[1:], *matrix.options(workers)]
        beside = suite.path.parent / (name if name.endswith(".toml") else f"{name}.toml")
        is_file = beside.is_file() and beside.resolve() != suite.path.resolve()
        try:
            build_parser().parse_args(words)
            config = load_run_config(beside if is_file else name, [*matrix.settings, *own], given)
        except ConfigError as error:
            raise ConfigError(f"{suite.path}: run {run!r}: {error}") from error
        yield Cell(
            names=(run, data, str(workers or ""), executor),
            seed=seed,
            command=tuple(words),
            run_file=config.to_toml(),
            target=(config.training.target_metric, matrix.target),
            missing=found if isinstance(found, str) else "",
        )


def find_rows(suite: Suite, folder: Path | None, generated: Path) -> dict[str, Rows]:
    """Return the data sets of a suite by name; synthetic rows are generated if absent.

    Parameters
    ----------
    folder
        With the files of dataset cards; None if the user named none.
    generated
        The folder for synthetic rows.

    Raises
    ------
    ConfigError
        If a name is neither in the suite nor that of a card.
    InputError
        If a file is not the one that its card describes, or one cannot be written.
    """
    found: dict[str, Rows] = {}
    for name in dict.fromkeys(name for matrix in suite.matrices for name in matrix.data):
        if name in suite.synthetic:
            found[name] = _generate(name, suite.synthetic[name], generated)
        elif (spec := load_card(name).synthetic) is not None:
            found[name] = {**_generate(name, spec, generated), "data.card": name}
        else:
            found[name] = _find(name, folder)
    return found


def _generate(name: str, spec: SyntheticSpec, folder: Path) -> dict[str, Any]:
    digest = hashlib.sha256(repr(spec).encode()).hexdigest()[:10]
    found: dict[str, Any] = {"data.test": []}
    for split in ("train", "test") if spec.test_rows else ("train",):
        path = (folder / f"{name}-{digest}.{split}.txt").absolute()
        if not path.exists():  # files are written atomically
            write_xml(path, spec, split)
        found[f"data.{split}"] = [str(path)]
    return found


def _find(name: str, folder: Path | None) -> Rows:
    card = load_card(name)
    files = {split: file for split in ("train", "test") if (file := getattr(card, split).file)}
    if folder is None:
        return f"give --data FOLDER, with {' and '.join(files.values())}"
    paths = {split: str((folder / file).absolute()) for split, file in files.items()}
    if absent := [path for path in paths.values() if not Path(path).is_file()]:
        return f"no file {' and '.join(absent)}"
    for split in paths:
        verify_file(card, split, paths[split])
    found = {f"data.{split}": [path] for split, path in paths.items()}
    return {"data.test": [], **found, "data.card": name}
