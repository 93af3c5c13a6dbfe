# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""Kernels on weighted rows and labels on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from daskxml.core.arrays import Array, Csr
from daskxml.kernels.cpu.labels import first_at_least

_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)
_NONE = np.empty(0, np.float32)


@njit(nogil=True, cache=True, error_model="numpy")
def batch_weights(
    out: Any, means: Any, weights: Any, label_weights: Any, indptr: Any, indices: Any, rows: Any
) -> None:
    """Gather the weights of rows, and average those of their labels."""
    for i in range(rows.shape[0]):
        out[i] = weights[rows[i]] if weights.shape[0] else _ONE
        start, stop = indptr[rows[i]], indptr[rows[i] + 1]
        total = 0.0
        for j in range(start, stop):
            total += label_weights[indices[j]]
        means[i] = total / (stop - start) if stop > start else _ONE


@njit(nogil=True, cache=True)
def multiply(out: Any, factors: Any) -> None:
    """``out *= factors``."""
    for i in range(out.shape[0]):
        out[i] *= factors[i]


@njit(nogil=True, cache=True)
def target_logits(
    out: Any, logits: Any, bias: Any, label_weights: Any, indptr: Any, indices: Any, rows: Any,
    first_row: int, first_label: int, each_row: bool,
) -> None:  # fmt: skip
    """Add what a row's labels in the block take from its loss."""
    last = first_label + logits.shape[0]
    for i in range(rows.shape[0]):
        stop = indptr[rows[i] + 1]
        j = first_at_least(indices, indptr[rows[i]], stop, first_label)
        while j < stop and indices[j] < last:
            label = indices[j] - first_label
            z = np.float64(logits[label, first_row + i] + bias[label])
            if each_row:
                out[first_row + i] += label_weights[label] * z
            else:
                softplus = max(-z, 0.0) + np.log1p(np.exp(-abs(z)))
                out[first_row + i] += z - (label_weights[label] - 1.0) * softplus
            j += 1


@njit(nogil=True, cache=True)
def subtract_targets(
    delta: Any, row_sums: Any, weights: Any, label_weights: Any, indptr: Any, indices: Any,
    rows: Any, first_row: int, first_label: int, each_row: bool,
) -> None:  # fmt: skip
    """From probabilities to the gradient at a row's labels in the block."""
    last = first_label + delta.shape[0]
    for i in range(rows.shape[0]):
        stop = indptr[rows[i] + 1]
        j = first_at_least(indices, indptr[rows[i]], stop, first_label)
        while j < stop and indices[j] < last:
            label = indices[j] - first_label
            held, factor = delta[label, first_row + i], label_weights[label]
            weight = weights[first_row + i]
            new = held - factor * weight if each_row else factor * (held - weight)
            delta[label, first_row + i] = new
            row_sums[label] += new - held
            j += 1


@njit(nogil=True, cache=True, error_model="numpy")
def softmax_losses(
    out: Any, peak: Any, total: Any, partial_targets: Any, lengths: Any, means: Any, weights: Any
) -> None:
    """``out = weights * (means * (peak + log(total)) - target / lengths)``; 0 without labels."""
    for r in range(out.shape[0]):
        target = 0.0
        for part in range(partial_targets.shape[0]):
            target += partial_targets[part, r]
        out[r] = 0.0
        if lengths[r] > _ZERO:
            loss = means[r] * (peak[r] + np.log(total[r])) - target / lengths[r]
            out[r] = weights[r] * loss


class CpuWeights:
    """Implements :class:`daskxml.kernels.weights.WeightKernels` for host memory."""

    multiply = staticmethod(multiply)
    weighted_softmax_losses = staticmethod(softmax_losses)

    def batch_weights(
        self, out: Array, means: Array, weights: Array | None, label_weights: Array, y: Csr,
        rows: Array,
    ) -> None:  # fmt: skip
        held = _NONE if weights is None else weights
        batch_weights(out, means, held, label_weights, y.indptr, y.indices, rows)

    def weighted_target_logits(
        self, out: Array, logits: Array, bias: Array, label_weights: Array, y: Csr, rows: Array,
        first_row: int, first_label: int, each_row: bool,
    ) -> None:  # fmt: skip
        target_logits(
            out, logits, bias, label_weights, y.indptr, y.indices, rows, first_row, first_label,
            each_row,
        )  # fmt: skip

    def subtract_weighted_targets(
        self, delta: Array, row_sums: Array, weights: Array, label_weights: Array, y: Csr,
        rows: Array, first_row: int, first_label: int, each_row: bool,
    ) -> None:  # fmt: skip
        subtract_targets(
            delta, row_sums, weights, label_weights, y.indptr, y.indices, rows, first_row,
            first_label, each_row,
        )  # fmt: skip
