"""Naive twins of the kernels on dense arrays."""

import math

import numpy as np

from daskxml.core.arrays import Array
from daskxml.kernels.operands import Drop
from harness.naive_hash import hash64


class NaiveDense:
    """Implements :class:`daskxml.kernels.Kernels` in plain NumPy."""

    def copy(self, out: Array, x: Array) -> None:
        out[:] = x

    def fill(self, out: Array, value: float) -> None:
        out[...] = value

    def deferred_sum(self, *terms: tuple[Array, float]) -> float:
        return sum(factor * math.fsum(x) for x, factor in terms)

    def scale(self, out: Array, x: Array, factor: float) -> None:
        out[:] = factor * x

    def add_scaled(self, out: Array, x: Array, factor: float) -> None:
        out += factor * x

    def momentum(self, out: Array, current: Array, previous: Array, gamma: float) -> None:
        out += gamma * (current - previous)

    def add_two(self, out: Array, x: Array, a: float, y: Array, b: float) -> None:
        out += a * x + b * y

    def axpby(self, out: Array, x: Array, a: float, y: Array, b: float) -> None:
        out[:] = a * x + b * y

    def dots(self, x: Array, y: Array) -> tuple[float, float, float]:
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        return math.fsum(x * y), math.fsum(x * x), math.fsum(y * y)

    def largest(self, x: Array) -> float:
        return float(np.abs(x).max(initial=0.0))

    def convert(self, out: Array, x: Array, factor: float) -> None:
        if out.dtype == np.uint16:
            scaled = np.float32(factor) * np.asarray(x, np.float32)
            out[:] = [_nearest_bfloat16(value) for value in scaled]
        elif x.dtype == np.uint16:
            widened = (x.astype(np.uint32) << 16).view(np.float32)
            out[:] = widened * np.float32(factor)
        else:
            out[:] = np.asarray(x, np.float32) * np.float32(factor)

    def squared_norm(self, x: Array) -> float:
        return math.fsum(float(value) ** 2 for value in x)

    def gemm(self, out: Array, a: Array, b: Array, alpha: float = 1.0, beta: float = 0.0) -> None:
        out[:] = alpha * (a @ b) + (beta * out if beta else 0.0)

    def fill_rows(self, out: Array, row: Array) -> None:
        out[:] = row

    def column_sums(self, out: Array, x: Array) -> None:
        out[:] = x.sum(axis=0)

    def activate(self, x: Array, activation: str) -> None:
        x[:] = np.maximum(x, 0) if activation == "relu" else sigmoid(x)

    def activation_gradient(
        self, delta: Array, active: Array, activation: str, keep: float = 1.0
    ) -> None:
        value = keep * active
        delta *= active > 0 if activation == "relu" else value * (1 - value)

    def dropout(self, x: Array, drop: Drop) -> None:
        x *= drop_factors(x.shape[0], x.shape[1], drop).astype(x.dtype)


def drop_factors(rows: int, columns: int, drop: Drop) -> Array:
    """``(rows, columns)`` float64: 0 where ``drop`` drops, else its scale.

    Examples
    --------
    >>> from daskxml.kernels.operands import KEEP_ALL
    >>> drop_factors(1, 2, KEEP_ALL)
    array([[1., 1.]])
    """
    out = np.empty((rows, columns))
    for row in range(rows):
        for column in range(columns):
            place = (drop.first_row + row) * columns + column
            kept = hash64(drop.key, place) >> 32 >= drop.limit
            out[row, column] = drop.scale if kept else 0.0
    return out


def sigmoid(x: Array) -> Array:
    """``1 / (1 + exp(-x))`` in float64, without overflow.

    Examples
    --------
    >>> sigmoid(np.array([-1e4, 0.0, 1e4]))
    array([0. , 0.5, 1. ])
    """
    small = np.exp(-np.abs(np.asarray(x, np.float64)))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def to_bfloat16(x: Array) -> Array:
    """The bits of the nearest bfloat16, ties to even; NaN stays NaN.

    Examples
    --------
    >>> from_bfloat16(to_bfloat16(np.array([1.0, 1.01, np.nan], np.float32)))
    array([1.       , 1.0078125,       nan], dtype=float32)
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    near = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), (bits >> 16) | 0x40, near).astype(np.uint16)


def from_bfloat16(bits: Array) -> Array:
    """The values of bfloat16 bits, as float32.

    Examples
    --------
    >>> from_bfloat16(np.array([0x3F80], np.uint16))
    array([1.], dtype=float32)
    """
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def _nearest_bfloat16(value: np.float32) -> int:
    """The bits of the nearest bfloat16; ties to even."""
    below = int(value.view(np.uint32)) >> 16
    if np.isnan(value):
        return below | 0x40
    if np.isinf(value):
        return below
    distances = [abs(float(value) - _bfloat16_value(bits)) for bits in (below, below + 1)]
    if distances[0] == distances[1]:
        return below + below % 2
    return below if distances[0] < distances[1] else below + 1


def _bfloat16_value(bits: int) -> float:
    """The value of the bits; infinity counts as the number that would follow the largest."""
    if bits & 0x7FFF == 0x7F80:
        return -(2.0**128) if bits & 0x8000 else 2.0**128
    return float(np.uint32(bits << 16).view(np.float32))
