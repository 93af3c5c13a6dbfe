# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""The kernels on flat vectors, slow and obvious."""

from __future__ import annotations

import math

import numpy as np

from daskxml.types import Array


class NaiveFlat:
    """Implements the part of :class:`daskxml.ops.Kernels` on flat vectors in plain NumPy."""

    def copy(self, out: Array, x: Array) -> None:
        out[:] = x

    def fill(self, out: Array, value: float) -> None:
        out[...] = value

    def sum64(self, x: Array) -> float:
        return math.fsum(x)

    def late_sum(self, *terms: tuple[Array, float]) -> float:
        return sum(factor * self.sum64(x) for x, factor in terms)

    def scale(self, out: Array, x: Array, factor: float) -> None:
        out[:] = factor * x

    def add_scaled(self, out: Array, x: Array, factor: float) -> None:
        out += factor * x

    def momentum(self, out: Array, current: Array, previous: Array, gamma: float) -> None:
        out += gamma * (current - previous)

    def add_two(self, out: Array, x: Array, a: float, y: Array, b: float) -> None:
        out += a * x + b * y

    def weigh_two(self, out: Array, x: Array, a: float, y: Array, b: float) -> None:
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

    def all_finite(self, x: Array) -> bool:
        return bool(np.isfinite(x).all())


def _nearest_bfloat16(value: np.float32) -> int:
    """The bits of the nearest bfloat16; of two that are as near, those that end in 0."""
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
    """What bits stand for; infinity counts as the number that would come after the largest."""
    if bits & 0x7FFF == 0x7F80:
        return -(2.0**128) if bits & 0x8000 else 2.0**128
    return float(np.uint32(bits << 16).view(np.float32))
