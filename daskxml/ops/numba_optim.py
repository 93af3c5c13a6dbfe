"""Numba kernels of the optimizers: one pass over weights, gradient and moments, row by row.

Every kernel covers a range of the gradient's rows, which no two lanes share, so there are no locks
and the bits do not depend on the number of lanes.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
from numba import njit

from daskxml.ops.numba_sparse import kept

_ZERO = np.float32(0.0)


@njit(nogil=True, cache=True)
def feature_entries(
    out_columns: Any, out_rows: Any, out_values: Any, indptr: Any, indices: Any, data: Any,
    rows: Any, place: int, first_row: int, columns: int, key: Any, limit: Any, scale: Any,
) -> int:  # fmt: skip
    """Write out the stored entries of ``rows`` that dropout keeps; how many they are."""
    count = 0
    for i in range(rows.shape[0]):
        row = rows[i]
        for j in range(indptr[row], indptr[row + 1]):
            value = data[j]
            if limit > 0:
                value = kept(value, key, (first_row + i) * columns + indices[j], limit, scale)
                if value == _ZERO:
                    continue
            out_columns[count] = indices[j]
            out_rows[count] = place + i
            out_values[count] = value
            count += 1
    return count


@njit(nogil=True, cache=True)
def group_entries(
    features: Any, starts: Any, out_rows: Any, out_values: Any,
    columns: Any, rows: Any, values: Any, tally: Any,
) -> int:  # fmt: skip
    """Sort entries by column, by counting; ``tally`` is zero before and after."""
    count = 0
    for column in columns:
        if tally[column] == 0:
            features[count] = column
            count += 1
        tally[column] += 1
    place = 0
    for i in range(count):
        starts[i] = place
        size = tally[features[i]]
        tally[features[i]] = place  # from here on: where the feature's next entry goes
        place += size
    starts[count] = place
    for e in range(columns.shape[0]):
        target = tally[columns[e]]
        out_rows[target] = rows[e]
        out_values[target] = values[e]
        tally[columns[e]] = target + 1
    for i in range(count):
        tally[features[i]] = 0
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


@njit(nogil=True, cache=True)
def _is_zero(row: Any) -> bool:
    for value in row:  # noqa: SIM110 (Numba knows no generators here)
        if value != _ZERO:  # true for a NaN: it must not hide
            return False
    return True


@njit(nogil=True, cache=True)
def sgd(
    weight: Any, grad: Any, ids: Any, some: bool, waits: bool, scale: Any,
    start: int, stop: int, lr: Any, keep: Any,
) -> None:  # fmt: skip
    """``w = keep * w - lr * g``."""
    for k in range(start, stop):
        g = grad[k]
        if waits and _is_zero(g):
            continue
        w = weight[ids[k] if some else k]
        for c in range(g.shape[0]):
            w[c] = keep * w[c] - lr * (scale * g[c])


@njit(nogil=True, cache=True)
def momentum(
    weight: Any, buffer: Any, grad: Any, ids: Any, some: bool, waits: bool, scale: Any,
    start: int, stop: int, lr: Any, keep: Any, rate: Any,
) -> None:  # fmt: skip
    """``b = rate * b + g``; ``w = keep * w - lr * b``."""
    for k in range(start, stop):
        g = grad[k]
        if waits and _is_zero(g):
            continue
        row = ids[k] if some else k
        w, b = weight[row], buffer[row]
        for c in range(g.shape[0]):
            b[c] = rate * b[c] + scale * g[c]
            w[c] = keep * w[c] - lr * b[c]


@njit(nogil=True, cache=True)
def nesterov(
    weight: Any, buffer: Any, grad: Any, ids: Any, some: bool, waits: bool, scale: Any,
    start: int, stop: int, lr: Any, keep: Any, rate: Any,
) -> None:  # fmt: skip
    """``b = rate * b + g``; ``w = keep * w - lr * (g + rate * b)``."""
    for k in range(start, stop):
        g = grad[k]
        if waits and _is_zero(g):
            continue
        row = ids[k] if some else k
        w, b = weight[row], buffer[row]
        for c in range(g.shape[0]):
            slope = scale * g[c]
            b[c] = rate * b[c] + slope
            w[c] = keep * w[c] - lr * (slope + rate * b[c])


@njit(nogil=True, cache=True, error_model="numpy")
def adam(
    weight: Any, first: Any, second: Any, grad: Any, ids: Any, some: bool, waits: bool,
    scale: Any, start: int, stop: int, lr: Any, keep: Any, beta1: Any, rest1: Any, beta2: Any,
    rest2: Any, root: Any, epsilon: Any,
) -> None:  # fmt: skip
    """Moments, then ``w = keep * w - lr * m / (root * sqrt(v) + epsilon)``."""
    for k in range(start, stop):
        g = grad[k]
        if waits and _is_zero(g):
            continue
        row = ids[k] if some else k
        w, m, v = weight[row], first[row], second[row]
        for c in range(g.shape[0]):
            slope = scale * g[c]
            mean = beta1 * m[c] + rest1 * slope
            square = beta2 * v[c] + rest2 * (slope * slope)
            m[c] = mean
            v[c] = square
            w[c] = keep * w[c] - lr * mean / (root * sqrt(square) + epsilon)


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc"})
def lamb_moments(
    norms: Any, weight: Any, first: Any, second: Any, grad: Any, ids: Any, some: bool,
    waits: bool, scale: Any, start: int, stop: int, factor: Any, decay: Any, beta1: Any,
    rest1: Any, beta2: Any, rest2: Any, root: Any, epsilon: Any,
) -> None:  # fmt: skip
    """Moments, and the squares of each row's weights and update."""
    for k in range(start, stop):
        g = grad[k]
        norms[0, k], norms[1, k] = 0.0, 0.0
        if waits and _is_zero(g):
            continue
        row = ids[k] if some else k
        w, m, v = weight[row], first[row], second[row]
        weights, updates = 0.0, 0.0
        for c in range(g.shape[0]):
            slope = scale * g[c]
            mean = beta1 * m[c] + rest1 * slope
            square = beta2 * v[c] + rest2 * (slope * slope)
            m[c] = mean
            v[c] = square
            move = factor * mean / (root * sqrt(square) + epsilon) + decay * w[c]
            weights += np.float64(w[c]) * np.float64(w[c])
            updates += np.float64(move) * np.float64(move)
        norms[0, k], norms[1, k] = weights, updates


@njit(nogil=True, cache=True, error_model="numpy")
def lamb(
    weight: Any, first: Any, second: Any, grad: Any, ids: Any, some: bool, waits: bool,
    start: int, stop: int, lr: Any, factor: Any, decay: Any, root: Any, epsilon: Any,
) -> None:  # fmt: skip
    """``w -= lr * (factor * m / (root * sqrt(v) + epsilon) + decay * w)``."""
    for k in range(start, stop):
        if waits and _is_zero(grad[k]):
            continue
        row = ids[k] if some else k
        w, m, v = weight[row], first[row], second[row]
        for c in range(w.shape[0]):
            w[c] -= lr * (factor * m[c] / (root * sqrt(v[c]) + epsilon) + decay * w[c])
