"""Predictions on a cluster: files of any size, piece by piece, and Dask collections."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import scipy.sparse
from dask import is_dask_collection
from dask.base import tokenize
from distributed import Client, as_completed

from daskxml.api.collections import lazy_blocks
from daskxml.api.prediction_files import (
    STDOUT,
    Block,
    Predicted,
    check_target,
    write_predictions,
)
from daskxml.cluster.connection import running_cluster
from daskxml.core.errors import ConfigError, InputError
from daskxml.core.files import lock_folder
from daskxml.data.blocks import Block as FileBlock
from daskxml.data.formats import plan_files
from daskxml.models.network.spec import check_rank
from daskxml.models.rows import BLOCK_BYTES, read_block_rows
from daskxml.models.store import stored_arrays
from daskxml.models.tensors import digest
from daskxml.models.trained import Model

_BUSY = "another prediction to this file is under way"


def predict(
    model: Model | str | Path,
    rows: Any,
    *,
    k: int = 5,
    out: str | Path | None = None,
    block_bytes: int = BLOCK_BYTES,
    client: Client | None = None,
    scheduler: str | None = None,
) -> Any:
    """Rank the labels of rows on a Dask cluster.

    Files are cut into blocks; each is read and ranked by a task, with the model resident on every
    worker, and its piece written to a folder beside ``out``, which all workers must reach. When all
    are there, they become one file. A prediction that is interrupted continues with the pieces
    that are missing when it is called again; a worker that is lost leaves its pieces to others.

    Parameters
    ----------
    model
        A model, or the directory of one or of a run.
    rows
        Files (paths, fsspec URLs, globs) of any format, or a Dask array or data frame of features.
    k
        Labels of each row.
    out
        For files: ``.npz``, ``.csv``, ``.jsonl`` or ``.parquet``, as ``daskxml predict`` writes
        them.
    block_bytes
        About how much of a file is a piece, where its format can be cut.
    client, scheduler
        A connected client, or the address of a scheduler. For Dask collections not needed.

    Returns
    -------
    Predicted, for files, or a lazy Dask array ``(rows, labels)`` of CSR blocks with the
    probabilities of the best ``k`` labels, as `Model.predict` gives them.

    Raises
    ------
    InputError
        If a file cannot be read, or does not fit the model.
    ConfigError
        If ``k`` is out of range, ``out`` is missing or of no known kind, or no cluster is given.
    ClusterError
        If no scheduler answers.
    """
    held = model if isinstance(model, Model) else Model.load(model)
    check_rank(k, held.spec.labels)
    k = min(k, held.spec.labels)
    ranking = Model(held.header, held.parameters, held.label_counts, threads=1)
    if is_dask_collection(rows):
        meta = scipy.sparse.csr_matrix((0, held.spec.labels), dtype=np.float32)
        return lazy_blocks(client, rows, "rows", meta, ranking, "predict", k)
    if out is None or str(out) == STDOUT:
        raise ConfigError("files are ranked on a cluster into a file: give out, which all reach")
    check_target(str(out))
    paths = [str(path) for path in ([rows] if isinstance(rows, str | Path) else rows)]
    with running_cluster(client, scheduler) as connected:
        return _files(connected, ranking, paths, k, block_bytes, Path(out).absolute())


def _files(
    client: Client, model: Model, paths: Sequence[str], k: int, block_bytes: int, out: Path
) -> Predicted:
    """Rank what is missing, and join the pieces; everything on files is done by the workers."""
    folder = out.with_name(f".{out.name}.pieces")
    ranked_by = [digest(stored_arrays(model.parameters), {}), k]
    made = client.submit(_prepare, folder, ranked_by, paths, block_bytes, pure=False).result()
    pieces = [piece for _, piece, _ in made]
    resident = client.scatter(model, broadcast=True, hash=False)
    futures = [
        client.submit(_rank, resident, block, k, piece, pure=False)
        for block, piece, is_there in made
        if not is_there
    ]
    try:
        for future in as_completed(futures):
            future.result()
            future.release()
    finally:
        client.cancel(futures)
    written = client.submit(_join, resident, folder, pieces, out, pure=False).result()
    found: Predicted = written._replace(pieces=len(pieces), kept=len(made) - len(futures))
    return found


def _prepare(
    folder: Path, ranked_by: list[Any], paths: Sequence[str], block_bytes: int
) -> list[tuple[FileBlock, Path, bool]]:
    """Cut the files; return the blocks, each with its piece, and whether that is there already.

    A piece's name stands for what it was made of and by: those of other predictions are not used.
    """
    if not folder.parent.is_dir():
        raise InputError(f"cannot be written: there is no directory {folder.parent}", folder.name)
    blocks = plan_files(paths, block_bytes)
    stamps = {path: _stamp(path) for path in {block.path for block in blocks}}
    keys = [tokenize(ranked_by, stamps[block.path], astuple(block)) for block in blocks]
    pieces = [folder / f"{key}.npz" for key in keys]
    with lock_folder(folder, _BUSY):
        return [(*pair, pair[1].exists()) for pair in zip(blocks, pieces, strict=True)]


def _stamp(path: str) -> list[int]:
    """Return what changes with a local file; nothing for a URL."""
    with contextlib.suppress(OSError):
        status = Path(path.removeprefix("file://")).stat()
        return [status.st_size, status.st_mtime_ns]
    return []


def _rank(model: Model, block: FileBlock, k: int, target: Path) -> None:
    """Rank the rows of a block, and write its piece; a second time gives the same."""
    parts = [Block.of(rows, model, k) for rows in read_block_rows(model, block, needs_labels=False)]
    ids = np.concatenate([np.empty((0, k), np.int32), *(part.ids for part in parts)])
    scores = np.concatenate([np.empty((0, k), np.float32), *(part.scores for part in parts)])
    unknown = sum(part.unknown for part in parts)
    partial = target.with_suffix(f".{uuid4().hex}.partial")  # somebody else may try, too
    try:
        with partial.open("wb") as file:
            np.savez(file, ids=ids, scores=scores, unknown=unknown)
        partial.replace(target)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", str(target)) from error
    finally:
        partial.unlink(missing_ok=True)


def _read_piece(path: Path) -> Block:
    with np.load(path, allow_pickle=False) as piece:
        return Block(piece["ids"], piece["scores"], int(piece["unknown"]))


def _join(model: Model, folder: Path, pieces: Sequence[Path], out: Path) -> Predicted:
    """Write the pieces as one file, in the order of the rows, and remove them."""
    with lock_folder(folder, _BUSY):
        written = write_predictions(str(out), model, map(_read_piece, pieces))
        shutil.rmtree(folder)
    return written
