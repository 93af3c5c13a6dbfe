# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""The kernels on flat vectors on a GPU."""

from __future__ import annotations

from typing import Any, SupportsFloat

import numpy as np

from daskxml.ops.cuda_device import Device
from daskxml.ops.cuda_late import LateSums
from daskxml.types import Array

THREADS = 256
SUM_THREADS = 512
_MOST_BLOCKS = 1 << 14  # more than any GPU runs at a time
SUM_BLOCKS = 256  # fixed, for sums are formed block by block
_INFINITY = 0x7F800000


def grid(items: int) -> tuple[tuple[int], tuple[int]]:
    """Blocks and threads for a kernel that takes one number after the other.

    Examples
    --------
    >>> grid(257)
    ((2,), (256,))
    """
    return (min(_MOST_BLOCKS, -(-items // THREADS)),), (THREADS,)


class CudaFlat:
    """Implements the part of :class:`daskxml.ops.Kernels` on flat vectors for a GPU."""

    _device: Device
    _late: LateSums

    def copy(self, out: Array, x: Array) -> None:
        """``out`` may be an array of the host: that waits."""
        if self._device.holds(out):
            self._device.copy(out, x)
        else:
            np.copyto(out, self._device.download(x))

    def fill(self, out: Array, value: float) -> None:
        if value == 0:
            self._device.clear(out)
            return
        kind = f"uint{8 * out.itemsize}"
        word, size = np.array(value, str(out.dtype)).view(kind)[()], int(out.size)
        words = out.reshape(-1).view(kind)
        self._device.launch(f"fill_{kind}", *grid(size), words, word, np.int64(size))

    def sum64(self, x: Array) -> float:
        return float(self._parts("sum_parts", 1, x).sum())

    def late_sum(self, *terms: tuple[Array, float]) -> SupportsFloat:
        late, size = self._late.new(), SUM_THREADS
        for x, factor in terms:
            operands = x, np.float64(factor), np.int64(x.shape[0])
            self._device.launch("add_sum", (1,), (size,), late.place, *operands)
        return late

    def scale(self, out: Array, x: Array, factor: float) -> None:
        self._flat("scale", out, x, np.float32(factor))

    def add_scaled(self, out: Array, x: Array, factor: float) -> None:
        self._flat("add_scaled", out, x, np.float32(factor))

    def momentum(self, out: Array, current: Array, previous: Array, gamma: float) -> None:
        self._flat("add_change", out, current, previous, np.float32(gamma))

    def add_two(self, out: Array, x: Array, a: float, y: Array, b: float) -> None:
        self._flat("add_two", out, x, np.float32(a), y, np.float32(b))

    def weigh_two(self, out: Array, x: Array, a: float, y: Array, b: float) -> None:
        self._flat("weigh_two", out, x, np.float32(a), y, np.float32(b))

    def dots(self, x: Array, y: Array) -> tuple[float, float, float]:
        xy, xx, yy = self._parts("dot_parts", 3, x, y).sum(axis=1).tolist()
        return xy, xx, yy

    def largest(self, x: Array) -> float:
        return float(np.uint32(self._largest_word(x)).view(np.float32))

    def convert(self, out: Array, x: Array, factor: float) -> None:
        f = np.float32(factor)
        if str(out.dtype) == "uint16":
            self._flat("to_bfloat", out, x, f)
        elif str(x.dtype) == "uint16":
            self._flat("from_bfloat", out, x, f)
        elif str(out.dtype) == "float16":
            self._flat("narrow", out.view("uint16"), x, f)
        else:
            self._flat("widen", out, x.view("uint16"), f)

    def squared_norm(self, x: Array) -> float:
        return float(self._parts("square_parts", 1, x).sum())

    def all_finite(self, x: Array) -> bool:
        return self._largest_word(x) < _INFINITY

    def _flat(self, name: str, out: Array, *operands: Any) -> None:
        size = int(out.shape[0])
        self._device.launch(name, *grid(size), out, *operands, np.int64(size))

    def _parts(self, name: str, sums: int, *operands: Array) -> Array:
        """Each block's sums, ``(sums, blocks)``, on the host; zeros of nothing."""
        size = int(operands[0].shape[0])
        blocks = max(1, min(SUM_BLOCKS, -(-size // THREADS)))
        parts = self._device.scratch()((sums, blocks), "float64")
        self._device.launch(name, (blocks,), (THREADS,), parts, *operands, np.int64(size))
        return self._device.download(parts)

    def _largest_word(self, x: Array) -> int:
        word, size = self._device.scratch()(1, "uint32"), int(x.shape[0])
        self._device.clear(word)
        blocks = (min(SUM_BLOCKS, -(-size // THREADS)),)
        self._device.launch("largest_word", blocks, (THREADS,), word, x, np.int64(size))
        return int(self._device.download(word)[0])
