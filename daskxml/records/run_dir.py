"""The directory of a run, and its history file.

One process at a time locks and writes a directory: the client that follows the run, or a worker if
the run is detached.

====================  ============================================================================
file                  contents
====================  ============================================================================
``run.toml``          the resolved run file
``history.jsonl``     a line a mega-batch, a JSON object each: see `daskxml.session.history`
``environment.json``  hardware and software of every start: see `daskxml.records.environment`
``checkpoints/``      see `daskxml.records.checkpoint`
====================  ============================================================================
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

from daskxml.config import RunConfig
from daskxml.core.errors import ConfigError, ModelError
from daskxml.core.files import LOCK_FILE, flush, lock_folder, replace_text, unwritten
from daskxml.core.signals import defer_signals
from daskxml.core.text import parse_json
from daskxml.models.tensors import read_tensors
from daskxml.records.checkpoint import FOLDER as CHECKPOINTS
from daskxml.records.checkpoint import (
    checkpoints,
    latest_checkpoint,
    member_row,
    parse_session,
    stored_members,
)
from daskxml.records.environment import ENVIRONMENT_FILE, describe, read_starts, write_starts

RUN_FILE, HISTORY_FILE = "run.toml", "history.jsonl"
OF_STARTS = "equipment", "stages"  # events that the environment of a start records
ENDS = "megabatches", "epochs", "trees", "minutes", "target", "patience"  # that a run file gives


def begun(where: Path | None) -> dict[str, Path]:
    """Return where a run is written or goes on; without a checkpoint it starts from scratch.

    Raises
    ------
    ModelError
        If another process is writing it.
    """
    if where is None:
        return {}
    if checkpoints(where):
        return {"resume": where}
    if (where / RUN_FILE).exists():  # killed before its first checkpoint
        lock_folder(where, "a run is under way in this directory").close()
        shutil.rmtree(where)
    return {"out": where}


class RunDir:
    """A run's directory, locked while the context is open; ``path`` is None for a run without."""

    def __init__(self, path: Path | None, checkpoint: str | None) -> None:
        self.path, self.checkpoint = path, checkpoint
        self.rows: Sequence[int] = ()  # checksums of training rows that are known at its start
        self._lock: IO[str] | None = None

    @classmethod
    def open(cls, out: str | Path | None, resume: str | Path | None) -> RunDir:
        """Check the directory that a run is to be written to.

        Raises
        ------
        ConfigError
            If `out` and `resume` contradict each other.
        ModelError
            If `out` holds a run, or `resume` holds none.
        """
        if resume is not None:
            if out is not None and Path(out).absolute() != Path(resume).absolute():
                problem = "--out and --resume name two directories: a run continues in its own"
                raise ConfigError(problem)
            path = Path(resume).absolute()
            if not (path / RUN_FILE).exists():
                raise ModelError(f"{path}: no run to resume here (there is no {RUN_FILE})")
            checkpoint = latest_checkpoint(path)
            flush(checkpoint.parent)  # who wrote it may have died before that
            return cls(path, str(checkpoint))
        if out is None:
            return cls(None, None)
        path = Path(out).absolute()
        if any((path / name).exists() for name in (RUN_FILE, HISTORY_FILE, "model.json")):
            way_on = ", or continue it with --resume" if checkpoints(path) else ""
            raise ModelError(f"{path}: holds a run already; choose another --out{way_on}")
        return cls(path, None)

    @property
    def path_for_workers(self) -> str | None:
        """The directory as text."""
        return None if self.path is None else str(self.path)

    def __enter__(self) -> RunDir:
        """Make the directory and lock it."""
        try:
            with defer_signals():  # else Ctrl-C could come when nobody knows of the lock
                self.lock()
        except BaseException:
            self.release(has_failed=True)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Unlock it; a run that failed before its first merge leaves nothing behind."""
        self.release(has_failed=any(error))

    def lock(self) -> None:
        """Make the directory and lock it.

        Raises
        ------
        ModelError
            If another process has locked it.
        """
        if self.path is not None:
            self._lock = lock_folder(self.path, "a run is under way in this directory")

    def release(self, has_failed: bool) -> None:
        """Unlock it; a run that failed before its first merge leaves nothing behind."""
        if self.path is None or self._lock is None:
            return
        results = (self.path / name for name in (HISTORY_FILE, CHECKPOINTS))
        if has_failed and self.checkpoint is None and not any(map(Path.exists, results)):
            for name in (RUN_FILE, ENVIRONMENT_FILE, LOCK_FILE):
                (self.path / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.path.rmdir()
        self.unlock()

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def begin(self, config: RunConfig) -> None:
        """Write the resolved run file, and the environment of this start.

        Raises
        ------
        ModelError
            If they cannot be written.
        """
        if self.path is not None:
            replace_text(self.path / RUN_FILE, config.to_toml())  # a resumed run has one already
            before = [] if self.checkpoint is None else read_starts(self.path)
            write_starts(self.path, [*before, {**describe(), "rows": [*self.rows]}])

    def record(self, event: Mapping[str, Any]) -> None:
        """Record an event of `OF_STARTS` in the environment of the last start.

        It has the hardware of some ``workers`` by their names, or the ``stages`` of the rows and
        the checksums of the training partitions.
        """
        if self.path is not None and (starts := read_starts(self.path)):
            if event["kind"] == "equipment":
                starts[-1]["workers"] = starts[-1].get("workers", {}) | event["workers"]
            else:
                starts[-1] |= {key: list(event[key]) for key in ("stages", "rows") if key in event}
            write_starts(self.path, starts)

    def history(self) -> list[dict[str, Any]]:
        """Return the history up to the checkpoint to continue from, which contains it.

        A process that is killed may have written half a line of `HISTORY_FILE`, or lines of
        mega-batches that no checkpoint has.

        Raises
        ------
        ModelError
            If the checkpoint cannot be read.
        """
        if self.checkpoint is None:
            return []
        try:
            _, metadata = read_tensors(self.checkpoint, verify=False)  # the workers will
            if "row" in metadata:
                paths = stored_members(self.checkpoint)
                return [member_row(path, read_tensors(path, verify=False)[1]) for path in paths]
            return list(parse_session(metadata)["history"])
        except (ModelError, KeyError, ValueError) as error:
            raise ModelError(
                f"{self.checkpoint}: no checkpoint, or a damaged one ({error}); delete it to go "
                "on from the one before"
            ) from error

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a mega-batch to the history."""
        if self.path is not None:
            extend_history(self.path / HISTORY_FILE, None, [row])

    def rewrite(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Replace the whole history.

        Raises
        ------
        ModelError
            If it cannot be written; the old history is unchanged then.
        """
        if self.path is not None:
            text = "".join(json.dumps(row) + "\n" for row in rows)
            replace_text(self.path / HISTORY_FILE, text)


def check_rows(path: str | Path, checksums: Sequence[int]) -> None:
    """Refuse other training rows than those that a run began with, in as many partitions.

    Raises
    ------
    ModelError
        Saying so.
    """
    known = next((start["rows"] for start in read_starts(Path(path)) if start.get("rows")), None)
    if isinstance(known, list) and len(known) == len(checksums) and known != [*checksums]:
        raise ModelError(
            f"{path}: the training rows are not those that the run began with: give the same "
            "files, weights and [data], or begin another run"
        )


def extend_history(path: Path, offset: int | None, rows: Iterable[Mapping[str, Any]]) -> list[int]:
    """Truncate a history to ``offset`` bytes and append rows; return the end of each, in bytes.

    So it may be called twice for the same rows, or after half a line was written. None appends to
    the history as it is.

    Raises
    ------
    ModelError
        If it cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "history.jsonl"
    >>> extend_history(path, 0, [{"megabatch": 1}, {"megabatch": 2}])
    [17, 34]
    >>> extend_history(path, 17, [])
    []
    >>> extend_history(path, None, [])
    []
    >>> read_history(path)
    [{'megabatch': 1}]
    """
    lines = [(json.dumps(row) + "\n").encode() for row in rows]
    try:
        with path.open("ab") as file:
            offset = file.tell() if offset is None else offset
            if file.tell() < offset:
                raise ModelError(f"{path}: is shorter than it was: somebody else wrote to it")
            file.truncate(offset)
            file.write(b"".join(lines))
    except OSError as error:
        raise unwritten(path, error) from error
    return [offset + length for length in accumulate(map(len, lines))]


def read_history(path: Path) -> list[dict[str, Any]]:
    """Read a history.

    Raises
    ------
    ModelError
        If the file is missing, or a line is no JSON object.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ModelError(f"{path}: no history of a run here ({error.strerror})") from None
    return [_parse_row(path, number, line) for number, line in enumerate(lines, 1)]


def _parse_row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        row = parse_json(line)
        if isinstance(row, dict):
            return row
    raise ModelError(f"{path}:{number}: not a JSON object; the history is damaged")
