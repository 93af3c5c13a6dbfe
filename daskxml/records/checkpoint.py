"""Checkpoints: ``checkpoints/NNNNNN.safetensors``, each complete, each replaced as a whole.

One file holds the global model, the one before it (for the momentum) and, as JSON in its metadata,
the session: strategy, ledger and history. Arrays that differ from worker to worker (the optimizer's
state, a replica that merges leave as it is) are beside it in ``checkpoints/NNNNNN/n.safetensors``,
written before the file that completes the checkpoint, whose session maps workers to numbers.

A run that fits its model in tasks has a file for each member, which it never writes again.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daskxml.core.arrays import Array
from daskxml.core.errors import ModelError
from daskxml.core.files import check_folder, flush
from daskxml.core.text import parse_json
from daskxml.models.tensors import read_tensors, write_tensors
from daskxml.records.row_schema import check_kinds, check_row

FOLDER = "checkpoints"
FORMAT_VERSION = "2"
_OTHER_KIND = "the model to continue from is of another kind: leave [model] kind as it was"


def write_checkpoint(
    run_dir: str | Path, megabatch: int, models: dict[str, Array], session: str, keep: int
) -> Path:
    """Write one, then remove all but the newest ``keep``.

    Parameters
    ----------
    run_dir
        Directory of the run.
    megabatch
        Number of merges that the model includes; names the file.
    models
        The worker's arrays by name: ``current`` and ``previous``.
    session
        JSON text of ``Session.plain``.

    Raises
    ------
    ModelError
        If it cannot be written; older ones are unchanged.
    """
    folder = make_folder(Path(run_dir) / FOLDER)
    _drop_later(run_dir, megabatch, session)
    path = folder / f"{megabatch:06d}.safetensors"
    write_tensors(path, models, {"format": FORMAT_VERSION, "session": session})
    _prune(run_dir, keep)
    return path


def store_member(
    run_dir: str | Path, number: int, arrays: Mapping[str, Array], row: Mapping[str, Any]
) -> str:
    """Write a member of a model, and its row of the history: a run that goes on keeps it.

    It is where the checkpoint of another run would, ``checkpoints/000001.safetensors`` for
    member 0; all of them stay. Those of later ones are removed. Return why it could not be written;
    "" if it was.
    """
    metadata = {"format": FORMAT_VERSION, "row": json.dumps(row)}
    try:
        path = make_folder(Path(run_dir) / FOLDER) / f"{number + 1:06d}.safetensors"
        if path.exists():
            return ""  # another has written it, and maybe later ones, while this one was frozen
        _drop_later(run_dir, number + 1)
        write_tensors(path, dict(arrays), metadata)
    except ModelError as error:
        return error.message
    return ""


def stored_members(checkpoint: str | Path) -> list[Path]:
    """Return the files of members up to the first that is missing; ``checkpoint`` is of one."""
    folder, found = Path(checkpoint).parent, list[Path]()
    while (path := folder / f"{len(found) + 1:06d}.safetensors").exists():
        found.append(path)
    return found


def read_member(path: str | Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays of a member that `store_member` wrote, and its row of the history.

    Raises
    ------
    ModelError
        If it is damaged, or the checkpoint of another kind of model.
    """
    arrays, metadata = read_tensors(path, writable=False)
    return arrays, member_row(path, metadata)


def member_row(path: str | Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the row in a member's metadata.

    Raises
    ------
    ModelError
        If there is none, or it is damaged.
    """
    if "row" not in metadata:
        raise ModelError(f"{path}: {_OTHER_KIND}")
    try:
        row = parse_json(metadata["row"])
        check_row(row)
    except ValueError as error:
        problem = f"{path}: is damaged ({error}); delete it to fit this part again"
        raise ModelError(problem) from error
    return dict(row)


def _prune(run_dir: str | Path, keep: int) -> None:
    """Remove all but the newest ``keep``, and what belongs to none."""
    for old in checkpoints(run_dir)[:-keep]:
        with contextlib.suppress(OSError):  # one too many does no harm
            old.unlink()
    for local in (Path(run_dir) / FOLDER).glob("[0-9]*/"):
        if not local.with_suffix(".safetensors").exists():
            shutil.rmtree(local, ignore_errors=True)


def _drop_later(run_dir: str | Path, megabatch: int, session: str | None = None) -> None:
    """Remove later checkpoints of attempts before the session's: the run has gone back before them.

    They would be newer than those of the history that it has now, and be resumed from. Those of
    this attempt stay: whoever writes may have been frozen while others went on. Without a session
    all go.
    """
    found = (path for path in checkpoints(run_dir) if path.stem.isdigit())
    later = [path for path in found if int(path.stem) > megabatch]
    if later and session is not None:
        attempt = json.loads(session).get("attempt", 0)
        later = [path for path in later if _attempt(path) < attempt]
    for path in later:
        with contextlib.suppress(OSError):
            path.unlink()
    if later:
        flush(Path(run_dir) / FOLDER)


def _attempt(path: Path) -> int:
    """Return which attempt of its run wrote a checkpoint; -1 if that cannot be read."""
    try:
        _, metadata = read_tensors(path, verify=False, writable=False)
        return int(parse_session(metadata).get("attempt", 0))
    except (ModelError, KeyError, TypeError, ValueError):
        return -1


def write_local(run_dir: str | Path, megabatch: int, number: int, state: dict[str, Array]) -> None:
    """Write one worker's own arrays, before the file that completes the checkpoint.

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
    folder = make_folder(Path(run_dir) / FOLDER / f"{megabatch:06d}")
    write_tensors(folder / f"{number}.safetensors", state, {"format": FORMAT_VERSION})


def make_folder(folder: Path) -> Path:
    """Make a folder of a run's directory, or of its folder of checkpoints, and return it.

    The directory itself is not made again: a user who left the run may have removed it.

    Raises
    ------
    ModelError
        If that is not possible.
    """
    try:
        if folder.parent.name == FOLDER:
            folder.parent.mkdir(exist_ok=True)
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ModelError(f"{folder}: cannot be made ({error.strerror})") from error
    return folder


def read_local(path: str | Path, number: int) -> dict[str, Array]:
    """Return one worker's own arrays of the checkpoint at ``path``.

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
    """Remove the workers' own arrays of a checkpoint that will not be completed."""
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
        If there is none, or it may be one without an end.
    """
    check_folder(Path(run_dir))
    found = checkpoints(run_dir)
    if not found:
        raise ModelError(f"{run_dir}: no checkpoint to resume from; start again with another --out")
    return found[-1]


def read_checkpoint(path: str | Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the model's arrays by name and the session of a checkpoint.

    Raises
    ------
    ModelError
        If it is damaged or of another version.
    """
    remedy = "delete it to resume from the one before"
    try:
        models, metadata = read_tensors(path, writable=False)
    except ModelError as error:
        raise ModelError(f"{error.message}, or {remedy}") from None
    if "row" in metadata:
        raise ModelError(f"{path}: {_OTHER_KIND}")
    try:
        if metadata["format"] != FORMAT_VERSION or not models:
            raise ValueError
        return models, parse_session(metadata)
    except (KeyError, ValueError):
        raise ModelError(f"{path}: not a checkpoint of this version; {remedy}") from None


def parse_session(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the session in a checkpoint's metadata.

    Raises
    ------
    KeyError, ValueError
        If there is none, or it is not what `Session.plain` returns.
    """
    session = parse_json(metadata["session"])
    check_kinds(session, {"strategy": dict, "ledger": dict, "history": list})
    for row in session["history"]:
        check_row(row, complete=False)
    return dict(session)
