"""From a suite to its cells, each with everything that decides its result."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daskxml.bench.environment import digest
from daskxml.bench.parts import Matrix, NamedRun, Script
from daskxml.bench.sets import DataSet
from daskxml.bench.suite import Suite
from daskxml.config import RunConfig, load_run_config
from daskxml.errors import ConfigError

RUN, RUN_FILE = "run", "run.toml"  # of a cell's folder: where its run lies, and its run file
FOLDER = "{folder}"  # stands for the cell's folder in its command
SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a cell may take: seconds by the clock, and bytes of memory of all its processes."""

    seconds: float
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run, or one call of a script.

    Attributes
    ----------
    names
        What the table calls it: run, data, workers and executor, or the script.
    repeat
        The seed of a run, the number of the call of a script: cells that differ by it alone are
        one line of the table.
    settings
        Everything that decides its result but for the repeat, the machine and the software.
    command
        The program's arguments, with `FOLDER` for the cell's folder.
    limits
        Its budgets.
    run_file
        The text of its run file; empty for a script.
    missing
        Why it cannot be done; empty where it can.
    target
        A metric, and the value that counts as reached; 0 is none.
    """

    names: tuple[str, ...]
    repeat: int
    settings: Mapping[str, Any]
    command: tuple[str, ...]
    limits: Limits
    run_file: str = ""
    missing: str = ""
    target: tuple[str, float] = ("P@1", 0.0)
    script: Script | None = None

    @property
    def title(self) -> str:
        """One line for a reader."""
        if self.script is not None:
            return f"{self.names[0]} {self.repeat}"
        run, data, workers, executor = self.names
        count = f", {workers} worker{'s' * (workers != '1')}" if workers else ""
        return f"{run}, {data}{count}, {executor}, seed {self.repeat}"

    @property
    def folder_name(self) -> str:
        """The beginning of its folder's name."""
        parts = [*(name for name in self.names if name), str(self.repeat)]
        return ".".join("".join(c if c.isalnum() or c in "-_" else "-" for c in p) for p in parts)

    def key(self, decisive: Mapping[str, Any]) -> str:
        """Return what tells this cell from others, on a machine with this software."""
        decides = {"settings": self.settings, "repeat": self.repeat, "environment": decisive}
        return digest(decides)


def plan(suite: Suite, sets: Mapping[str, DataSet], scripts: Path | None) -> list[Cell]:
    """Return the cells of a suite, in the order in which they are done.

    Repeats are the outermost loop, so that whatever else a machine does as time goes on disturbs
    all groups alike, and so that a bench that is broken off has a little of everything.

    Parameters
    ----------
    sets
        By name, see `daskxml.bench.sets.find_sets`.
    scripts
        The folder of the benchmark scripts, None where they are not installed.

    Raises
    ------
    ConfigError
        If a run file cannot be read with the settings that it gets, or if two cells would be one.
    """
    cells = [cell for matrix in suite.matrices for cell in _cells(suite, matrix, sets)]
    cells += [cell for script in suite.scripts for cell in _calls(suite, script, scripts)]
    seen: set[tuple[object, ...]] = set()
    for cell in cells:
        if (cell.names, cell.repeat) in seen:
            raise ConfigError(f"{suite.path}: the cell {cell.title} is there twice")
        seen.add((cell.names, cell.repeat))
    ranks = {repeat: rank for rank, repeat in enumerate(dict.fromkeys(c.repeat for c in cells))}
    return sorted(cells, key=lambda cell: ranks[cell.repeat])


def _cells(suite: Suite, matrix: Matrix, sets: Mapping[str, DataSet]) -> Iterator[Cell]:
    axes = (matrix.run, matrix.data, matrix.workers, matrix.executors, matrix.seeds)
    for run, data, workers, executor, seed in itertools.product(*axes):
        config = _resolve(suite, matrix, run, sets[data], workers, executor, seed)
        options = matrix.virtual.options(workers) if executor == "simulate" else ()
        verb = "simulate" if executor == "simulate" else "train"
        out = f"{FOLDER}/{RUN}"
        tables = config.as_dict()
        del tables["run"]["seed"]
        yield Cell(
            names=(run, data, str(workers or ""), executor),
            repeat=seed,
            settings={
                "run": {**tables, "data": {**tables["data"], "train": [], "test": []}},
                "rows": sets[data].contents,
                "executor": [executor, *options],
            },
            command=("-m", "daskxml.cli", verb, f"{FOLDER}/{RUN_FILE}", "--out", out, *options),
            limits=Limits(seconds=matrix.minutes * SECONDS, memory_bytes=matrix.memory),
            run_file=config.to_toml(),
            missing=sets[data].missing,
            target=(matrix.target_metric, matrix.target),
        )


def _resolve(
    suite: Suite, matrix: Matrix, run: str, rows: DataSet, workers: int, executor: str, seed: int
) -> RunConfig:
    named = suite.runs.get(run, NamedRun())
    file = named.file or run
    beside = suite.path.parent / (file if file.endswith(".toml") else f"{file}.toml")
    is_file = beside.is_file() and beside.resolve() != suite.path.resolve()
    given: dict[str, Any] = {"data.card": rows.card} if rows.card else {}
    given |= {"data.train": [rows.train], "data.test": [rows.test] if rows.test else []}
    if workers and executor == "cluster":
        given["cluster.workers"] = workers
    given |= {**matrix.overrides, **named.overrides, **matrix.each.get(run, {}), "run.seed": seed}
    try:
        return load_run_config(beside if is_file else file, given)
    except ConfigError as error:
        raise ConfigError(f"{suite.path}: run {run!r}: {error}") from error


def _calls(suite: Suite, script: Script, scripts: Path | None) -> Iterator[Cell]:
    places = [folder / script.file for folder in (suite.path.parent, scripts) if folder]
    path = next((path.absolute() for path in places if path.is_file()), None)
    missing = "" if path else f"no file {script.file} beside the suite, nor in benchmarks/"
    text = path.read_bytes() if path else b""
    for number in range(script.repeats):
        yield Cell(
            names=(script.name,),
            repeat=number,
            settings={
                "script": hashlib.sha256(text).hexdigest(),
                "arguments": script.arguments,
            },
            command=(str(path), *script.arguments),
            limits=Limits(seconds=script.minutes * SECONDS, memory_bytes=script.memory),
            missing=missing,
            script=script,
        )


def packaged_scripts() -> Path | None:
    """Return the folder of the benchmark scripts, None where they are not installed."""
    package = Path(__file__).parents[1]
    # In the wheel they lie inside the package, in a source tree beside it.
    for folder in (package / "benchmarks", package.parent / "benchmarks"):
        if (folder / "machine.py").is_file():
            return folder
    return None
