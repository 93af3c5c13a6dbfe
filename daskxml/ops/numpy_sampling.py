# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""The kernels of sampling on a CPU: Numba loops, shared among threads where that pays."""

from __future__ import annotations

import numpy as np

from daskxml.ops import numba_sampling
from daskxml.ops.lanes import Lanes
from daskxml.types import Array, Csr

_GRAIN = 1 << 17  # elements looked at, a tenth of a millisecond: less wakes no other thread


class NumpySampling:
    """Implements :class:`daskxml.ops.sampling_protocol.SamplingKernels` for host memory."""

    _lanes: Lanes

    def sign_keys(self, out: Array, projected: Array, extra: Array, weights: Array) -> None:
        self._lanes.run(
            out.shape[1], _items(projected.shape[1]),
            lambda _, *span: numba_sampling.sign_keys(out, projected, extra, weights, *span),
        )  # fmt: skip

    def winner_keys(self, out: Array, x: Array, bins: Array, skips_zeros: bool) -> None:
        self._lanes.run(
            out.shape[1], _items(bins.size),
            lambda _, *span: numba_sampling.winner_keys(out, x, bins, skips_zeros, *span),
        )  # fmt: skip

    def fill_buckets(self, starts: Array, members: Array, keys: Array) -> None:
        tables, labels = keys.shape
        self._lanes.run(
            tables, _items(labels),
            lambda _, *span: numba_sampling.fill_buckets(starts, members, keys, *span),
        )  # fmt: skip

    def count_votes(self, votes: Array, keys: Array, starts: Array, members: Array) -> None:
        tables, rows = keys.shape
        met = rows * max(1, members.shape[1] // (starts.shape[1] - 1))  # in one table, at the least
        used = self._lanes.run(
            tables, _items(met),
            lambda lane, *span: numba_sampling.count_votes(
                votes[lane], keys, starts, members, *span
            ),
        )  # fmt: skip
        for lane in range(1, used):
            votes[0] += votes[lane]

    def add_targets(self, ids: Array, place: Array, count: int, y: Csr, rows: Array) -> int:
        return int(numba_sampling.add_targets(ids, place, count, y.indptr, y.indices, rows))

    def add_popular(
        self, ids: Array, place: Array, count: int, votes: Array, most: int, key: int
    ) -> int:
        return int(numba_sampling.add_popular(ids, place, count, votes, most, np.uint64(key)))

    def add_random(self, ids: Array, place: Array, count: int, most: int, key: int) -> int:
        return int(numba_sampling.add_random(ids, place, count, most, np.uint64(key)))

    def place_targets(
        self, indptr: Array, indices: Array, place: Array, y: Csr, rows: Array
    ) -> None:
        numba_sampling.place_targets(indptr, indices, place, y.indptr, y.indices, rows)

    def clear_places(self, place: Array, ids: Array) -> None:
        numba_sampling.clear_places(place, ids)

    def take_rows(self, out: Array, x: Array, ids: Array) -> None:
        into, source = (a if a.ndim > 1 else a.reshape(-1, 1) for a in (out, x))
        self._lanes.run(
            into.shape[0], _items(into.shape[1]),
            lambda _, *span: numba_sampling.take_rows(into, source, ids, *span),
        )  # fmt: skip


def _items(each: int) -> int:
    """How many items of so many elements are worth waking a thread for."""
    return max(1, _GRAIN // max(1, each))
