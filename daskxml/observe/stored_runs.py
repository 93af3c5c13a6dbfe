"""Reads the directories of runs, which may be under way, broken off or damaged."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daskxml.core.errors import ModelError
from daskxml.core.files import is_locked
from daskxml.core.text import parse_json
from daskxml.core.work_stats import StageRecord
from daskxml.observe.course import Course
from daskxml.observe.run_view import Row, last_metrics, worker_names
from daskxml.records.environment import read_starts
from daskxml.records.row_schema import check_row
from daskxml.records.run_dir import HISTORY_FILE, RUN_FILE

SIMULATION_FILE, MODEL_FILE = "simulation.json", "model.json"
NEEDED = {"megabatch", "rows", "train_s", "merge_s", "metrics", "workers"}  # of a row


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A run as its directory has it.

    Attributes
    ----------
    name
        Short, and unique in a report.
    directory
        Where it was found.
    config
        The sections of its run file, as plain values; empty if there is none.
    run_file
        The text of its run file.
    history
        Rows of mega-batches 1, 2, ...; see `daskxml.session.history`.
    state
        How it ended, or that it is under way.
    starts
        Its environments, see `daskxml.records.environment`.
    simulation
        Speeds and costs of a simulated run; None for a real one.
    problems
        Sentences on what could not be read.
    """

    name: str
    directory: Path
    config: dict[str, dict[str, Any]] = field(default_factory=dict)
    run_file: str = ""
    history: tuple[Row, ...] = ()
    state: str = ""
    starts: tuple[dict[str, Any], ...] = ()
    simulation: dict[str, Any] | None = None
    problems: tuple[str, ...] = ()

    @functools.cached_property
    def course(self) -> Course:
        """What its charts show."""
        return Course(self.name, self.history)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the last evaluation."""
        return last_metrics(self.history)

    @property
    def stages(self) -> list[StageRecord]:
        """How the rows of the last start came to the workers, as far as it is recorded."""
        found = self.starts[-1].get("stages", ()) if self.starts else ()
        try:
            return [StageRecord(**stage) for stage in found]
        except TypeError:
            return []

    @property
    def workers(self) -> list[str]:
        """The names of all workers that took part, in the order in which they came."""
        return worker_names(self.history)


def read_runs(directories: Sequence[str | Path]) -> list[StoredRun]:
    """Read runs, and all runs in folders of them, such as ``simulate --compare`` writes.

    Raises
    ------
    ModelError
        If a directory holds no run.
    """
    found = list(dict.fromkeys(path for given in directories for path in find_runs(Path(given))))
    names = name_runs([path.absolute() for path in found])
    return [read_run(path, name) for path, name in zip(found, names, strict=True)]


def find_runs(directory: Path) -> list[Path]:
    """Return the directory if it holds a run, else those directly in it that do.

    Raises
    ------
    ModelError
        If there is none.
    """
    if (directory / HISTORY_FILE).is_file():
        return [directory]
    inside = sorted(directory.iterdir()) if directory.is_dir() else []
    if found := [path for path in inside if path.is_dir() and _holds_run(path)]:
        return found
    if _holds_run(directory):
        return [directory]
    raise ModelError(f"{directory}: no run here (there is no {RUN_FILE} and no {HISTORY_FILE})")


def _holds_run(directory: Path) -> bool:
    return any((directory / name).is_file() for name in (RUN_FILE, HISTORY_FILE))


def name_runs(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that are all different.

    Examples
    --------
    >>> name_runs([Path("/runs/a/first"), Path("/runs/b/first"), Path("/runs/b/second")])
    ['a/first', 'b/first', 'b/second']
    """
    most = max((len(path.parts) for path in paths), default=1)
    for parts in range(1, most + 1):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def read_run(directory: Path, name: str) -> StoredRun:
    """Read one run; its ``problems`` list what is missing or damaged."""
    problems: list[str] = []
    run_file, config = _read_config(directory / RUN_FILE, problems)
    history = read_rows(directory / HISTORY_FILE, problems)
    return StoredRun(
        name=name,
        directory=directory,
        config=config,
        run_file=run_file,
        history=tuple(history),
        state=_state(directory, len(history)),
        starts=tuple(read_starts(directory)),
        simulation=_read_json(directory / SIMULATION_FILE),
        problems=tuple(problems),
    )


def _read_config(path: Path, problems: list[str]) -> tuple[str, dict[str, dict[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except (OSError, ValueError) as error:
        problems.append(f"{path.name} cannot be read ({_reason(error)})")
        return "", {}


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def read_rows(path: Path, problems: list[str]) -> list[Row]:
    """Return the rows of a history that is perhaps being written, or was cut off.

    A row that comes again replaces the first and all after it: the run went back to a checkpoint.
    Lines that are no rows, and rows after a gap, are left out and added to ``problems``.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            problems.append(f"{path.name} cannot be read ({_reason(error)})")
        return []
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        row = _row(line)
        if row is None:
            is_cut = number == len(lines)
            problem = "is cut off" if is_cut else "is no row of a history"
            problems.append(f"{path.name}: line {number} {problem}; left out")
        elif row["megabatch"] > len(rows) + 1:
            problems.append(f"{path.name}: line {number} comes after a gap; left out")
        else:
            rows[row["megabatch"] - 1 :] = [row]
    return rows


def _row(line: str) -> Row | None:
    """Return a line's row, or None if it is none."""
    try:
        row = parse_json(line)
        check_row(row, complete=False)
    except ValueError:
        return None
    return dict(row) if row.keys() >= NEEDED else None


def _state(directory: Path, megabatches: int) -> str:
    """Return how the run ended, or that a process holds its directory: it is under way."""
    if is_locked(directory):
        return f"under way, {megabatches} mega-batches so far"
    header = _read_json(directory / MODEL_FILE)
    training = header.get("training", {}) if header else {}
    if not isinstance(training, dict):
        return "ended, with a damaged model"
    if header is None or training.get("megabatches", megabatches) != megabatches:
        return f"broken off after {megabatches} mega-batches"
    reason = str(training.get("ended", ""))
    return {"interrupt": "interrupted", "": "ended"}.get(reason, f"ended by {reason}")


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
