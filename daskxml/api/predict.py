"""Predictions on a cluster: files of any size, piece by piece, and Dask collections."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import scipy.sparse
from dask import is_dask_collection
from distributed import Client, as_completed

from daskxml.api.collections import lazy_blocks
from daskxml.api.prediction_files import STDOUT, Block, check_target, write_predictions
from daskxml.cluster.connection import running_cluster
from daskxml.core.errors import ConfigError, InputError
from daskxml.core.files import lock_folder, replacing
from daskxml.core.text import parse_json
from daskxml.data.blocks import Block as FileBlock
from daskxml.data.formats import plan_files
from daskxml.models.network.spec import check_rank
from daskxml.models.rankings import empty_rows
from daskxml.models.rows import BLOCK_BYTES, read_block_rows
from daskxml.models.store import stored_arrays
from daskxml.models.tensors import digest
from daskxml.models.trained import Model

PLAN_FILE = "plan.json"
_BUSY = "another prediction to this file is under way"


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What a prediction of files has done.

    Attributes
    ----------
    rows, scores
        How many are in the file.
    pieces
        Blocks of the files, each ranked by one task.
    kept
        Pieces that were there from a prediction that was broken off.
    unknown
        Texts without a word that the model knows.
    out
        The file.
    """

    rows: int
    scores: int
    pieces: int
    kept: int
    out: Path
    unknown: int = 0


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
        return lazy_blocks(client, rows, "rows", meta, _predict, ranking, k)
    if out is None or str(out) == STDOUT:
        raise ConfigError("files are ranked on a cluster into a file: give out, which all reach")
    check_target(str(out))
    paths = [str(path) for path in ([rows] if isinstance(rows, str | Path) else rows)]
    target = Path(out).absolute()
    with running_cluster(client, scheduler) as connected:
        plan = {
            "model": digest(stored_arrays(held.parameters), {}),
            "k": k,
            "block_bytes": block_bytes,
        }
        return _files(connected, ranking, {**plan, "paths": paths}, target)


def _predict(block: Any, model: Model, k: int) -> scipy.sparse.csr_matrix:
    return model.predict(block, k)


def _files(client: Client, model: Model, plan: dict[str, Any], out: Path) -> Predicted:
    """Rank what is missing, and join the pieces; everything on files is done by the workers."""
    folder, k = out.with_name(f".{out.name}.pieces"), plan["k"]
    blocks, found = client.submit(_prepare, folder, plan, pure=False).result()
    missing = sorted(set(range(len(blocks))) - set(found))
    resident = client.scatter(model, broadcast=True, hash=False)
    futures = [
        client.submit(_rank, resident, blocks[number], k, folder, number, pure=False)
        for number in missing
    ]
    try:
        for future in as_completed(futures):
            future.result()
            future.release()
    finally:
        client.cancel(futures)
    joined = client.submit(_join, resident, folder, len(blocks), out, pure=False)
    rows, scores, unknown = joined.result()
    return Predicted(
        rows=rows, scores=scores, pieces=len(blocks), kept=len(found), out=out, unknown=unknown
    )


def _prepare(folder: Path, plan: dict[str, Any]) -> tuple[list[FileBlock], list[int]]:
    """Cut the files; return the blocks, and which pieces are there already."""
    if not folder.parent.is_dir():
        raise InputError(f"cannot be written: there is no directory {folder.parent}", folder.name)
    blocks = plan_files(plan["paths"], plan["block_bytes"])
    stamps = [_stamp(path) for path in dict.fromkeys(block.path for block in blocks)]
    cut = [list(dataclasses.astuple(block)) for block in blocks]
    plan = {**plan, "files": stamps, "blocks": cut}
    with lock_folder(folder, _BUSY):
        file = folder / PLAN_FILE
        if not file.exists():
            with replacing(file) as partial:
                partial.write_text(json.dumps(plan))
        elif _read_plan(file) != plan:
            raise InputError(
                f"{folder} holds pieces of another prediction (other rows, model or k): "
                "remove it, or give another name"
            )
        numbers = range(len(blocks))
        return blocks, [number for number in numbers if _piece(folder, number).exists()]


def _read_plan(file: Path) -> Any:
    try:
        return parse_json(file.read_text())
    except (OSError, ValueError):
        return None


def _stamp(path: str) -> list[int]:
    """Return what changes with a local file; nothing for a URL."""
    with contextlib.suppress(OSError):
        status = Path(path.removeprefix("file://")).stat()
        return [status.st_size, status.st_mtime_ns]
    return []


def _piece(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.npz"


def _rank(model: Model, block: FileBlock, k: int, folder: Path, number: int) -> None:
    """Rank the rows of a block, and write its piece; a second time gives the same."""
    parts, unknown = [], 0
    for part in read_block_rows(model, block, needs_labels=False):
        parts.append(model.predict_top_k(part, k))
        unknown += empty_rows(part.features) if model.header.vectorizer else 0
    ids = np.concatenate([np.empty((0, k), np.int32), *(ids for ids, _ in parts)])
    scores = np.concatenate([np.empty((0, k), np.float32), *(found for _, found in parts)])
    target = _piece(folder, number)
    partial = target.with_name(f"{number:08d}.{uuid4().hex}.partial")  # somebody else may try, too
    try:
        with partial.open("wb") as file:
            np.savez(file, ids=ids, scores=scores, unknown=unknown)
        partial.replace(target)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", str(target)) from error
    finally:
        partial.unlink(missing_ok=True)


def _join(model: Model, folder: Path, pieces: int, out: Path) -> tuple[int, int, int]:
    """Write the pieces as one file, in the order of the rows, and remove them."""

    unknown = 0

    def blocks() -> Iterator[Block]:
        nonlocal unknown
        for number in range(pieces):
            with np.load(_piece(folder, number), allow_pickle=False) as piece:
                unknown += int(piece["unknown"])
                yield piece["ids"], piece["scores"]

    with lock_folder(folder, _BUSY):
        rows, scores = write_predictions(str(out), model, blocks())
        shutil.rmtree(folder)
    return rows, scores, unknown
