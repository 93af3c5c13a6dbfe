# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""Kernels of the sparse first layer on a CPU: rows are read in place, and only their features used.

Every loop covers a range, so that threads can share the work: the forward product is split by
rows, the update by *columns* of the weight matrix, which needs no locks although rows share
features, and gives the same bits for any number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from daskxml.core.arrays import Array, Csr
from daskxml.kernels.cpu.numba_math import drop_or_scale
from daskxml.kernels.cpu.quantised import forward as forward_quantised
from daskxml.kernels.cpu.thread_team import ThreadTeam, row_grain
from daskxml.kernels.dense import KEEP_ALL, Drop
from daskxml.kernels.quantised import Quantised
from daskxml.kernels.sparse import DeviceCount

_ZERO = np.float32(0.0)
_GRAIN = 1 << 20  # products: a tenth of a millisecond, what a thread takes to wake


@njit(nogil=True, cache=True)
def forward(
    out: Any, indptr: Any, indices: Any, data: Any, rows: Any, weight: Any, bias: Any,
    start: int, stop: int, first_row: int, columns: int, key: Any, limit: Any, scale: Any,
) -> None:  # fmt: skip
    """``out[i] = bias + x[rows[i]] @ weight`` for ``start <= i < stop``."""
    for i in range(start, stop):
        row = rows[i]
        out[i, :] = bias
        for j in range(indptr[row], indptr[row + 1]):
            feature = indices[j]
            value = data[j]
            if limit > 0:
                value = drop_or_scale(value, key, (first_row + i) * columns + feature, limit, scale)
            for c in range(weight.shape[1]):
                out[i, c] += value * weight[feature, c]


@njit(nogil=True, cache=True)
def update(
    weight: Any, indptr: Any, indices: Any, data: Any, rows: Any, delta: Any, factor: Any,
    start: int, stop: int, first_row: int, columns: int, key: Any, limit: Any, scale: Any,
) -> None:  # fmt: skip
    """``weight[:, c] += factor * x[rows].T @ delta[:, c]`` for ``start <= c < stop``."""
    for i in range(rows.shape[0]):
        row = rows[i]
        for j in range(indptr[row], indptr[row + 1]):
            feature = indices[j]
            value = data[j]
            if limit > 0:
                value = drop_or_scale(value, key, (first_row + i) * columns + feature, limit, scale)
            step = factor * value
            target, source = weight[feature, start:stop], delta[i, start:stop]
            for c in range(target.shape[0]):  # from zero: no wraparound, so it vectorizes
                target[c] += step * source[c]


@njit(nogil=True, cache=True)
def densify(
    out: Any, indptr: Any, indices: Any, data: Any, rows: Any,
    first_row: int, columns: int, key: Any, limit: Any, scale: Any,
) -> None:  # fmt: skip
    """``out[i] = x[rows[i]]`` as a dense row."""
    out[:] = _ZERO
    for i in range(rows.shape[0]):
        row = rows[i]
        for j in range(indptr[row], indptr[row + 1]):
            value = data[j]
            if limit > 0:
                counter = (first_row + i) * columns + indices[j]
                value = drop_or_scale(value, key, counter, limit, scale)
            out[i, indices[j]] = value


@njit(nogil=True, cache=True)
def count_nonzeros(indptr: Any, rows: Any) -> int:
    """The stored entries of ``rows``."""
    total = 0
    for row in rows:
        total += indptr[row + 1] - indptr[row]
    return total


@njit(nogil=True, cache=True)
def row_lengths(out: Any, indptr: Any, rows: Any) -> None:
    """``out[i]`` = the stored entries of ``rows[i]``."""
    for i in range(rows.shape[0]):
        out[i] = indptr[rows[i] + 1] - indptr[rows[i]]


@njit(nogil=True, cache=True)
def feature_entries(
    out_columns: Any, out_rows: Any, out_values: Any, indptr: Any, indices: Any, data: Any,
    rows: Any, row_offset: int, first_row: int, columns: int, key: Any, limit: Any, scale: Any,
) -> int:  # fmt: skip
    """Write out the stored entries of ``rows`` that dropout keeps; returns their number."""
    count = 0
    for i in range(rows.shape[0]):
        row = rows[i]
        for j in range(indptr[row], indptr[row + 1]):
            value = data[j]
            if limit > 0:
                counter = (first_row + i) * columns + indices[j]
                value = drop_or_scale(value, key, counter, limit, scale)
                if value == _ZERO:
                    continue
            out_columns[count] = indices[j]
            out_rows[count] = row_offset + i
            out_values[count] = value
            count += 1
    return count


@njit(nogil=True, cache=True)
def group_entries(
    features: Any, starts: Any, out_rows: Any, out_values: Any,
    columns: Any, rows: Any, values: Any, counts: Any,
) -> int:  # fmt: skip
    """Counting sort of entries by column; ``counts`` is zero before and after."""
    count = 0
    for column in columns:
        if counts[column] == 0:
            features[count] = column
            count += 1
        counts[column] += 1
    place = 0
    for i in range(count):
        starts[i] = place
        size = counts[features[i]]
        counts[features[i]] = place  # from here on: where the feature's next entry goes
        place += size
    starts[count] = place
    for e in range(columns.shape[0]):
        target = counts[columns[e]]
        out_rows[target] = rows[e]
        out_values[target] = values[e]
        counts[columns[e]] = target + 1
    for i in range(count):
        counts[features[i]] = 0
    return count


@njit(nogil=True, cache=True)
def gather_rows(
    out: Any, starts: Any, rows: Any, values: Any, delta: Any, start: int, stop: int
) -> None:
    """``out[i] = sum of values[e] * delta[rows[e]]`` for ``start <= i < stop``."""
    for i in range(start, stop):
        target = out[i]
        target[:] = _ZERO
        for e in range(starts[i], starts[i + 1]):
            value, source = values[e], delta[rows[e]]
            for c in range(target.shape[0]):
                target[c] += value * source[c]


class CpuSparse:
    """Implements :class:`daskxml.kernels.sparse.SparseKernels` for host memory."""

    _team: ThreadTeam

    def nonzeros(self, x: Csr, rows: Array) -> int:
        return int(count_nonzeros(x.indptr, rows))

    def row_lengths(self, out: Array, x: Csr, rows: Array) -> None:
        row_lengths(out, x.indptr, rows)

    def sparse_forward(
        self, out: Array, x: Csr, rows: Array, weight: Array, bias: Array, drop: Drop = KEEP_ALL
    ) -> None:
        grain = _grain(rows.shape[0], self.nonzeros(x, rows) * weight.shape[1])
        if isinstance(weight, Quantised):
            parts = weight.first, weight.second, weight.scale
            read = (out, x.indptr, x.indices, _values(x), rows, *parts, bias)
            self._team.run(rows.shape[0], grain, lambda _, *span: forward_quantised(*read, *span))
            return
        operands = (out, x.indptr, x.indices, _values(x), rows, weight, bias)
        counter = _counter(x, drop)
        self._team.run(
            rows.shape[0], grain,
            lambda _, start, stop: forward(*operands, start, stop, *counter),
        )  # fmt: skip

    def sparse_update(
        self, weight: Array, x: Csr, rows: Array, delta: Array, factor: float,
        drop: Drop = KEEP_ALL,
    ) -> None:  # fmt: skip
        step = np.float32(factor)
        operands = (weight, x.indptr, x.indices, _values(x), rows, delta, step)
        units = weight.shape[1]
        grain = max(16, _grain(units, self.nonzeros(x, rows) * units))
        counter = _counter(x, drop)
        self._team.run(
            units, grain,
            lambda _, start, stop: update(*operands, start, stop, *counter),
        )  # fmt: skip

    def feature_entries(
        self, out: tuple[Array, Array, Array], x: Csr, rows: Array, row_offset: int, drop: Drop
    ) -> int:
        operands = (*out, x.indptr, x.indices, _values(x), rows, row_offset)
        return int(feature_entries(*operands, *_counter(x, drop)))

    def densify(self, out: Array, x: Csr, rows: Array, drop: Drop = KEEP_ALL) -> None:
        densify(out, x.indptr, x.indices, _values(x), rows, *_counter(x, drop))

    def group_entries(
        self, features: Array, starts: Array, rows: Array, values: Array,
        entries: tuple[Array, Array, Array], counts: Array,
    ) -> tuple[int, Array | None]:  # fmt: skip
        return int(group_entries(features, starts, rows, values, *entries, counts)), None

    def gather_rows(
        self, out: Array, starts: Array, rows: Array, values: Array, delta: Array,
        device_count: DeviceCount | None = None,
    ) -> None:  # fmt: skip
        self._team.run(
            out.shape[0], row_grain(out.shape[1]),
            lambda _, *span: gather_rows(out, starts, rows, values, delta, *span),
        )  # fmt: skip


def _grain(items: int, products: int) -> int:
    """How many items make waking a thread worthwhile."""
    return max(1, items * _GRAIN // max(1, products))


def _values(x: Csr) -> Array:
    """The stored values; materialized for a matrix of ones (never for labels)."""
    return np.ones(x.nonzeros, np.float32) if x.data is None else x.data


def _counter(x: Csr, drop: Drop) -> tuple[int, int, np.uint64, np.uint64, np.float32]:
    """Dropout's operands, in the order in which the loops take them."""
    return (
        drop.first_row, x.columns, np.uint64(drop.key), np.uint64(drop.limit),
        np.float32(drop.scale),
    )  # fmt: skip
