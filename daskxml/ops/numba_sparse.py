"""Numba kernels of the sparse first layer: rows are read in place, and only their features used.

Every kernel covers a range, so that several lanes can share the work: the forward product is
split by rows, the update by *columns* of the weight matrix, which needs no locks although two
rows share a feature, and gives the same bits for any number of lanes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from daskxml.ops.numba_math import hash64

_ZERO = np.float32(0.0)


@njit(inline="always", cache=True)
def kept(value: Any, key: Any, counter: Any, limit: Any, scale: Any) -> Any:
    """``value * scale``, or zero where the hash of ``counter`` falls below ``limit``."""
    return value * scale if (hash64(key, counter) >> np.uint64(32)) >= limit else _ZERO


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
                value = kept(value, key, (first_row + i) * columns + feature, limit, scale)
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
                value = kept(value, key, (first_row + i) * columns + feature, limit, scale)
            step = factor * value
            target, source = weight[feature, start:stop], delta[i, start:stop]
            for c in range(target.shape[0]):  # from zero: no wraparound, so it vectorises
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
                value = kept(value, key, counter, limit, scale)
            out[i, indices[j]] = value


@njit(nogil=True, cache=True)
def count(indptr: Any, rows: Any) -> int:
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


@njit(inline="always", cache=True)
def _first_at_least(indices: Any, start: Any, stop: Any, wanted: Any) -> Any:
    low, high = start, stop
    while low < high:
        middle = (low + high) >> 1
        if indices[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def target_logits(
    out: Any, logits: Any, bias: Any, indptr: Any, indices: Any, rows: Any,
    first_row: int, first_label: int,
) -> None:  # fmt: skip
    """``out[r] += sum of logits[l, r] + bias[l]`` over row ``r``'s labels in the block."""
    last = first_label + logits.shape[0]
    for i in range(rows.shape[0]):
        stop = indptr[rows[i] + 1]
        j = _first_at_least(indices, indptr[rows[i]], stop, first_label)
        while j < stop and indices[j] < last:
            label = indices[j] - first_label
            out[first_row + i] += logits[label, first_row + i] + bias[label]
            j += 1


@njit(nogil=True, cache=True)
def subtract_targets(
    delta: Any, bias_gradient: Any, weights: Any, indptr: Any, indices: Any, rows: Any,
    first_row: int, first_label: int,
) -> None:  # fmt: skip
    """Subtract ``weights[r]`` at row ``r``'s labels in the block, from the row sums too."""
    last = first_label + delta.shape[0]
    for i in range(rows.shape[0]):
        stop = indptr[rows[i] + 1]
        j = _first_at_least(indices, indptr[rows[i]], stop, first_label)
        while j < stop and indices[j] < last:
            label = indices[j] - first_label
            delta[label, first_row + i] -= weights[first_row + i]
            bias_gradient[label] -= weights[first_row + i]
            j += 1
