"""The model that answers requests, and rows of concurrent requests, ranked together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from daskxml.core.errors import DaskxmlError
from daskxml.models.rankings import Ranking
from daskxml.models.store import folder_to_read, read_model, version_of
from daskxml.models.trained import Model

# Requests that one call answers: they want as many labels of the same model.
Group = list[tuple[scipy.sparse.csr_matrix, asyncio.Future[Ranking]]]

# As many rows, or fewer, are ranked one at a time: a row alone has a path of its own, while a
# product of so few rows takes longer than each of them by itself.
_FEW_ROWS = 3


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model, ready to answer.

    Attributes
    ----------
    model
        With everything loaded and compiled that predictions need.
    version
        The first digits of the digest of its arrays.
    feature_ids
        The number of each feature by its name; empty if the model has none.
    """

    model: Model
    version: str
    feature_ids: dict[str, int]

    @classmethod
    def load(cls, directory: Path) -> ServedModel:
        """Read, verify and warm up a model.

        Raises
        ------
        ModelError
            If there is none, or it is damaged.
        """
        version = version_of(directory)  # before the model: one written meanwhile is seen as new
        with folder_to_read(directory) as folder:
            # Not mapped: whoever overwrites the files would change the model, or end the process.
            model = Model(*read_model(folder, mapped=False), threads=1)
        model.warm_up()
        ids = {name: column for column, name in enumerate(model.header.feature_names)}
        return cls(model, version, ids)


class BusyError(DaskxmlError):
    """More rows are waiting than the server is set to hold."""


class Batches:
    """Gathers the rows of requests while the workers are busy, and ranks them in one call.

    A request that finds an idle worker waits for nobody.

    Parameters
    ----------
    workers
        Calls at a time.
    most_rows
        Of a call; one request's rows stay together.
    most_waiting
        Rows that may wait in all.
    on_batch
        Called with the number of rows of each call.
    """

    def __init__(
        self, *, workers: int, most_rows: int, most_waiting: int, on_batch: Callable[[int], object]
    ) -> None:
        self._pool = ThreadPoolExecutor(workers, "daskxml-rank")
        self._idle = asyncio.Semaphore(workers)
        self._most_rows, self._most_waiting = most_rows, most_waiting
        self._on_batch = on_batch
        self._open: dict[tuple[ServedModel, int], Group] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting_rows = 0

    async def rank(self, served: ServedModel, rows: scipy.sparse.csr_matrix, k: int) -> Ranking:
        """Return the best ``k`` labels of each row; see `Model.predict_top_k`.

        Raises
        ------
        BusyError
            If too many rows are waiting.
        InputError, ConfigError
            As `Model.predict_top_k` does.
        """
        count = rows.shape[0]
        if self._waiting_rows + count > self._most_waiting:
            raise BusyError(f"{self._waiting_rows:,} rows are waiting: try again later")
        self._waiting_rows += count
        key = (served, k)
        group = self._open.get(key)
        if group is None or _count(group) + count > self._most_rows:
            group = self._open[key] = []
            task = asyncio.create_task(self._answer(key, group))
            self._tasks.add(task)  # else it might be collected
            task.add_done_callback(self._tasks.discard)
        future: asyncio.Future[Ranking] = asyncio.get_running_loop().create_future()
        group.append((rows, future))
        try:
            return await future
        finally:
            self._waiting_rows -= count

    async def _answer(self, key: tuple[ServedModel, int], group: Group) -> None:
        async with self._idle:
            if self._open.get(key) is group:
                del self._open[key]
            served, k = key
            rows = [matrix for matrix, _ in group]
            self._on_batch(_count(group))
            loop = asyncio.get_running_loop()
            try:
                ids, scores = await loop.run_in_executor(self._pool, _rank, served, rows, k)
            except Exception as error:
                for _, future in group:
                    if not future.done():
                        future.set_exception(error)
                return
        first = 0
        for matrix, future in group:
            span = slice(first, first + matrix.shape[0])
            first = span.stop
            if not future.done():  # its client has gone
                future.set_result((ids[span], scores[span]))

    def close(self) -> None:
        """Stop the workers."""
        self._pool.shutdown()


def _count(group: Group) -> int:
    return sum(matrix.shape[0] for matrix, _ in group)


def _rank(served: ServedModel, rows: list[Any], k: int) -> Ranking:
    matrix = rows[0] if len(rows) == 1 else scipy.sparse.vstack(rows, format="csr")
    count = matrix.shape[0]
    if not 1 < count <= _FEW_ROWS:
        return served.model.predict_top_k(matrix, k)
    found = [served.model.predict_top_k(matrix[i : i + 1], k) for i in range(count)]
    ids, scores = zip(*found, strict=True)
    return np.concatenate(ids), np.concatenate(scores)
