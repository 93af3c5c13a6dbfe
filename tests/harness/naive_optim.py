"""Naive twins of the optimizers' kernels."""

from collections.abc import Iterator

import numpy as np

from daskxml.core.arrays import Array
from daskxml.kernels.operands import RowGradient, RuleStep


class NaiveOptim:
    """Implements :class:`daskxml.kernels.Kernels` in plain NumPy."""

    def sgd_rows(self, weight: Array, gradient: RowGradient, lr: float, keep: float) -> None:
        for row, g in _moving_rows(gradient):
            weight[row] = keep * weight[row] - lr * g

    def moment_rows(
        self, rule: str, weight: Array, moments: tuple[Array, ...], gradient: RowGradient,
        step: RuleStep,
    ) -> None:  # fmt: skip
        for row, g in _moving_rows(gradient):
            move = _MOVES[rule]([moment[row] for moment in moments], g, step)
            weight[row] -= step.lr * (move + step.weight_decay * weight[row])

    def lamb_moments(
        self, norms: Array, weight: Array, first: Array, second: Array, gradient: RowGradient,
        adam: RuleStep,
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
        adam: RuleStep, trust: Array,
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


def _move_moments(first: Array, second: Array, g: Array, adam: RuleStep) -> None:
    first[:] = adam.beta1 * first + (1.0 - adam.beta1) * g
    second[:] = adam.beta2 * second + (1.0 - adam.beta2) * g**2


def _adam_move(first: Array, second: Array, adam: RuleStep) -> Array:
    """Adam's direction from the bias-corrected moments."""
    m = first / (1.0 - adam.beta1**adam.step)
    v = second / (1.0 - adam.beta2**adam.step)
    return m / (np.sqrt(v) + adam.epsilon)


def _move_by_momentum(moments: list[Array], g: Array, step: RuleStep) -> Array:
    (buffer,) = moments
    buffer[:] = step.momentum * buffer + g
    return g + step.momentum * buffer if step.is_nesterov else buffer


def _move_by_adam(moments: list[Array], g: Array, step: RuleStep) -> Array:
    _move_moments(*moments, g, step)
    return _adam_move(*moments, step)


def _move_by_row_rms(moments: list[Array], g: Array, step: RuleStep) -> Array:
    (second,) = moments
    second[0] = step.beta2 * second[0] + (1.0 - step.beta2) * np.mean(g**2)
    return g / (np.sqrt(second[0] / (1.0 - step.beta2**step.step)) + step.epsilon)


_MOVES = {"momentum": _move_by_momentum, "adam": _move_by_adam, "row-rms": _move_by_row_rms}
