"""Rows of concurrent requests, ranked together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy.sparse

from daskxml.cli.serving.models import ServedModel
from daskxml.core.errors import DaskxmlError
from daskxml.models.rankings import Ids, Scores

Ranking = tuple[Ids, Scores]

# As many rows, or fewer, are ranked one at a time: a row alone has a path of its own, while a
# product of so few rows takes longer than each of them by itself.
_FEW_ROWS = 3


class BusyError(DaskxmlError):
    """More rows are waiting than the server is set to hold."""


class _Group:
    """Requests that one call answers: they want as many labels of the same model."""

    def __init__(self) -> None:
        self.waiting: list[tuple[scipy.sparse.csr_matrix, asyncio.Future[Ranking]]] = []
        self.rows = 0
        self.is_full = asyncio.Event()


class Batches:
    """Gathers the rows of requests while the workers are busy, and ranks them in one call.

    A request that finds an idle worker waits for nobody, unless ``wait_s`` is set.

    Parameters
    ----------
    workers
        Calls at a time.
    most_rows
        Of a call; one request's rows stay together.
    most_waiting
        Rows that may wait in all.
    wait_s
        How long a request waits for others although a worker is idle.
    on_batch
        Called with the number of rows of each call.
    """

    def __init__(
        self, *, workers: int, most_rows: int, most_waiting: int, wait_s: float,
        on_batch: Callable[[int], object],
    ) -> None:  # fmt: skip
        self._pool = ThreadPoolExecutor(workers, "daskxml-rank")
        self._idle = asyncio.Semaphore(workers)
        self._most_rows, self._most_waiting = most_rows, most_waiting
        self._wait_s, self._on_batch = wait_s, on_batch
        self._open: dict[tuple[ServedModel, int], _Group] = {}
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
        try:
            return await self._join(served, rows, k)
        finally:
            self._waiting_rows -= count

    def _join(
        self, served: ServedModel, rows: scipy.sparse.csr_matrix, k: int
    ) -> asyncio.Future[Ranking]:
        key, count = (served, k), rows.shape[0]
        group = self._open.get(key)
        if group is None or group.rows + count > self._most_rows:
            if group is not None:
                group.is_full.set()
            group = self._open[key] = _Group()
            task = asyncio.create_task(self._answer(key, group))
            self._tasks.add(task)  # else it might be collected
            task.add_done_callback(self._tasks.discard)
        future: asyncio.Future[Ranking] = asyncio.get_running_loop().create_future()
        group.waiting.append((rows, future))
        group.rows += count
        if group.rows >= self._most_rows:
            group.is_full.set()
        return future

    async def _answer(self, key: tuple[ServedModel, int], group: _Group) -> None:
        if self._wait_s:
            await asyncio.wait([asyncio.ensure_future(group.is_full.wait())], timeout=self._wait_s)
        async with self._idle:
            if self._open.get(key) is group:
                del self._open[key]
            served, k = key
            rows = [matrix for matrix, _ in group.waiting]
            self._on_batch(group.rows)
            loop = asyncio.get_running_loop()
            try:
                ids, scores = await loop.run_in_executor(self._pool, _rank, served, rows, k)
            except Exception as error:
                for _, future in group.waiting:
                    if not future.done():
                        future.set_exception(error)
                return
        first = 0
        for matrix, future in group.waiting:
            span = slice(first, first + matrix.shape[0])
            first = span.stop
            if not future.done():  # its client has gone
                future.set_result((ids[span], scores[span]))

    def close(self) -> None:
        """Stop the workers."""
        self._pool.shutdown()


def _rank(served: ServedModel, rows: list[Any], k: int) -> Ranking:
    matrix = rows[0] if len(rows) == 1 else scipy.sparse.vstack(rows, format="csr")
    count = matrix.shape[0]
    if not 1 < count <= _FEW_ROWS:
        return served.model.predict_top_k(matrix, k)
    found = [served.model.predict_top_k(matrix[i : i + 1], k) for i in range(count)]
    ids, scores = zip(*found, strict=True)
    return np.concatenate(ids), np.concatenate(scores)
