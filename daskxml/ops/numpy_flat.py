# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""The kernels on flat vectors on a CPU: what merging and combining need, shared among threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from daskxml.ops import numba_dense, numba_half, numba_labels
from daskxml.ops.bfloat import from_bfloat, to_bfloat
from daskxml.ops.lanes import Lanes
from daskxml.types import Array

_FLAT_GRAIN = 1 << 18  # floats: below, waking a thread costs more than it saves


class NumpyFlat:
    """Implements the part of :class:`daskxml.ops.Kernels` on flat vectors for host memory."""

    _lanes: Lanes

    def copy(self, out: Array, x: Array) -> None:
        self._flat(out, lambda part: np.copyto(out[part], x[part]))

    def fill(self, out: Array, value: float) -> None:
        out[...] = value

    def sum64(self, x: Array) -> float:
        return float(numba_labels.sum64(x))

    def late_sum(self, *terms: tuple[Array, float]) -> float:
        return sum(factor * self.sum64(x) for x, factor in terms)

    def scale(self, out: Array, x: Array, factor: float) -> None:
        f = np.float32(factor)
        if out is x:  # a loop of its own: arrays that overlap are not vectorised
            self._flat(out, lambda part: numba_dense.scale_own(out[part], f))
        else:
            self._flat(out, lambda part: numba_dense.scale(out[part], x[part], f))

    def add_scaled(self, out: Array, x: Array, factor: float) -> None:
        f = np.float32(factor)
        self._flat(out, lambda part: numba_dense.add_scaled(out[part], x[part], f))

    def momentum(self, out: Array, current: Array, previous: Array, gamma: float) -> None:
        g = np.float32(gamma)
        self._flat(
            out, lambda part: numba_dense.momentum(out[part], current[part], previous[part], g)
        )

    def add_two(self, out: Array, x: Array, a: float, y: Array, b: float) -> None:
        f, g = np.float32(a), np.float32(b)
        self._flat(out, lambda part: numba_dense.add_two(out[part], x[part], f, y[part], g))

    def weigh_two(self, out: Array, x: Array, a: float, y: Array, b: float) -> None:
        f, g = np.float32(a), np.float32(b)
        if out is x:  # for the same reason
            self._flat(out, lambda part: numba_dense.weigh_own(out[part], f, y[part], g))
        elif out is y:
            self._flat(out, lambda part: numba_dense.weigh_own(out[part], g, x[part], f))
        else:
            self._flat(out, lambda part: numba_dense.weigh_two(out[part], x[part], f, y[part], g))

    def dots(self, x: Array, y: Array) -> tuple[float, float, float]:
        xy, xx, yy = numba_dense.dots(x, y)
        return float(xy), float(xx), float(yy)

    def largest(self, x: Array) -> float:
        word = numba_dense.largest_word(x.view(np.uint32))
        return float(np.uint32(word).view(np.float32))

    def convert(self, out: Array, x: Array, factor: float) -> None:
        f = np.float32(factor)
        if out.dtype == np.uint16:
            out[:] = to_bfloat(f * x)
        elif x.dtype == np.uint16:
            np.multiply(from_bfloat(x), f, out=out)
        elif not numba_half.IS_NATIVE:
            np.multiply(x, f, out=out, dtype=np.float32, casting="same_kind")
        elif out.dtype == np.float16:
            self._flat(out, lambda p: numba_half.narrow(out[p].view(np.uint16), x[p], f))
        else:
            self._flat(out, lambda p: numba_half.widen(out[p], x[p].view(np.uint16), f))

    def squared_norm(self, x: Array) -> float:
        return float(numba_dense.squared_norm(x))

    def all_finite(self, x: Array) -> bool:
        return bool(numba_dense.all_finite(x.view(np.uint32)))

    def _flat(self, out: Array, work: Callable[[slice], object]) -> None:
        self._lanes.run(out.shape[0], _FLAT_GRAIN, lambda _, start, stop: work(slice(start, stop)))
