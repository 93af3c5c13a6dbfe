"""The directory of a run, as whoever keeps it has it: one process at a time, which locks it.

That is the client that started the run and follows it, or, for a run that goes on without one, a
worker.

====================  ==================================================="""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from daskxml.config import RunConfig
from daskxml.errors import ConfigError, ModelError
from daskxml.model.tensors import read_tensors
from daskxml.training.checkpoint import checkpoints, latest_checkpoint
from daskxml.training.environment import (
    ENVIRONMENT_FILE,
    describe,
    read_starts,
    with_workers,
    write_starts,
)
from daskxml.training.history import append_history, write_history
from daskxml.training.locking import LOCK_FILE, lock_folder

RUN_FILE, HISTORY_FILE = "run.toml", "history.jsonl"
LOGGERS_FILE = "loggers.json"


class RunDir:
    """A directory that is this run's alone, while the context is open; or no directory."""

    def __init__(self, path: Path | None, checkpoint: str | None) -> None:
        self.path, self.checkpoint = path, checkpoint
        self._lock: IO[str] | None = None

    @classmethod
    def open(cls, out: str | Path | None, resume: str | Path | None) -> RunDir:
        """Check where a run is to be written.

        Raises
        ------
        ConfigError
            If `out` and `resume` contradict each other.
        ModelError
            If `out` holds a run, or `resume` holds none.
        """
        if resume is not None:
            if out is not None and Path(out).absolute() != Path(resume).absolute():
                raise ConfigError(
                    "--out and --resume name two directories: a run goes on in its own"
                )
            path = Path(resume).absolute()
            if not (path / RUN_FILE).exists():
                raise ModelError(f"{path}: no run to resume here (there is no {RUN_FILE})")
            return cls(path, str(latest_checkpoint(path)))
        if out is None:
            return cls(None, None)
        path = Path(out).absolute()
        if any((path / name).exists() for name in (RUN_FILE, HISTORY_FILE, "model.json")):
            way_on = ", or go on with it by --resume" if checkpoints(path) else ""
            raise ModelError(f"{path}: holds a run already; choose another --out{way_on}")
        return cls(path, None)

    @property
    def path_for_workers(self) -> str | None:
        """The directory as text."""
        return None if self.path is None else str(self.path)

    def __enter__(self) -> RunDir:
        """Make the directory and lock it."""
        if self.path is None:
            return self
        self._lock = lock_folder(self.path, "a run is under way in this directory")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Unlock it; a run that failed before its first merge leaves nothing in the way."""
        if self.path is None or self._lock is None:
            return
        if error is not None and self.checkpoint is None and not self._has_results():
            for name in (RUN_FILE, ENVIRONMENT_FILE, LOGGERS_FILE, LOCK_FILE):
                (self.path / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.path.rmdir()
        self._lock.close()

    def hand_over(self) -> None:
        """Unlock it for somebody else, who keeps it from now on."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _has_results(self) -> bool:
        assert self.path is not None
        return (self.path / HISTORY_FILE).exists() or bool(checkpoints(self.path))

    def begin(self, config: RunConfig) -> None:
        """Write the resolved run file, and what it is started with."""
        if self.path is not None:
            (self.path / RUN_FILE).write_text(config.to_toml(), encoding="utf-8")
            before = [] if self.checkpoint is None else read_starts(self.path)
            write_starts(self.path, [*before, describe()])

    def note_workers(self, workers: Mapping[str, Mapping[str, Any]]) -> None:
        """Write down what workers of the last start have, by their names."""
        starts = [] if self.path is None else read_starts(self.path)
        if self.path is not None and starts:
            write_starts(self.path, [*starts[:-1], with_workers(starts[-1], workers)])

    def history(self) -> list[dict[str, Any]]:
        """Return the history up to the checkpoint to go on from, which holds it.

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
            return list(json.loads(metadata["session"])["history"])
        except (ModelError, KeyError, ValueError) as error:
            raise ModelError(
                f"{self.checkpoint}: no checkpoint, or a damaged one ({error}); delete it to go "
                "on from the one before"
            ) from error

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a mega-batch to the history."""
        if self.path is not None:
            append_history(self.path / HISTORY_FILE, row)

    def rewrite(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Replace the history."""
        if self.path is not None:
            write_history(self.path / HISTORY_FILE, rows)
