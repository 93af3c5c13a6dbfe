# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""Kernels on dense arrays on a GPU: cuBLAS products, layers and flat vectors."""

from __future__ import annotations

from typing import Any, SupportsFloat

import numpy as np

from daskxml.core.arrays import Array
from daskxml.kernels.cuda.device import CudaDevice, DeferredSums, product_of
from daskxml.kernels.dense import Drop

THREADS = 256
SUM_THREADS = 512
_MOST_BLOCKS = 1 << 14  # more than any GPU runs at the same time
SUM_BLOCKS = 256  # fixed: the order of summation depends on it
_INFINITY = 0x7F800000
_SUM_HEIGHT, _MOST_SUMS = 64, 64  # rows whose sum a block forms, and the most such sums


def grid(items: int) -> tuple[tuple[int], tuple[int]]:
    """Blocks and threads for an elementwise kernel.

    Examples
    --------
    >>> grid(257)
    ((2,), (256,))
    """
    return (min(_MOST_BLOCKS, -(-items // THREADS)),), (THREADS,)


class CudaDense:
    """Implements :class:`daskxml.kernels.dense.DenseKernels` for a GPU."""

    _device: CudaDevice
    _deferred: DeferredSums

    def copy(self, out: Array, x: Array) -> None:
        """``out`` may be a host array: that synchronizes."""
        if self._device.holds(out):
            self._device.copy(out, x)
        else:
            np.copyto(out, self._device.download(x))

    def fill(self, out: Array, value: float) -> None:
        if value == 0:
            self._device.clear(out)
            return
        kind = f"uint{8 * out.itemsize}"
        word, size = np.array(value, out.dtype).view(kind)[()], int(out.size)
        words = out.reshape(-1).view(kind)
        self._device.launch(f"fill_{kind}", *grid(size), words, word, np.int64(size))

    def sum64(self, x: Array) -> float:
        return float(self._parts("sum_parts", 1, x).sum())

    def deferred_sum(self, *terms: tuple[Array, float]) -> SupportsFloat:
        total = self._deferred.new()
        for x, factor in terms:
            operands = x, np.float64(factor), np.int64(x.shape[0])
            self._device.launch("add_sum", (1,), (SUM_THREADS,), total.place, *operands)
        return total

    def scale(self, out: Array, x: Array, factor: float) -> None:
        self._flat("scale", out, x, np.float32(factor))

    def add_scaled(self, out: Array, x: Array, factor: float) -> None:
        self._flat("add_scaled", out, x, np.float32(factor))

    def momentum(self, out: Array, current: Array, previous: Array, gamma: float) -> None:
        self._flat("add_change", out, current, previous, np.float32(gamma))

    def add_two(self, out: Array, x: Array, a: float, y: Array, b: float) -> None:
        self._flat("add_two", out, x, np.float32(a), y, np.float32(b))

    def axpby(self, out: Array, x: Array, a: float, y: Array, b: float) -> None:
        self._flat("axpby", out, x, np.float32(a), y, np.float32(b))

    def dots(self, x: Array, y: Array) -> tuple[float, float, float]:
        xy, xx, yy = self._parts("dot_parts", 3, x, y).sum(axis=1).tolist()
        return xy, xx, yy

    def largest(self, x: Array) -> float:
        return float(np.uint32(self._largest_word(x)).view(np.float32))

    def convert(self, out: Array, x: Array, factor: float) -> None:
        f = np.float32(factor)
        if out.dtype == np.uint16:
            self._flat("to_bfloat16", out, x, f)
        elif x.dtype == np.uint16:
            self._flat("from_bfloat16", out, x, f)
        elif out.dtype == np.float16:
            self._flat("to_float16", out.view("uint16"), x, f)
        else:
            self._flat("from_float16", out, x.view("uint16"), f)

    def squared_norm(self, x: Array) -> float:
        return float(self._parts("square_parts", 1, x).sum())

    def all_finite(self, x: Array) -> bool:
        return self._largest_word(x) < _INFINITY

    def gemm(self, out: Array, a: Array, b: Array, alpha: float = 1.0, beta: float = 0.0) -> None:
        product = product_of(out, a, b)
        if product.k > 0:
            self._device.gemm(product, alpha, beta)
        elif beta == 0.0:  # without reading it
            self._device.clear(out)
        else:
            self.scale(out.reshape(-1), out.reshape(-1), beta)

    def fill_rows(self, out: Array, row: Array) -> None:
        size, columns = int(out.size), np.int32(out.shape[1])
        self._device.launch("fill_rows", *grid(size), out, row, columns, np.int64(size))

    def column_sums(self, out: Array, x: Array) -> None:
        """In two steps where there are many rows: sums of parts first."""
        rows, columns = (int(size) for size in x.shape)
        parts = max(1, min(_MOST_SUMS, -(-rows // _SUM_HEIGHT)))
        height = max(1, -(-rows // parts))
        parts = max(1, -(-rows // height))
        sums = out if parts == 1 else self._device.scratch()((parts, columns), "float32")
        wide, many = (-(-columns // 32), parts), np.int32(columns)
        self._device.launch(
            "column_sums", wide, (32, 8), sums, x, np.int64(rows), many, np.int64(height)
        )
        if parts > 1:
            self._device.launch(
                "column_sums", (wide[0], 1), (32, 8), out, sums, np.int64(parts), many,
                np.int64(parts),
            )  # fmt: skip

    def activate(self, x: Array, activation: str) -> None:
        self._device.launch(activation, *grid(int(x.size)), x, np.int64(x.size))

    def activation_gradient(
        self, delta: Array, active: Array, activation: str, keep: float = 1.0
    ) -> None:
        size, wide = np.int64(delta.size), grid(int(delta.size))
        if activation == "relu":
            self._device.launch("relu_gradient", *wide, delta, active, size)
        else:
            self._device.launch("sigmoid_gradient", *wide, delta, active, np.float32(keep), size)

    def dropout(self, x: Array, drop: Drop) -> None:
        if drop.limit == 0:
            return
        first, size = drop.first_row * int(x.shape[1]), int(x.size)
        self._device.launch(
            "dropout", *grid(size), x, np.int64(first), np.uint64(drop.key),
            np.uint64(drop.limit), np.float32(drop.scale), np.int64(size),
        )  # fmt: skip

    def _flat(self, name: str, out: Array, *operands: Any) -> None:
        size = int(out.shape[0])
        self._device.launch(name, *grid(size), out, *operands, np.int64(size))

    def _parts(self, name: str, sums: int, *operands: Array) -> Array:
        """Each block's sums, ``(sums, blocks)``, on the host; zeros for an empty vector."""
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


def dense_scratch_bytes(units: int) -> int:
    """Temporary memory of the sums of `CudaDense`."""
    return 4 * _MOST_SUMS * units + 8 * 4 * SUM_BLOCKS
