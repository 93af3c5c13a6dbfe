"""Checkpoints: ``checkpoints/NNNNNN.safetensors``, each complete, each replaced as a whole.

One file holds the global model, the one before it (for the momentum) and, as JSON in its metadata,
the session: strategy, ledger and history. What only one worker knows (the state of its optimizer,
a replica that a merge leaves as it is) lies beside it in ``checkpoints/NNNNNN/n.safetensors``,
written before the file that makes the checkpoint complete; that one's session says whose is which.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daskxml.errors import ModelError
from daskxml.model.tensors import read_tensors, write_tensors
from daskxml.types import Array

FOLDER = "checkpoints"
FORMAT_VERSION = "1"


def write_checkpoint(
    run_dir: str | Path,
    megabatch: int,
    models: dict[str, Array],
    session: dict[str, Any],
    keep: int,
) -> Path:
    """Write one, then remove all but the newest ``keep``.

    Parameters
    ----------
    run_dir
        Directory of the run.
    megabatch
        How many merges the model has been through; names the file.
    models
        ``current`` and ``previous``, flat ``(size,)`` float32.
    session
        JSON values, see ``Session.plain``.

    Raises
    ------
    ModelError
        If it cannot be written; the older ones are as they were.
    """
    folder = Path(run_dir) / FOLDER
    path = folder / f"{megabatch:06d}.safetensors"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"{folder}: cannot be made ({error.strerror})") from error
    write_tensors(path, models, {"format": FORMAT_VERSION, "session": json.dumps(session)})
    for old in checkpoints(run_dir)[:-keep]:
        with contextlib.suppress(OSError):  # one too many does no harm
            old.unlink()
    for local in folder.glob("[0-9]*/"):
        if not local.with_suffix(".safetensors").exists():
            shutil.rmtree(local, ignore_errors=True)
    return path


def write_local(run_dir: str | Path, megabatch: int, number: int, state: dict[str, Array]) -> None:
    """Write what only one worker knows, for a checkpoint that is complete later.

    Parameters
    ----------
    megabatch, number
        Of the checkpoint, and of the worker in it.
    state
        Arrays by name.

    Raises
    ------
    ModelError
        If it cannot be written.
    """
    folder = Path(run_dir) / FOLDER / f"{megabatch:06d}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"{folder}: cannot be made ({error.strerror})") from error
    write_tensors(folder / f"{number}.safetensors", state, {"format": FORMAT_VERSION})


def read_local(path: str | Path, number: int) -> dict[str, Array]:
    """Return what one worker knew when the checkpoint at ``path`` was written.

    Raises
    ------
    ModelError
        If it is missing, damaged or of another version.
    """
    file = Path(path).with_suffix("") / f"{number}.safetensors"
    state, metadata = read_tensors(file)
    if metadata.get("format") != FORMAT_VERSION:
        raise ModelError(f"{file}: not of this version; delete {path} to resume from an older one")
    return state


def drop_local(run_dir: str | Path, megabatch: int) -> None:
    """Remove what workers have written for a checkpoint that will not be complete."""
    folder = Path(run_dir) / FOLDER / f"{megabatch:06d}"
    if not folder.with_suffix(".safetensors").exists():
        shutil.rmtree(folder, ignore_errors=True)


def checkpoints(run_dir: str | Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    found = (Path(run_dir) / FOLDER).glob("[0-9]*.safetensors")
    return sorted(found, key=lambda path: (len(path.stem), path.stem))  # past 999,999 as well


def latest_checkpoint(run_dir: str | Path) -> Path:
    """Return the newest checkpoint.

    Raises
    ------
    ModelError
        If there is none.
    """
    found = checkpoints(run_dir)
    if not found:
        raise ModelError(f"{run_dir}: no checkpoint to resume from; start anew with another --out")
    return found[-1]


def read_checkpoint(path: str | Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the models (``current``, ``previous``) and the session of a checkpoint.

    Raises
    ------
    ModelError
        If it is damaged or of another version.
    """
    remedy = "delete it to resume from the one before"
    try:
        models, metadata = read_tensors(path)
        if metadata["format"] != FORMAT_VERSION or not {"current", "previous"} <= models.keys():
            raise ValueError
        return models, json.loads(metadata["session"])
    except ModelError as error:
        raise ModelError(f"{error.message}, or {remedy}") from None
    except (KeyError, ValueError):
        raise ModelError(f"{path}: not a checkpoint of this version; {remedy}") from None


def check_model_fits(held: Array, *stored: Array) -> None:
    """Refuse models to go on with that are not as large as the run's, all flat ``(size,)``.

    Raises
    ------
    ModelError
        If one is smaller or larger.
    """
    for array in stored:
        if array.shape != held.shape:
            raise ModelError(
                f"the model to go on with has {array.size:,} numbers, the run's {held.size:,}: "
                "leave [model] as it was"
            )


def check_state_fits(held: Mapping[str, Array], stored: Mapping[str, Array]) -> None:
    """Refuse what only one worker knew, by name, where the run has no place for it.

    Raises
    ------
    ModelError
        If an array is not known, or of another shape.

    Examples
    --------
    >>> import numpy as np
    >>> check_state_fits({}, {"optimizer.steps": np.zeros(1)})
    Traceback (most recent call last):
    daskxml.errors.ModelError: the checkpoint holds optimizer.steps, for which the run has no place:
    leave [optimizer] and [sampling] as they were
    """
    for name, array in stored.items():
        if name not in held or held[name].shape != array.shape:
            raise ModelError(
                f"the checkpoint holds {name}, for which the run has no place: leave [optimizer] "
                "and [sampling] as they were"
            )
