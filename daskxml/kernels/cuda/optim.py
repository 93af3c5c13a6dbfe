# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""The optimizers' kernels on a GPU: one pass over weights, gradient and moments."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskxml.core.arrays import Array
from daskxml.kernels.cuda.dense import SUM_BLOCKS, THREADS, grid
from daskxml.kernels.cuda.device import NULL, CudaDevice
from daskxml.kernels.cuda.sparse import count_operands
from daskxml.kernels.optim import AdamStep, RowGradient

f32 = np.float32


class CudaOptim:
    """Implements :class:`daskxml.kernels.optim.OptimKernels` for a GPU."""

    _device: CudaDevice

    def sgd_rows(self, weight: Array, gradient: RowGradient, lr: float, keep: float) -> None:
        self._step("sgd", gradient, (weight,), f32(lr), f32(keep))

    def momentum_rows(
        self, weight: Array, buffer: Array, gradient: RowGradient, lr: float, keep: float,
        momentum: float, nesterov: bool,
    ) -> None:  # fmt: skip
        rates = f32(lr), f32(keep), f32(momentum), np.int32(nesterov)
        self._step("momentum", gradient, (weight, buffer), *rates)

    def adam_rows(
        self, weight: Array, first: Array, second: Array, gradient: RowGradient, adam: AdamStep
    ) -> None:
        rates = f32(adam.lr * adam.first_factor), f32(adam.keep), *_constants(adam)
        self._step("adam", gradient, (weight, first, second), *rates)

    def row_rms_rows(
        self, weight: Array, second: Array, gradient: RowGradient, adam: AdamStep
    ) -> None:
        count, width = (int(size) for size in gradient.values.shape)
        self._device.launch(
            "row_rms", (-(-count // 8),), (THREADS,), weight, second, gradient.values,
            *self._rows(gradient), f32(gradient.scale), np.int32(width), np.int64(count),
            f32(adam.lr), f32(adam.keep), *_constants(adam)[2:],
        )  # fmt: skip

    def lamb_moments(
        self, norms: Array, weight: Array, first: Array, second: Array, gradient: RowGradient,
        adam: AdamStep,
    ) -> None:  # fmt: skip
        count, width = (int(size) for size in gradient.values.shape)
        self._device.launch(
            "lamb_moments", (-(-count // 8),), (THREADS,),
            norms, weight, first, second, gradient.values, *self._rows(gradient),
            f32(gradient.scale), np.int32(width), np.int64(count),
            f32(adam.first_factor), f32(adam.weight_decay), *_constants(adam),
        )  # fmt: skip

    def lamb_trust(self, trust: Array, norms: Array) -> None:
        count = int(norms.shape[1])
        blocks = max(1, min(SUM_BLOCKS, -(-count // THREADS)))
        parts, launch = self._device.scratch()((2, blocks), "float64"), self._device.launch
        for sums, squares in zip(parts, norms, strict=True):
            launch("sum_parts", (blocks,), (THREADS,), sums, squares, np.int64(count))
        launch("lamb_trust", (1,), (THREADS,), trust, parts, np.int32(blocks))

    def lamb_rows(
        self, weight: Array, first: Array, second: Array, gradient: RowGradient,
        adam: AdamStep, trust: Array,
    ) -> None:  # fmt: skip
        size, width = _sizes(gradient)
        self._device.launch(
            "lamb", *grid(int(size)), weight, first, second, *self._rows(gradient), width, size,
            np.float64(adam.lr), trust, f32(adam.first_factor), f32(adam.weight_decay),
            f32(adam.second_root), f32(adam.epsilon),
        )  # fmt: skip

    def _step(
        self, name: str, gradient: RowGradient, arrays: tuple[Array, ...], *rates: Any
    ) -> None:
        size, width = _sizes(gradient)
        self._device.launch(
            name, *grid(int(size)), *arrays, gradient.values, *self._rows(gradient),
            f32(gradient.scale), width, size, *rates,
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


def _sizes(gradient: RowGradient) -> tuple[np.int64, np.int32]:
    """The size of a gradient, and its width."""
    count, width = gradient.values.shape
    return np.int64(count * width), np.int32(width)


def _constants(adam: AdamStep) -> tuple[Any, ...]:
    return *(f32(rate) for rate in adam.rates), f32(adam.second_root), f32(adam.epsilon)
