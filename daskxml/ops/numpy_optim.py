# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""The optimizers' kernels on a CPU: Numba loops over ranges of rows, shared among threads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from daskxml.ops import numba_labels, numba_optim
from daskxml.ops.lanes import Lanes
from daskxml.ops.optim_protocol import AdamStep, Live, RowGradient
from daskxml.types import Array

_ROW_GRAIN = 1 << 18  # floats of a gradient: below, waking a thread costs more than it saves
_NO_IDS = np.empty(0, np.int32)


class NumpyOptim:
    """Implements :class:`daskxml.ops.optim_protocol.OptimKernels` for host memory."""

    _lanes: Lanes

    def group_entries(
        self, features: Array, starts: Array, rows: Array, values: Array,
        entries: tuple[Array, Array, Array], tally: Array,
    ) -> tuple[int, Array | None]:  # fmt: skip
        operands = features, starts, rows, values, *entries, tally
        return int(numba_optim.group_entries(*operands)), None

    def gather_rows(
        self, out: Array, starts: Array, rows: Array, values: Array, delta: Array,
        live: Live | None = None,
    ) -> None:  # fmt: skip
        self._rows(out, lambda *span: numba_optim.gather_rows(
            out, starts, rows, values, delta, *span
        ))  # fmt: skip

    def sgd_rows(self, weight: Array, gradient: RowGradient, lr: float, keep: float) -> None:
        f = np.float32
        operands = (weight, *_operands(gradient), f(gradient.scale))
        self._rows(gradient.values, lambda *span: numba_optim.sgd(
            *operands, *span, f(lr), f(keep)
        ))  # fmt: skip

    def momentum_rows(
        self, weight: Array, buffer: Array, gradient: RowGradient, lr: float, keep: float,
        momentum: float, nesterov: bool,
    ) -> None:  # fmt: skip
        f = np.float32
        operands = (weight, buffer, *_operands(gradient), f(gradient.scale))
        kernel = numba_optim.nesterov if nesterov else numba_optim.momentum
        self._rows(gradient.values, lambda *span: kernel(
            *operands, *span, f(lr), f(keep), f(momentum)
        ))  # fmt: skip

    def adam_rows(
        self, weight: Array, first: Array, second: Array, gradient: RowGradient, adam: AdamStep
    ) -> None:
        f = np.float32
        operands = (weight, first, second, *_operands(gradient), f(gradient.scale))
        rates = f(adam.lr * adam.first_factor), f(adam.keep)
        self._rows(gradient.values, lambda *span: numba_optim.adam(
            *operands, *span, *rates, *_betas(adam), f(adam.second_root), f(adam.epsilon)
        ))  # fmt: skip

    def lamb_moments(
        self, norms: Array, weight: Array, first: Array, second: Array, gradient: RowGradient,
        adam: AdamStep,
    ) -> None:  # fmt: skip
        f = np.float32
        operands = (norms, weight, first, second, *_operands(gradient), f(gradient.scale))
        factors = f(adam.first_factor), f(adam.weight_decay)
        self._rows(gradient.values, lambda *span: numba_optim.lamb_moments(
            *operands, *span, *factors, *_betas(adam), f(adam.second_root), f(adam.epsilon)
        ))  # fmt: skip

    def lamb_trust(self, trust: Array, norms: Array) -> None:
        weights, updates = (float(numba_labels.sum64(squares)) for squares in norms)
        trust[0] = math.sqrt(weights / updates) if weights > 0.0 and updates > 0.0 else 1.0

    def lamb_rows(
        self, weight: Array, first: Array, second: Array, gradient: RowGradient,
        adam: AdamStep, trust: Array,
    ) -> None:  # fmt: skip
        f = np.float32
        operands = (weight, first, second, *_operands(gradient))
        factors = f(adam.lr * float(trust[0])), f(adam.first_factor), f(adam.weight_decay)
        self._rows(gradient.values, lambda *span: numba_optim.lamb(
            *operands, *span, *factors, f(adam.second_root), f(adam.epsilon)
        ))  # fmt: skip

    def _rows(self, values: Array, work: Callable[[int, int], object]) -> None:
        count, width = values.shape
        grain = max(1, _ROW_GRAIN // max(1, width))
        self._lanes.run(count, grain, lambda _, start, stop: work(start, stop))


def _operands(gradient: RowGradient) -> tuple[Any, ...]:
    """Values, ids, whether there are ids, and whether rows of zeros wait."""
    ids = gradient.ids
    return gradient.values, _NO_IDS if ids is None else ids, ids is not None, gradient.waits


def _betas(adam: AdamStep) -> tuple[Any, ...]:
    """Both decays, each with what is left of 1, which float32 could not tell from it."""
    betas = (adam.beta1, 1.0 - adam.beta1, adam.beta2, 1.0 - adam.beta2)
    return tuple(np.float32(beta) for beta in betas)
