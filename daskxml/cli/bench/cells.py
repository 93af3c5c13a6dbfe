"""The cells of a suite: their data sets, and everything that determines their results."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from daskxml.cli.bench.suite import BenchmarkScript, NamedRun, RunMatrix, Suite
from daskxml.config import RunConfig, load_run_config
from daskxml.core.errors import ConfigError
from daskxml.data.cards import DatasetCard, Split, load_card, sha256_of_text, verify_file
from daskxml.data.synthetic import SyntheticSpec, write_xml

RUN, RUN_FILE = "run", "run.toml"  # a run's directory and its run file, in the cell's folder
FOLDER = "{folder}"  # stands for the cell's folder in its command
_SPLITS: tuple[Literal["train", "test"], ...] = ("train", "test")


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """The files of a data set.

    Attributes
    ----------
    train, test
        Their paths; the second is empty if there are no test rows.
    contents
        Identify the rows: digests of the text, or of the specification that generated it.
    card
        The dataset card whose constants a run takes; empty if only the suite defines the set.
    missing
        Why there are no files; empty if there are.
    """

    train: str
    test: str = ""
    contents: tuple[str, ...] = ()
    card: str = ""
    missing: str = ""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The most that a cell may use: wall-clock time, and memory of all its processes."""

    seconds: float
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run, or one call of a script.

    Attributes
    ----------
    names
        Its row in the table: run, data, workers and executor, or the script.
    repeat
        The seed of a run, the number of a script's call: cells that differ only by it share a row.
    settings
        Everything that determines its result except the repeat, the machine and the software.
    command
        Arguments of the interpreter, with `FOLDER` for the cell's folder.
    run_file
        The text of its run file; empty for a script.
    missing
        Why it cannot be executed; empty if it can.
    target
        A metric, and the value that counts as reached; 0 is none.
    """

    names: tuple[str, ...]
    repeat: int
    settings: Mapping[str, Any]
    command: tuple[str, ...]
    budget: Budget
    run_file: str = ""
    missing: str = ""
    target: tuple[str, float] = ("P@1", 0.0)
    script: BenchmarkScript | None = None

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
        """The first part of its folder's name."""
        parts = [*(name for name in self.names if name), str(self.repeat)]
        return ".".join("".join(c if c.isalnum() or c in "-_" else "-" for c in p) for p in parts)

    def key(self, environment: Mapping[str, Any]) -> str:
        """Return a digest of everything that determines the result, on a machine and software."""
        return digest(
            {"settings": self.settings, "repeat": self.repeat, "environment": environment}
        )


def digest(value: Any) -> str:
    """Return ten hexadecimal digits that differ where values of JSON differ.

    Examples
    --------
    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def plan_cells(suite: Suite, sets: Mapping[str, DataSet]) -> list[Cell]:
    """Return the cells of a suite, in the order in which they are executed.

    Repeats are the outermost loop, so that a drift of the machine's speed affects all rows alike,
    and an interrupted bench has a little of everything.

    Parameters
    ----------
    sets
        By name, see `find_sets`.

    Raises
    ------
    ConfigError
        If a run file is wrong with its overrides, or two cells are the same.
    """
    cells = [cell for matrix in suite.matrices for cell in _runs(suite, matrix, sets)]
    cells += [cell for script in suite.scripts for cell in _calls(suite, script)]
    seen: set[tuple[object, ...]] = set()
    for cell in cells:
        if (cell.names, cell.repeat) in seen:
            raise ConfigError(f"{suite.path}: the cell {cell.title} is there twice")
        seen.add((cell.names, cell.repeat))
    order = list(dict.fromkeys(cell.repeat for cell in cells))
    return sorted(cells, key=lambda cell: order.index(cell.repeat))


def _runs(suite: Suite, matrix: RunMatrix, sets: Mapping[str, DataSet]) -> Iterator[Cell]:
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
            command=("-m", "daskxml", verb, f"{FOLDER}/{RUN_FILE}", "--out", out, *options),
            budget=Budget(seconds=60 * matrix.minutes, memory_bytes=matrix.memory),
            run_file=config.to_toml(),
            missing=sets[data].missing,
            target=(matrix.target_metric, matrix.target),
        )


def _resolve(
    suite: Suite, matrix: RunMatrix, run: str, rows: DataSet, workers: int, executor: str, seed: int
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


def _calls(suite: Suite, script: BenchmarkScript) -> Iterator[Cell]:
    places = [folder / script.file for folder in (suite.path.parent, scripts_folder()) if folder]
    path = next((path.absolute() for path in places if path.is_file()), None)
    source = path.read_bytes() if path else b""
    for number in range(script.repeats):
        yield Cell(
            names=(script.name,),
            repeat=number,
            settings={"script": hashlib.sha256(source).hexdigest(), "arguments": script.arguments},
            command=(str(path), *script.arguments),
            budget=Budget(seconds=60 * script.minutes, memory_bytes=script.memory),
            missing="" if path else f"no file {script.file} beside the suite, nor in benchmarks/",
            script=script,
        )


def scripts_folder() -> Path | None:
    """Return the folder of the packaged benchmark scripts, None if they are not installed."""
    package = Path(__file__).parents[2]
    # In the wheel they lie inside the package, in a source tree beside it.
    for folder in (package / "benchmarks", package.parent / "benchmarks"):
        if (folder / "machine.py").is_file():
            return folder
    return None


def find_sets(suite: Suite, folder: Path | None, generated: Path) -> dict[str, DataSet]:
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
    found = {}
    for name in suite.data:
        if name in suite.synthetic:
            found[name] = _generate(name, suite.synthetic[name], generated)
            continue
        card = load_card(name)
        if card.synthetic is not None:
            rows = _generate(name, card.synthetic, generated)
            found[name] = dataclasses.replace(rows, card=name)
        else:
            found[name] = _find(name, card, folder)
    return found


def _generate(name: str, spec: SyntheticSpec, folder: Path) -> DataSet:
    contents = digest(dataclasses.asdict(spec))
    paths = {split: folder / f"{name}-{contents}.{split}.txt" for split in _SPLITS}
    for split, path in paths.items():
        if spec.rows_of(split) and not path.exists():  # files are written atomically
            write_xml(path, spec, split)
    test = str(paths["test"].absolute()) if spec.test_rows else ""
    return DataSet(train=str(paths["train"].absolute()), test=test, contents=(contents,))


def _find(name: str, card: DatasetCard, folder: Path | None) -> DataSet:
    splits: dict[str, Split] = {split: getattr(card, split) for split in _SPLITS}
    names = {split: found.file for split, found in splits.items() if found.file}
    if folder is None:
        files = " and ".join(names.values())
        return DataSet(train="", card=name, missing=f"give --data FOLDER, with {files}")
    paths = {split: folder / file for split, file in names.items()}
    absent = [str(path) for path in paths.values() if not path.is_file()]
    if absent:
        return DataSet(train="", card=name, missing=f"no file {' and '.join(absent)}")
    for split in _SPLITS:
        if split in paths and splits[split].sha256:
            verify_file(card, split, str(paths[split]))
    texts = [splits[s].sha256 or sha256_of_text(str(path)) for s, path in paths.items()]
    absolute = {split: str(path.absolute()) for split, path in paths.items()}
    return DataSet(**absolute, contents=tuple(texts), card=name)
