# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""The optimizers' kernels on a CPU: one pass over weights, gradient and moments, row by row.

Every loop covers a range of the gradient's rows, which no two threads share, so there are no locks
and the bits do not depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np

from daskxml.core.arrays import Array
from daskxml.core.jit import njit
from daskxml.kernels.cpu.dense import sum64
from daskxml.kernels.cpu.thread_team import ThreadTeam, row_grain
from daskxml.kernels.operands import RowGradient, RuleStep

f32 = np.float32
_ZERO = f32(0.0)
_NO_IDS = np.empty(0, np.int32)


@njit(nogil=True)
def _is_zero(row: Any) -> bool:
    for value in row:  # noqa: SIM110 (Numba has no generators here)
        if value != _ZERO:  # true for a NaN: it must not hide
            return False
    return True


@njit(inline="always")
def _changed_row(gradient: Any, k: Any) -> Any:
    """The row that row ``k`` of a gradient changes; -1 where it is zero and to be skipped."""
    values, ids, skips, _ = gradient
    if skips and _is_zero(values[k]):
        return -1
    return ids[k] if ids.shape[0] > 0 else k


@njit(nogil=True)
def sgd_step(weight: Any, gradient: Any, start: int, stop: int, lr: Any, keep: Any) -> None:
    """``w = keep * w - lr * g``."""
    values, scale = gradient[0], gradient[3]
    for k in range(start, stop):
        row = _changed_row(gradient, k)
        if row < 0:
            continue
        g, w = values[k], weight[row]
        for c in range(g.shape[0]):
            w[c] = keep * w[c] - lr * (scale * g[c])


@njit(nogil=True)
def momentum_step(
    weight: Any, buffer: Any, gradient: Any, start: int, stop: int, lr: Any, keep: Any, rate: Any,
    nesterov: bool,
) -> None:  # fmt: skip
    """``b = rate * b + g``; ``w = keep * w - lr * b``, with Nesterov ``g + rate * b`` for ``b``."""
    values, scale = gradient[0], gradient[3]
    for k in range(start, stop):
        row = _changed_row(gradient, k)
        if row < 0:
            continue
        g, w, b = values[k], weight[row], buffer[row]
        for c in range(g.shape[0]):
            slope = scale * g[c]
            b[c] = rate * b[c] + slope
            move = slope + rate * b[c] if nesterov else b[c]
            w[c] = keep * w[c] - lr * move


@njit(nogil=True, error_model="numpy")
def adam_step(
    weight: Any, first: Any, second: Any, gradient: Any, start: int, stop: int, lr: Any, keep: Any,
    constants: Any,
) -> None:  # fmt: skip
    """Moments, then ``w = keep * w - lr * m / (root * sqrt(v) + epsilon)``."""
    beta1, rest1, beta2, rest2, root, epsilon = constants
    values, scale = gradient[0], gradient[3]
    for k in range(start, stop):
        row = _changed_row(gradient, k)
        if row < 0:
            continue
        g, w, m, v = values[k], weight[row], first[row], second[row]
        for c in range(g.shape[0]):
            slope = scale * g[c]
            mean = beta1 * m[c] + rest1 * slope
            square = beta2 * v[c] + rest2 * (slope * slope)
            m[c] = mean
            v[c] = square
            w[c] = keep * w[c] - lr * mean / (root * sqrt(square) + epsilon)


@njit(nogil=True, error_model="numpy", fastmath={"reassoc"})
def row_rms_step(
    weight: Any, second: Any, gradient: Any, start: int, stop: int, lr: Any, keep: Any,
    constants: Any,
) -> None:  # fmt: skip
    """A row's mean of ``g**2``, then ``w = keep * w - lr * g / (root * sqrt(v) + epsilon)``."""
    _, _, beta2, rest2, root, epsilon = constants
    values, scale = gradient[0], gradient[3]
    for k in range(start, stop):
        row = _changed_row(gradient, k)
        if row < 0:
            continue
        g, w, total = values[k], weight[row], _ZERO
        for c in range(g.shape[0]):
            total += g[c] * g[c]
        square = beta2 * second[row, 0] + rest2 * (scale * scale * total / f32(g.shape[0]))
        second[row, 0] = square
        rate = lr * scale / (root * sqrt(square) + epsilon)
        for c in range(g.shape[0]):
            w[c] = keep * w[c] - rate * g[c]


@njit(nogil=True, error_model="numpy", fastmath={"reassoc"})
def lamb_moments(
    norms: Any, weight: Any, first: Any, second: Any, gradient: Any, start: int, stop: int,
    factor: Any, decay: Any, constants: Any,
) -> None:  # fmt: skip
    """Moments, and the squares of each row's weights and update."""
    beta1, rest1, beta2, rest2, root, epsilon = constants
    values, scale = gradient[0], gradient[3]
    for k in range(start, stop):
        norms[0, k], norms[1, k] = 0.0, 0.0
        row = _changed_row(gradient, k)
        if row < 0:
            continue
        g, w, m, v = values[k], weight[row], first[row], second[row]
        weights, updates = 0.0, 0.0
        for c in range(g.shape[0]):
            slope = scale * g[c]
            mean = beta1 * m[c] + rest1 * slope
            square = beta2 * v[c] + rest2 * (slope * slope)
            m[c] = mean
            v[c] = square
            move = factor * mean / (root * sqrt(square) + epsilon) + decay * w[c]
            weights += np.float64(w[c]) * np.float64(w[c])
            updates += np.float64(move) * np.float64(move)
        norms[0, k], norms[1, k] = weights, updates


@njit(nogil=True, error_model="numpy")
def lamb_step(
    weight: Any, first: Any, second: Any, gradient: Any, start: int, stop: int, lr: Any,
    factor: Any, decay: Any, constants: Any,
) -> None:  # fmt: skip
    """``w -= lr * (factor * m / (root * sqrt(v) + epsilon) + decay * w)``, without ``scale``."""
    _, _, _, _, root, epsilon = constants
    for k in range(start, stop):
        row = _changed_row(gradient, k)
        if row < 0:
            continue
        w, m, v = weight[row], first[row], second[row]
        for c in range(w.shape[0]):
            w[c] -= lr * (factor * m[c] / (root * sqrt(v[c]) + epsilon) + decay * w[c])


class CpuOptim:
    """Implements :class:`daskxml.kernels.Kernels` for host memory."""

    _team: ThreadTeam

    def sgd_rows(self, weight: Array, gradient: RowGradient, lr: float, keep: float) -> None:
        self._step(sgd_step, (weight,), gradient, f32(lr), f32(keep))

    def moment_rows(
        self, rule: str, weight: Array, moments: tuple[Array, ...], gradient: RowGradient,
        step: RuleStep,
    ) -> None:  # fmt: skip
        kernel, rates = _RULES[rule]
        self._step(kernel, (weight, *moments), gradient, *rates(step))

    def lamb_moments(
        self, norms: Array, weight: Array, first: Array, second: Array, gradient: RowGradient,
        adam: RuleStep,
    ) -> None:  # fmt: skip
        rates = f32(adam.first_factor), f32(adam.weight_decay), _constants(adam)
        self._step(lamb_moments, (norms, weight, first, second), gradient, *rates)

    def lamb_trust(self, trust: Array, norms: Array) -> None:
        weights, updates = (float(sum64(squares)) for squares in norms)
        trust[0] = math.sqrt(weights / updates) if weights > 0.0 and updates > 0.0 else 1.0

    def lamb_rows(
        self, weight: Array, first: Array, second: Array, gradient: RowGradient,
        adam: RuleStep, trust: Array,
    ) -> None:  # fmt: skip
        factors = f32(adam.lr * float(trust[0])), f32(adam.first_factor), f32(adam.weight_decay)
        self._step(lamb_step, (weight, first, second), gradient, *factors, _constants(adam))

    def _step(
        self, kernel: Callable[..., None], arrays: tuple[Array, ...], gradient: RowGradient,
        *rates: Any,
    ) -> None:  # fmt: skip
        values, ids = gradient.values, _NO_IDS if gradient.ids is None else gradient.ids
        count, width = values.shape
        rows = values, ids, gradient.skip_zero_rows, f32(gradient.scale)
        self._team.run(
            count, row_grain(width), lambda _, *span: kernel(*arrays, rows, *span, *rates)
        )


def _constants(adam: RuleStep) -> tuple[Any, ...]:
    return *(f32(rate) for rate in adam.rates), f32(adam.second_root), f32(adam.epsilon)


_RULES: dict[str, tuple[Callable[..., None], Callable[[RuleStep], tuple[Any, ...]]]] = {
    "momentum": (momentum_step, lambda s: (f32(s.lr), f32(s.keep), f32(s.momentum), s.is_nesterov)),
    "adam": (adam_step, lambda s: (f32(s.lr * s.first_factor), f32(s.keep), _constants(s))),
    "row-rms": (row_rms_step, lambda s: (f32(s.lr), f32(s.keep), _constants(s))),
}
