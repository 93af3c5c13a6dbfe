# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""The kernels on flat vectors, slow and obvious."""

from __future__ import annotations

import math

import numpy as np

from daskxml.ops.bfloat import from_bfloat, to_bfloat
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
        values = from_bfloat(x) if x.dtype == np.uint16 else np.asarray(x, np.float32)
        values = values * np.float32(factor)
        out[:] = to_bfloat(values) if out.dtype == np.uint16 else values

    def squared_norm(self, x: Array) -> float:
        return math.fsum(float(value) ** 2 for value in x)

    def all_finite(self, x: Array) -> bool:
        return bool(np.isfinite(x).all())
