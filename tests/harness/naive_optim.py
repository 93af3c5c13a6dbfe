"""Naive twins of the optimizers' kernels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from daskxml.core.arrays import Array
from daskxml.kernels.operands import AdamStep, RowGradient


class NaiveOptim:
    """Implements :class:`daskxml.kernels.Kernels` in plain NumPy."""

    def sgd_rows(self, weight: Array, gradient: RowGradient, lr: float, keep: float) -> None:
        for row, g in _moving_rows(gradient):
            weight[row] = keep * weight[row] - lr * g

    def momentum_rows(
        self, weight: Array, buffer: Array, gradient: RowGradient, lr: float, keep: float,
        momentum: float, nesterov: bool,
    ) -> None:  # fmt: skip
        for row, g in _moving_rows(gradient):
            buffer[row] = momentum * buffer[row] + g
            move = g + momentum * buffer[row] if nesterov else buffer[row]
            weight[row] = keep * weight[row] - lr * move

    def adam_rows(
        self, weight: Array, first: Array, second: Array, gradient: RowGradient, adam: AdamStep
    ) -> None:
        for row, g in _moving_rows(gradient):
            _move_moments(first[row], second[row], g, adam)
            move = _adam_move(first[row], second[row], adam)
            weight[row] -= adam.lr * (move + adam.weight_decay * weight[row])

    def row_rms_rows(
        self, weight: Array, second: Array, gradient: RowGradient, adam: AdamStep
    ) -> None:
        for row, g in _moving_rows(gradient):
            second[row, 0] = adam.beta2 * second[row, 0] + (1.0 - adam.beta2) * np.mean(g**2)
            v = second[row, 0] / (1.0 - adam.beta2**adam.step)
            move = g / (np.sqrt(v) + adam.epsilon)
            weight[row] -= adam.lr * (move + adam.weight_decay * weight[row])

    def lamb_moments(
        self, norms: Array, weight: Array, first: Array, second: Array, gradient: RowGradient,
        adam: AdamStep,
    ) -> None:  # fmt: skip
        norms[:] = 0.0
        place = {int(row): k for k, row in enumerate(_row_ids(gradient))}
        for row, g in _moving_rows(gradient):
            _move_moments(first[row], second[row], g, adam)
            move = _adam_move(first[row], second[row], adam) + adam.weight_decay * weight[row]
            norms[:, place[row]] = np.square(weight[row]).sum(), np.square(move).sum()

    def lamb_trust(self, trust: Array, norms: Array) -> None:
        weights, updates = norms.sum(axis=1)
        trust[0] = np.sqrt(weights / updates) if weights > 0.0 and updates > 0.0 else 1.0

    def lamb_rows(
        self, weight: Array, first: Array, second: Array, gradient: RowGradient,
        adam: AdamStep, trust: Array,
    ) -> None:  # fmt: skip
        for row, _ in _moving_rows(gradient):
            move = _adam_move(first[row], second[row], adam) + adam.weight_decay * weight[row]
            weight[row] -= adam.lr * trust[0] * move


def _row_ids(gradient: RowGradient) -> Array:
    return np.arange(len(gradient.values)) if gradient.ids is None else gradient.ids


def _moving_rows(gradient: RowGradient) -> Iterator[tuple[int, Array]]:
    """Every row that is not skipped, with its scaled gradient."""
    for row, values in zip(_row_ids(gradient), gradient.values, strict=True):
        if values.any() or not gradient.skip_zero_rows:
            yield int(row), gradient.scale * values


def _move_moments(first: Array, second: Array, g: Array, adam: AdamStep) -> None:
    first[:] = adam.beta1 * first + (1.0 - adam.beta1) * g
    second[:] = adam.beta2 * second + (1.0 - adam.beta2) * g**2


def _adam_move(first: Array, second: Array, adam: AdamStep) -> Array:
    """Adam's direction from the bias-corrected moments."""
    m = first / (1.0 - adam.beta1**adam.step)
    v = second / (1.0 - adam.beta2**adam.step)
    return m / (np.sqrt(v) + adam.epsilon)
