"""Numba kernels on dense arrays: activations, dropout and the flat vectors that merging uses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from daskxml.ops.numba_math import exp32
from daskxml.ops.numba_sparse import kept

_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)
_NORM_BLOCK = 1 << 16


@njit(nogil=True, cache=True)
def relu(x: Any) -> None:
    """``x = max(x, 0)``; NaN stays."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] = _ZERO if x[i, j] <= _ZERO else x[i, j]


@njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
def sigmoid(x: Any) -> None:
    """``x = 1 / (1 + exp(-x))``."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] = _ONE / (_ONE + exp32(-x[i, j]))


@njit(nogil=True, cache=True)
def relu_gradient(delta: Any, active: Any) -> None:
    """``delta = 0`` where the unit was not active."""
    for i in range(delta.shape[0]):
        for j in range(delta.shape[1]):
            delta[i, j] = _ZERO if active[i, j] <= _ZERO else delta[i, j]


@njit(nogil=True, cache=True)
def sigmoid_gradient(delta: Any, active: Any, keep: Any) -> None:
    """``delta *= a * (1 - a)`` with ``a = keep * active``, the value before dropout scaled it."""
    for i in range(delta.shape[0]):
        for j in range(delta.shape[1]):
            value = keep * active[i, j]
            delta[i, j] *= value * (_ONE - value)


@njit(nogil=True, cache=True)
def dropout(x: Any, first_row: int, key: Any, limit: Any, scale: Any) -> None:
    """Zero a unit or scale it, by the hash of its place in the batch."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] = kept(x[i, j], key, (first_row + i) * x.shape[1] + j, limit, scale)


@njit(nogil=True, cache=True)
def column_sums(out: Any, x: Any) -> None:
    """``out[j] = x[:, j].sum()``, row by row."""
    out[:] = _ZERO
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[j] += x[i, j]


@njit(nogil=True, cache=True)
def scale(out: Any, x: Any, factor: Any) -> None:
    """``out = factor * x``."""
    for i in range(out.shape[0]):
        out[i] = factor * x[i]


@njit(nogil=True, cache=True)
def scale_own(out: Any, factor: Any) -> None:
    """``out *= factor``."""
    for i in range(out.shape[0]):
        out[i] *= factor


@njit(nogil=True, cache=True)
def add_scaled(out: Any, x: Any, factor: Any) -> None:
    """``out += factor * x``."""
    for i in range(out.shape[0]):
        out[i] += factor * x[i]


@njit(nogil=True, cache=True)
def momentum(out: Any, current: Any, previous: Any, gamma: Any) -> None:
    """``out += gamma * (current - previous)``."""
    for i in range(out.shape[0]):
        out[i] += gamma * (current[i] - previous[i])


@njit(nogil=True, cache=True)
def add_two(out: Any, x: Any, a: Any, y: Any, b: Any) -> None:
    """``out += a * x + b * y``."""
    for i in range(out.shape[0]):
        out[i] += a * x[i] + b * y[i]


@njit(nogil=True, cache=True)
def weigh_two(out: Any, x: Any, a: Any, y: Any, b: Any) -> None:
    """``out = a * x + b * y``."""
    for i in range(out.shape[0]):
        out[i] = a * x[i] + b * y[i]


@njit(nogil=True, cache=True)
def weigh_own(out: Any, a: Any, x: Any, b: Any) -> None:
    """``out = a * out + b * x``."""
    for i in range(out.shape[0]):
        out[i] = a * out[i] + b * x[i]


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def dots(x: Any, y: Any) -> Any:
    """``x . y``, ``x . x`` and ``y . y`` in float64; as fast as the cache for short arrays."""
    xy, xx, yy = 0.0, 0.0, 0.0
    for i in range(x.shape[0]):
        a, b = np.float64(x[i]), np.float64(y[i])
        xy += a * b
        xx += a * a
        yy += b * b
    return xy, xx, yy


@njit(nogil=True, cache=True)
def largest_word(words: Any) -> Any:
    """The largest magnitude; ``words`` and the result are the floats' bits as uint32.

    Magnitudes are in the order of their bits, with infinity and then NaN behind all numbers.
    """
    best, magnitude = np.uint32(0), np.uint32(0x7FFFFFFF)
    for i in range(words.shape[0]):
        word = np.uint32(words[i] & magnitude)
        best = word if word > best else best
    return best


@njit(nogil=True, cache=True, fastmath={"reassoc"})
def squared_norm(x: Any) -> float:
    """Sum of squares in float64, in blocks whose sums are added in order."""
    total = 0.0
    for start in range(0, x.shape[0], _NORM_BLOCK):
        block = x[start : start + _NORM_BLOCK]  # with its own bounds the loop becomes vectors
        part = 0.0
        for i in range(block.shape[0]):
            value = np.float64(block[i])
            part += value * value
        total += part
    return total


@njit(nogil=True, cache=True)
def all_finite(words: Any) -> bool:
    """Whether no exponent is all ones; ``words`` are the floats' bits as uint32."""
    mask = np.uint32(0x7F800000)
    for start in range(0, words.shape[0], _NORM_BLOCK):
        block = words[start : start + _NORM_BLOCK]  # as above
        bad = False
        for i in range(block.shape[0]):
            bad |= (block[i] & mask) == mask
        if bad:
            return False
    return True
