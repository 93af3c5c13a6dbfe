# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""The optimizers' kernels on a GPU: one pass over weights, gradient and moments."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskxml.ops.cuda_device import NULL, Device
from daskxml.ops.cuda_flat import SUM_BLOCKS, THREADS, grid
from daskxml.ops.cuda_sparse import live_rows
from daskxml.ops.optim_protocol import AdamStep, RowGradient
from daskxml.types import Array

f32 = np.float32


class CudaOptim:
    """Implements the steps of :class:`daskxml.ops.optim_protocol.OptimKernels` for a GPU."""

    _device: Device

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
        rates = f32(adam.lr * adam.first_factor), f32(adam.keep), *_betas(adam)
        self._step("adam", gradient, (weight, first, second), *rates, *_root(adam))

    def lamb_moments(
        self, norms: Array, weight: Array, first: Array, second: Array, gradient: RowGradient,
        adam: AdamStep,
    ) -> None:  # fmt: skip
        count, width = (int(size) for size in gradient.values.shape)
        self._device.launch(
            "lamb_moments", (-(-count // 8),), (THREADS,),
            norms, weight, first, second, gradient.values, *self._chosen(gradient),
            f32(gradient.scale), np.int32(width), np.int64(count),
            f32(adam.first_factor), f32(adam.weight_decay), *_betas(adam), *_root(adam),
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
            "lamb", *grid(int(size)), weight, first, second, *self._chosen(gradient), width, size,
            np.float64(adam.lr), trust, f32(adam.first_factor), f32(adam.weight_decay),
            *_root(adam),
        )  # fmt: skip

    def _step(
        self, name: str, gradient: RowGradient, arrays: tuple[Array, ...], *rates: Any
    ) -> None:
        size, width = _sizes(gradient)
        is_narrow = str(arrays[0].dtype) == "uint16"
        self._device.launch(
            name + "_narrow" * is_narrow, *grid(int(size)), *arrays, gradient.values,
            *self._chosen(gradient), f32(gradient.scale), width, size, np.uint64(gradient.noise),
            *rates,
        )  # fmt: skip

    def _chosen(self, gradient: RowGradient) -> tuple[Any, Any]:
        """Which rows the gradient belongs to, and which of its rows wait."""
        ids = NULL if gradient.ids is None else gradient.ids
        if not gradient.waits:
            return ids, NULL
        count, width = (int(size) for size in gradient.values.shape)
        waits = self._device.scratch()(count, "uint8")
        self._device.launch(
            "find_waiting", (-(-count // 8),), (THREADS,),
            waits, gradient.values, *live_rows(gradient.live), np.int32(width), np.int64(count),
        )  # fmt: skip
        return ids, waits


def _sizes(gradient: RowGradient) -> tuple[np.int64, np.int32]:
    """How many numbers a gradient has, and how many to a row."""
    count, width = gradient.values.shape
    return np.int64(count * width), np.int32(width)


def _betas(adam: AdamStep) -> tuple[Any, ...]:
    """Both decays, each with what is left of 1, which float32 could not tell from it."""
    return tuple(f32(beta) for beta in (
        adam.beta1, 1.0 - adam.beta1, adam.beta2, 1.0 - adam.beta2
    ))  # fmt: skip


def _root(adam: AdamStep) -> tuple[Any, Any]:
    return f32(adam.second_root), f32(adam.epsilon)
