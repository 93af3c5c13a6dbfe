"""Predictions on a cluster: files of any size, block by block, and Dask collections."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from dask import is_dask_collection
from distributed import Client, Future

from daskxml.api.collections import lazy_blocks
from daskxml.api.prediction_files import Block, check_target, write_predictions
from daskxml.api.run import awaitable
from daskxml.cluster.connection import kept, running_cluster, submit
from daskxml.core.errors import ConfigError
from daskxml.data.blocks import Block as FileBlock
from daskxml.data.formats import plan_files
from daskxml.data.tables import in_order
from daskxml.models.network.spec import check_rank
from daskxml.models.rows import BLOCK_BYTES, read_block_rows
from daskxml.models.trained import Model

AHEAD = 4  # blocks for each thread of the cluster that wait, are ranked, or are to be written
Ranked = Generator[Block, None, None]


@awaitable
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
    worker, and written here, in the order of the rows. A worker that is lost leaves its blocks to
    others.

    Parameters
    ----------
    model
        A model, or the directory of one or of a run.
    rows
        Files (paths, fsspec URLs, globs) of any format, which all workers reach, or a Dask array or
        data frame of features.
    k
        Labels of each row.
    out
        For files: ``.npz``, ``.csv``, ``.jsonl`` or ``.parquet``, as ``daskxml predict`` writes
        them; ``-`` is JSON lines on the standard output.
    block_bytes
        About how much of a file is a block, where its format can be cut.
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
    ranking = replace(held, threads=1)
    if is_dask_collection(rows):
        meta = scipy.sparse.csr_matrix((0, held.spec.labels), dtype=np.float32)
        rows = in_order(rows, held.header.feature_names)
        return lazy_blocks(client, rows, "rows", meta, ranking, "predict", k)
    if out is None:
        raise ConfigError("files are ranked on a cluster into a file: give out")
    check_target(str(out))
    paths = [str(path) for path in ([rows] if isinstance(rows, str | Path) else rows)]
    with running_cluster(client, scheduler) as connected:
        return write_predictions(str(out), held, _files(connected, ranking, paths, k, block_bytes))


def _files(client: Client, model: Model, paths: list[str], k: int, block_bytes: int) -> Ranked:
    """Rank blocks, some ahead, and yield what was found in the order of the rows."""
    blocks = iter(submit(client, plan_files, paths, block_bytes).result())
    resident, futures = kept(client, model), deque[Future]()
    try:
        while True:
            ahead = AHEAD * sum(client.nthreads().values()) - len(futures)
            for block in islice(blocks, max(1, ahead)):
                futures.append(submit(client, _rank, resident, block, k))
            if not futures:
                return
            yield from futures.popleft().result()
    finally:
        client.cancel([*futures])


def _rank(model: Model, block: FileBlock, k: int) -> list[Block]:
    rows = read_block_rows(model, block, needs_labels=False)
    return [Block.of(part, model, k) for part in rows]
