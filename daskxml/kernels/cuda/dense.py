# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""Kernels on dense arrays on a GPU: cuBLAS products, layers, flat vectors, optimizers' steps."""

from __future__ import annotations

from typing import Any, SupportsFloat

import numpy as np

from daskxml.core.arrays import Array
from daskxml.kernels.cuda.device import NULL, THREADS, DeviceKernels, grid
from daskxml.kernels.operands import (
    DeviceCount,
    DeviceKey,
    DeviceNumber,
    Drop,
    RowGradient,
    RuleStep,
)

f32 = np.float32

SUM_THREADS = 512
SUM_BLOCKS = 256  # fixed: the order of summation depends on it
_SUM_HEIGHT, _MOST_SUMS = 64, 64  # rows whose sum a block forms, and the most such sums


class CudaDense(DeviceKernels):
    """The part of `daskxml.kernels.Kernels` on dense arrays and of optimizers, for a GPU."""

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
        words = out.reshape(-1).view(kind)
        self._each(f"fill_{kind}", int(out.size), words, np.array(value, out.dtype).view(kind)[()])

    def deferred_sum(self, *terms: tuple[Array, float]) -> SupportsFloat:
        total = self._deferred.new()
        for x, factor in terms:
            operands = x, np.float64(factor), np.int64(x.shape[0])
            self._device.launch("add_sum", (1,), (SUM_THREADS,), total.place, *operands)
        return total

    def scale(self, out: Array, x: Array, factor: float) -> None:
        self._each("scale", int(out.shape[0]), out, x, f32(factor))

    def add_scaled(self, out: Array, x: Array, factor: float) -> None:
        self._each("add_scaled", int(out.shape[0]), out, x, f32(factor))

    def momentum(self, out: Array, current: Array, previous: Array, gamma: float) -> None:
        self._each("add_change", int(out.shape[0]), out, current, previous, f32(gamma))

    def add_two(self, out: Array, x: Array, a: float, y: Array, b: float) -> None:
        self._each("add_two", int(out.shape[0]), out, x, f32(a), y, f32(b))

    def axpby(self, out: Array, x: Array, a: float, y: Array, b: float) -> None:
        self._each("axpby", int(out.shape[0]), out, x, f32(a), y, f32(b))

    def dots(self, x: Array, y: Array) -> tuple[float, float, float]:
        xy, xx, yy = self._parts("dot_parts", 3, x, y).sum(axis=1).tolist()
        return xy, xx, yy

    def largest(self, x: Array) -> float:
        word, size = self._device.scratch()(1, "uint32"), int(x.shape[0])
        self._device.clear(word)
        blocks = (min(SUM_BLOCKS, -(-size // THREADS)),)
        self._device.launch("largest_word", blocks, (THREADS,), word, x, np.int64(size))
        return float(self._device.download(word).view(np.float32)[0])

    def convert(self, out: Array, x: Array, factor: float) -> None:
        direction, short = ("from", x) if out.dtype == np.float32 else ("to", out)
        kind = "float16" if short.dtype == np.float16 else "bfloat16"
        bits = [a if a.dtype == np.float32 else a.view("uint16") for a in (out, x)]
        self._each(f"{direction}_{kind}", int(out.shape[0]), *bits, f32(factor))

    def squared_norm(self, x: Array) -> float:
        return float(self._parts("square_parts", 1, x).sum())

    def gemm(self, out: Array, a: Array, b: Array, alpha: float = 1.0, beta: float = 0.0) -> None:
        if not out.flags.c_contiguous:
            raise ValueError("gemm writes into contiguous rows only")
        if a.shape[1] > 0 and isinstance(alpha, DeviceNumber):
            factors = self._device.scratch()(2, "float32")
            self._device.launch(
                "set_factors", (1,), (32,), factors, *rate_operands(alpha), f32(beta)
            )
            self._device.gemm(out, a, b, 0.0, 0.0, factors)
        elif a.shape[1] > 0:
            self._device.gemm(out, a, b, alpha, beta)
        elif beta == 0.0:  # without reading it
            self._device.clear(out)
        else:
            self.scale(out.reshape(-1), out.reshape(-1), beta)

    def fill_rows(self, out: Array, row: Array) -> None:
        self._each("fill_rows", int(out.size), out, row, np.int32(out.shape[1]))

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
        self._each(activation, int(x.size), x)

    def activation_gradient(
        self, delta: Array, active: Array, activation: str, keep: float = 1.0
    ) -> None:
        operands = (delta, active) if activation == "relu" else (delta, active, f32(keep))
        self._each(f"{activation}_gradient", int(delta.size), *operands)

    def dropout(self, x: Array, drop: Drop) -> None:
        if drop.limit == 0:
            return
        first = np.int64(drop.first_row * int(x.shape[1]))
        place = drop.key.place if isinstance(drop.key, DeviceKey) else NULL
        stream = place, np.uint64(drop.key), np.uint64(drop.limit), f32(drop.scale)
        self._each("dropout", int(x.size), x, first, *stream)

    def _parts(self, name: str, sums: int, *operands: Array) -> Array:
        """Each block's sums, ``(sums, blocks)``, on the host; zeros for an empty vector."""
        size = int(operands[0].shape[0])
        blocks = max(1, min(SUM_BLOCKS, -(-size // THREADS)))
        parts = self._device.scratch()((sums, blocks), "float64")
        self._device.launch(name, (blocks,), (THREADS,), parts, *operands, np.int64(size))
        return self._device.download(parts)

    # -- optimizers --------------------------------------------------------------------------------

    def sgd_rows(self, weight: Array, gradient: RowGradient, lr: float, keep: float) -> None:
        self._step("sgd", gradient, (weight,), *rate_operands(lr), f32(keep))

    def moment_rows(
        self, rule: str, weight: Array, moments: tuple[Array, ...], gradient: RowGradient,
        step: RuleStep,
    ) -> None:  # fmt: skip
        arrays, keep = (weight, *moments), f32(step.keep)
        if rule == "momentum":
            rates = f32(step.lr), keep, f32(step.momentum), np.int32(step.is_nesterov)
            self._step(rule, gradient, arrays, *rates)
        elif rule == "adam":
            factor = f32(step.lr * step.first_factor)
            self._step(rule, gradient, arrays, factor, keep, *_constants(step))
        else:
            rates = f32(step.lr), keep, *_constants(step)[2:]
            self._step("row_rms", gradient, arrays, *rates, of_rows=True)

    def lamb_moments(
        self, norms: Array, weight: Array, first: Array, second: Array, gradient: RowGradient,
        adam: RuleStep,
    ) -> None:  # fmt: skip
        rates = f32(adam.first_factor), f32(adam.weight_decay), *_constants(adam)
        arrays = norms, weight, first, second
        self._step("lamb_moments", gradient, arrays, *rates, of_rows=True)

    def lamb_trust(self, trust: Array, norms: Array) -> None:
        count = int(norms.shape[1])
        blocks = max(1, min(SUM_BLOCKS, -(-count // THREADS)))
        parts, launch = self._device.scratch()((2, blocks), "float64"), self._device.launch
        for sums, squares in zip(parts, norms, strict=True):
            launch("sum_parts", (blocks,), (THREADS,), sums, squares, np.int64(count))
        launch("lamb_trust", (1,), (THREADS,), trust, parts, np.int32(blocks))

    def lamb_rows(
        self, weight: Array, first: Array, second: Array, gradient: RowGradient,
        adam: RuleStep, trust: Array,
    ) -> None:  # fmt: skip
        count, width = (int(size) for size in gradient.values.shape)
        self._device.launch(
            "lamb", *grid(count * width), weight, first, second, *self._rows(gradient),
            np.int32(width), np.int64(count * width),
            np.float64(adam.lr), trust, f32(adam.first_factor), f32(adam.weight_decay),
            f32(adam.second_root), f32(adam.epsilon),
        )  # fmt: skip

    def _step(
        self, name: str, gradient: RowGradient, arrays: tuple[Array, ...], *rates: Any,
        of_rows: bool = False,
    ) -> None:  # fmt: skip
        """Step with a thread for each number, or with a warp for each row."""
        count, width = (int(size) for size in gradient.values.shape)
        items = count if of_rows else count * width
        shape = ((-(-count // 8),), (THREADS,)) if of_rows else grid(items)
        self._device.launch(
            name, *shape, *arrays, gradient.values, *self._rows(gradient), f32(gradient.scale),
            np.int32(width), np.int64(items), *rates,
        )  # fmt: skip

    def _rows(self, gradient: RowGradient) -> tuple[Any, Any]:
        """Ids of the gradient's rows, and flags of those to skip; null for all and none."""
        ids = NULL if gradient.ids is None else gradient.ids
        if not gradient.skip_zero_rows:
            return ids, NULL
        count, width = (int(size) for size in gradient.values.shape)
        skipped = self._device.scratch()(count, "uint8")
        self._device.launch(
            "find_zero_rows", (-(-count // 8),), (THREADS,),
            skipped, gradient.values, *count_operands(gradient.device_count), np.int32(width),
            np.int64(count),
        )  # fmt: skip
        return ids, skipped


def dense_scratch_bytes(units: int) -> int:
    """Temporary memory of the sums of `CudaDense`."""
    return 4 * _MOST_SUMS * units + 8 * 4 * SUM_BLOCKS


def _constants(adam: RuleStep) -> tuple[Any, ...]:
    return *(f32(rate) for rate in adam.rates), f32(adam.second_root), f32(adam.epsilon)


def rate_operands(rate: float) -> tuple[Any, Any]:
    """Pointer to a number in device memory, or null, and a factor of it, for a kernel."""
    if isinstance(rate, DeviceNumber):
        return rate.place, f32(rate.factor)
    return NULL, f32(rate)


def count_operands(device_count: DeviceCount | None) -> tuple[Any, Any]:
    """Pointer to the true number of rows, and the number of the first row, for a kernel."""
    return (
        (NULL, np.int32(0))
        if device_count is None
        else (device_count[0], np.int32(device_count[1]))
    )
