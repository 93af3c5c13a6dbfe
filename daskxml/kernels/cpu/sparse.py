# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""Kernels of the sparse first layer on a CPU: rows are read in place, and only their features used.

Every loop covers a range, so that threads can share the work: the forward product is split by
rows, the update by *columns* of the weight matrix, which needs no locks although rows share
features, and gives the same bits for any number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskxml.core.arrays import Array, Csr
from daskxml.core.jit import njit
from daskxml.kernels.cpu.numba_math import drop_or_scale
from daskxml.kernels.cpu.thread_team import ThreadTeam, row_grain
from daskxml.kernels.operands import FINE, KEEP_ALL, DeviceCount, Drop, Quantised

_ZERO, _SECOND = np.float32(0.0), np.float32(1 / FINE)
_GRAIN = 1 << 20  # products: a tenth of a millisecond, what a thread takes to wake


@njit(inline="always")
def _kept(value: Any, i: Any, feature: Any, drop: Any) -> Any:
    """What dropout makes of an entry of a batch's row ``i``."""
    first_row, columns, key, limit, scale = drop
    if limit > 0:
        value = drop_or_scale(value, key, (first_row + i) * columns + feature, limit, scale)
    return value


@njit(nogil=True)
def forward(
    out: Any, x: Any, rows: Any, weight: Any, bias: Any, drop: Any, start: int, stop: int
) -> None:
    """``out[i] = bias + x[rows[i]] @ weight`` for ``start <= i < stop``."""
    indptr, indices, data = x
    for i in range(start, stop):
        row = rows[i]
        out[i, :] = bias
        for j in range(indptr[row], indptr[row + 1]):
            feature = indices[j]
            value = _kept(data[j], i, feature, drop)
            for c in range(weight.shape[1]):
                out[i, c] += value * weight[feature, c]


@njit(nogil=True, fastmath={"contract"})
def forward_quantised(
    out: Any, x: Any, rows: Any, weight: Any, bias: Any, start: int, stop: int
) -> None:
    """As `forward`, of weights in digits, without dropout."""
    (indptr, indices, data), (first, second, scale) = x, weight
    for i in range(start, stop):
        target = out[i]
        target[:] = bias
        for j in range(indptr[rows[i]], indptr[rows[i] + 1]):
            value, digits = data[j] * scale[indices[j]], first[indices[j]]
            for c in range(target.shape[0]):
                target[c] += value * np.float32(digits[c])
            if second.shape[0]:
                value, digits = value * _SECOND, second[indices[j]]
                for c in range(target.shape[0]):
                    target[c] += value * np.float32(digits[c])


@njit(nogil=True)
def update(
    weight: Any, x: Any, rows: Any, delta: Any, factor: Any, drop: Any, start: int, stop: int
) -> None:
    """``weight[:, c] += factor * x[rows].T @ delta[:, c]`` for ``start <= c < stop``."""
    indptr, indices, data = x
    for i in range(rows.shape[0]):
        row = rows[i]
        for j in range(indptr[row], indptr[row + 1]):
            feature = indices[j]
            value = _kept(data[j], i, feature, drop)
            step = factor * value
            target, source = weight[feature, start:stop], delta[i, start:stop]
            for c in range(target.shape[0]):  # from zero: no wraparound, so it vectorizes
                target[c] += step * source[c]


@njit(nogil=True)
def densify(out: Any, x: Any, rows: Any, drop: Any) -> None:
    """``out[i] = x[rows[i]]`` as a dense row."""
    indptr, indices, data = x
    out[:] = _ZERO
    for i in range(rows.shape[0]):
        for j in range(indptr[rows[i]], indptr[rows[i] + 1]):
            out[i, indices[j]] = _kept(data[j], i, indices[j], drop)


@njit(nogil=True)
def count_nonzeros(indptr: Any, rows: Any) -> int:
    """The stored entries of ``rows``."""
    total = 0
    for row in rows:
        total += indptr[row + 1] - indptr[row]
    return total


@njit(nogil=True)
def feature_entries(
    out_columns: Any, out_rows: Any, out_values: Any, x: Any, rows: Any, row_offset: int, drop: Any
) -> int:
    """Write out the stored entries of ``rows`` that dropout keeps; returns their number."""
    indptr, indices, data = x
    count = 0
    for i in range(rows.shape[0]):
        for j in range(indptr[rows[i]], indptr[rows[i] + 1]):
            value = _kept(data[j], i, indices[j], drop)
            if value == _ZERO and drop[3] > 0:
                continue
            out_columns[count] = indices[j]
            out_rows[count] = row_offset + i
            out_values[count] = value
            count += 1
    return count


@njit(nogil=True)
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


@njit(nogil=True)
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
    """Implements :class:`daskxml.kernels.Kernels` for host memory."""

    _team: ThreadTeam

    def nonzeros(self, x: Csr, rows: Array) -> int:
        return int(count_nonzeros(x.indptr, rows))

    def row_lengths(self, out: Array, x: Csr, rows: Array) -> None:
        np.subtract(x.indptr[rows + 1], x.indptr[rows], out=out, casting="unsafe")

    def sparse_forward(
        self, out: Array, x: Csr, rows: Array, weight: Array, bias: Array, drop: Drop = KEEP_ALL
    ) -> None:
        grain = _grain(rows.shape[0], self.nonzeros(x, rows) * weight.shape[1])
        if isinstance(weight, Quantised):
            digits = weight.first, weight.second, weight.scale
            read = (out, arrays_of(x), rows, digits, bias)
            self._team.run(rows.shape[0], grain, lambda _, *span: forward_quantised(*read, *span))
            return
        operands = (out, arrays_of(x), rows, weight, bias, _counter(x, drop))
        self._team.run(rows.shape[0], grain, lambda _, *span: forward(*operands, *span))

    def sparse_update(
        self, weight: Array, x: Csr, rows: Array, delta: Array, factor: float,
        drop: Drop = KEEP_ALL,
    ) -> None:  # fmt: skip
        units = weight.shape[1]
        grain = max(16, _grain(units, self.nonzeros(x, rows) * units))
        operands = (weight, arrays_of(x), rows, delta, np.float32(factor), _counter(x, drop))
        self._team.run(units, grain, lambda _, *span: update(*operands, *span))

    def feature_entries(
        self, out: tuple[Array, Array, Array], x: Csr, rows: Array, row_offset: int, drop: Drop
    ) -> int:
        return int(feature_entries(*out, arrays_of(x), rows, row_offset, _counter(x, drop)))

    def densify(self, out: Array, x: Csr, rows: Array, drop: Drop = KEEP_ALL) -> None:
        densify(out, arrays_of(x), rows, _counter(x, drop))

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


def arrays_of(x: Csr) -> tuple[Array, Array, Array]:
    """Row pointers, columns and values; ones are materialized (never for labels)."""
    return x.indptr, x.indices, np.ones(x.nonzeros, np.float32) if x.data is None else x.data


def _counter(x: Csr, drop: Drop) -> tuple[int, int, np.uint64, np.uint64, np.float32]:
    """Dropout's operands, in the order in which the loops take them."""
    return (
        drop.first_row, x.columns, np.uint64(drop.key), np.uint64(drop.limit),
        np.float32(drop.scale),
    )  # fmt: skip
