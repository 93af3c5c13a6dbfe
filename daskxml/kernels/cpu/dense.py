# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""Kernels on dense arrays on a CPU: BLAS products, and Numba loops over layers and flat vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import uint16, uint32

from daskxml.core.arrays import Array
from daskxml.core.jit import njit
from daskxml.kernels.cpu import numba_math
from daskxml.kernels.cpu.gemm import gemm
from daskxml.kernels.cpu.numba_math import drop_or_scale, exp32, float16_bits, float16_value
from daskxml.kernels.cpu.thread_team import ThreadTeam
from daskxml.kernels.operands import Drop

_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)
_NORM_BLOCK = 1 << 16
_FLAT_GRAIN = 1 << 18  # floats: below, waking a thread costs more than it saves


@njit(nogil=True)
def relu(x: Any) -> None:
    """``x = max(x, 0)``; NaN stays."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] = _ZERO if x[i, j] <= _ZERO else x[i, j]


@njit(nogil=True, fastmath={"contract"}, error_model="numpy")
def sigmoid(x: Any) -> None:
    """``x = 1 / (1 + exp(-x))``."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] = _ONE / (_ONE + exp32(-x[i, j]))


@njit(nogil=True)
def relu_gradient(delta: Any, active: Any) -> None:
    """``delta = 0`` where the unit was not active."""
    for i in range(delta.shape[0]):
        for j in range(delta.shape[1]):
            delta[i, j] = _ZERO if active[i, j] <= _ZERO else delta[i, j]


@njit(nogil=True)
def sigmoid_gradient(delta: Any, active: Any, keep: Any) -> None:
    """``delta *= a * (1 - a)`` with ``a = keep * active``, its value before dropout."""
    for i in range(delta.shape[0]):
        for j in range(delta.shape[1]):
            value = keep * active[i, j]
            delta[i, j] *= value * (_ONE - value)


@njit(nogil=True)
def dropout(x: Any, first_row: int, key: Any, limit: Any, scale: Any) -> None:
    """Zero a unit or scale it, by the hash of its position in the batch."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] = drop_or_scale(x[i, j], key, (first_row + i) * x.shape[1] + j, limit, scale)


@njit(nogil=True)
def column_sums(out: Any, x: Any) -> None:
    """``out[j] = x[:, j].sum()``, row by row."""
    out[:] = _ZERO
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[j] += x[i, j]


@njit(nogil=True)
def add_scaled(out: Any, x: Any, factor: Any) -> None:
    """``out += factor * x``."""
    for i in range(out.shape[0]):
        out[i] += factor * x[i]


@njit(nogil=True)
def momentum(out: Any, current: Any, previous: Any, gamma: Any) -> None:
    """``out += gamma * (current - previous)``."""
    for i in range(out.shape[0]):
        out[i] += gamma * (current[i] - previous[i])


@njit(nogil=True)
def add_two(out: Any, x: Any, a: Any, y: Any, b: Any) -> None:
    """``out += a * x + b * y``."""
    for i in range(out.shape[0]):
        out[i] += a * x[i] + b * y[i]


@njit(nogil=True)
def axpby(out: Any, x: Any, a: Any, y: Any, b: Any) -> None:
    """``out = a * x + b * y``."""
    for i in range(out.shape[0]):
        out[i] = a * x[i] + b * y[i]


@njit(nogil=True)
def axpby_in_place(out: Any, a: Any, x: Any, b: Any) -> None:
    """``out = a * out + b * x``."""
    for i in range(out.shape[0]):
        out[i] = a * out[i] + b * x[i]


@njit(nogil=True, fastmath={"reassoc", "contract"})
def dots(x: Any, y: Any) -> Any:
    """``x . y``, ``x . x`` and ``y . y`` in float64; as fast as the cache for short arrays."""
    xy, xx, yy = 0.0, 0.0, 0.0
    for i in range(x.shape[0]):
        a, b = np.float64(x[i]), np.float64(y[i])
        xy += a * b
        xx += a * a
        yy += b * b
    return xy, xx, yy


@njit(nogil=True)
def largest_word(words: Any) -> Any:
    """The largest magnitude; ``words`` and the result are the floats' bits as uint32.

    Magnitudes are in the order of their bits, with infinity and then NaN after all numbers.
    """
    best, magnitude = np.uint32(0), np.uint32(0x7FFFFFFF)
    for i in range(words.shape[0]):
        word = np.uint32(words[i] & magnitude)
        best = word if word > best else best
    return best


@njit(nogil=True, fastmath={"reassoc"})
def squared_norm(x: Any) -> float:
    """Sum of squares in float64, in blocks whose sums are added in order."""
    total = 0.0
    for start in range(0, x.shape[0], _NORM_BLOCK):
        block = x[start : start + _NORM_BLOCK]  # with bounds of its own the loop vectorizes
        part = 0.0
        for i in range(block.shape[0]):
            value = np.float64(block[i])
            part += value * value
        total += part
    return total


@njit(nogil=True)
def sum64(x: Any) -> float:
    """The sum, in order."""
    total = 0.0
    for value in x:
        total += value
    return total


@njit(nogil=True)
def to_float16(out: Any, x: Any, factor: Any) -> None:
    """``out = factor * x``, from float32 to float16."""
    for i in range(out.shape[0]):
        out[i] = float16_bits(factor * x[i])


@njit(nogil=True)
def from_float16(out: Any, x: Any, factor: Any) -> None:
    """``out = factor * x``, from float16 to float32."""
    for i in range(out.shape[0]):
        out[i] = factor * float16_value(x[i])


@njit(nogil=True)
def to_bfloat16(out: Any, x: Any, factor: Any) -> None:
    """``out = factor * x``, from float32 to bfloat16: the nearest, ties to even."""
    for i in range(out.shape[0]):
        value = factor * x[i]
        bits = np.float32(value).view(np.uint32)
        rounded = (bits + uint32(0x7FFF) + ((bits >> uint32(16)) & uint32(1))) >> uint32(16)
        quiet = (bits >> uint32(16)) | uint32(0x40)  # rounding could turn a NaN into infinity
        out[i] = uint16(rounded if value == value else quiet)


@njit(nogil=True)
def from_bfloat16(out: Any, x: Any, factor: Any) -> None:
    """``out = factor * x``, from bfloat16 to float32."""
    for i in range(out.shape[0]):
        out[i] = factor * np.uint32(uint32(x[i]) << uint32(16)).view(np.float32)


class CpuDense:
    """Implements :class:`daskxml.kernels.Kernels` for host memory."""

    _team: ThreadTeam
    # These take their operands as they are.
    squared_norm = staticmethod(squared_norm)
    gemm = staticmethod(gemm)
    column_sums = staticmethod(column_sums)

    def copy(self, out: Array, x: Array) -> None:
        self._flat(out, lambda part: np.copyto(out[part], x[part]))

    def fill(self, out: Array, value: float) -> None:
        out[...] = value

    def deferred_sum(self, *terms: tuple[Array, float]) -> float:
        return sum(factor * sum64(x) for x, factor in terms)

    def scale(self, out: Array, x: Array, factor: float) -> None:
        f = np.float32(factor)
        self._flat(out, lambda part: np.multiply(x[part], f, out=out[part]))

    def add_scaled(self, out: Array, x: Array, factor: float) -> None:
        f = np.float32(factor)
        self._flat(out, lambda part: add_scaled(out[part], x[part], f))

    def momentum(self, out: Array, current: Array, previous: Array, gamma: float) -> None:
        g = np.float32(gamma)
        self._flat(out, lambda part: momentum(out[part], current[part], previous[part], g))

    def add_two(self, out: Array, x: Array, a: float, y: Array, b: float) -> None:
        f, g = np.float32(a), np.float32(b)
        self._flat(out, lambda part: add_two(out[part], x[part], f, y[part], g))

    def axpby(self, out: Array, x: Array, a: float, y: Array, b: float) -> None:
        f, g = np.float32(a), np.float32(b)
        if out is x:  # loops over arrays that may overlap are not vectorized
            self._flat(out, lambda part: axpby_in_place(out[part], f, y[part], g))
        elif out is y:
            self._flat(out, lambda part: axpby_in_place(out[part], g, x[part], f))
        else:
            self._flat(out, lambda part: axpby(out[part], x[part], f, y[part], g))

    def dots(self, x: Array, y: Array) -> tuple[float, float, float]:
        xy, xx, yy = dots(x, y)
        return float(xy), float(xx), float(yy)

    def largest(self, x: Array) -> float:
        word = largest_word(x.view(np.uint32))
        return float(np.uint32(word).view(np.float32))

    def convert(self, out: Array, x: Array, factor: float) -> None:
        f = np.float32(factor)
        if out.dtype == np.uint16:
            self._flat(out, lambda p: to_bfloat16(out[p], x[p], f))
        elif x.dtype == np.uint16:
            self._flat(out, lambda p: from_bfloat16(out[p], x[p], f))
        elif not numba_math.HAS_FLOAT16:
            np.multiply(x, f, out=out, dtype=np.float32, casting="same_kind")
        elif out.dtype == np.float16:
            self._flat(out, lambda p: to_float16(out[p].view(np.uint16), x[p], f))
        else:
            self._flat(out, lambda p: from_float16(out[p], x[p].view(np.uint16), f))

    def fill_rows(self, out: Array, row: Array) -> None:
        out[...] = row

    def activate(self, x: Array, activation: str) -> None:
        {"relu": relu, "sigmoid": sigmoid}[activation](x)

    def activation_gradient(
        self, delta: Array, active: Array, activation: str, keep: float = 1.0
    ) -> None:
        if activation == "relu":
            relu_gradient(delta, active)
        else:
            sigmoid_gradient(delta, active, np.float32(keep))

    def dropout(self, x: Array, drop: Drop) -> None:
        if drop.rate > 0.0:
            dropout(
                x, drop.first_row, np.uint64(drop.key), np.uint64(drop.limit),
                np.float32(drop.scale),
            )  # fmt: skip

    def _flat(self, out: Array, work: Callable[[slice], object]) -> None:
        self._team.run(out.shape[0], _FLAT_GRAIN, lambda _, start, stop: work(slice(start, stop)))
