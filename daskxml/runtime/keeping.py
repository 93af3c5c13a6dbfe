"""What a worker does for a run that nobody follows: keep its directory, and its model.

Each function is a Dask task on the worker that keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from daskxml.config import RunConfig
from daskxml.errors import ClusterError
from daskxml.model.store import ModelHeader, read_model
from daskxml.runtime.seats import Kept, members_plugin
from daskxml.runtime.worker import model_arrays
from daskxml.training.history import extend_history
from daskxml.training.run_dir import HISTORY_FILE, RUN_FILE, RunDir
from daskxml.types import Array


def keep_directory(run: str, run_dir: str, checkpoint: str | None) -> None:
    """Lock a run's directory for this worker.

    Raises
    ------
    ModelError
        If somebody else has it.
    ClusterError
        If this worker does not see it.
    """
    kept = _kept(run)
    if kept.place is None:
        if not (Path(run_dir) / RUN_FILE).exists():
            raise ClusterError(f"not all workers see {run_dir}: choose a folder that they share")
        place = RunDir(Path(run_dir), checkpoint)
        kept.place = place.__enter__()  # left by `leave_directory`


def begin_directory(run: str, config: RunConfig, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Write the run file, and the history so far; return the byte behind each of its rows."""
    _place(run).begin(config)
    return write_rows(run, 0, rows)


def note_workers(run: str, workers: Mapping[str, Mapping[str, Any]]) -> None:
    """Write down what workers have, by their names."""
    _place(run).note_workers(workers)


def write_rows(run: str, offset: int, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Let the history go on behind a byte; return the byte behind each of the rows."""
    path = _place(run).path
    assert path is not None
    return extend_history(path / HISTORY_FILE, offset, rows)


def leave_directory(run: str, has_failed: bool) -> None:
    """Unlock the directory; a run that failed before its first merge leaves nothing in the way."""
    kept = members_plugin().kept.pop(run, None)
    if kept is not None and kept.place is not None:
        error = ClusterError("the run has failed") if has_failed else None
        kept.place.__exit__(None, error, None)


def keep_model(run: str) -> None:
    """Keep the model of a run that is over, whose member here is about to go."""
    _kept(run).model = model_arrays(run)


def model_of(run: str) -> tuple[dict[str, Array], Array]:
    """Return the parameters and label counts of a run that is over, kept or still a member's."""
    kept = members_plugin().kept.get(run)
    return kept.model if kept is not None and kept.model is not None else model_arrays(run)


def drop_model(run: str) -> None:
    """Keep nothing more of a run."""
    kept = members_plugin().kept.pop(run, None)
    if kept is not None:
        kept.close()


def stored_model(run_dir: str) -> tuple[ModelHeader, dict[str, Array], Array]:
    """Read the model of a run that is over from its directory.

    Raises
    ------
    ModelError
        If it is not there.
    """
    return read_model(run_dir)


def _kept(run: str) -> Kept:
    return members_plugin().kept.setdefault(run, Kept())


def _place(run: str) -> RunDir:
    place = _kept(run).place
    if place is None:
        raise ClusterError(f"the directory of run {run} is not kept by this worker")
    return place
