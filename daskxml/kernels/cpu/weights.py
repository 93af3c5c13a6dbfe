"""Batches whose rows, or the labels of them, have weights: on a CPU.

With weights ``w`` of rows and ``c`` of labels the loss of a row whose ``n`` labels are ``T`` is

=======  ==========================================================================
softmax  ``w * sum of c[l] * -log p[l] over T, / n``
sigmoid  ``w * (sum of c[l] * -log p[l] over T + sum of -log(1 - p[l]) over the others)``
=======  ==========================================================================

The blocks are those of :class:`daskxml.kernels.labels.LabelKernels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from daskxml.core.arrays import Array, Csr
from daskxml.kernels.cpu.labels import first_at_least

_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)
_NONE = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class BatchWeights:
    """The weights of a batch.

    Attributes
    ----------
    rows, means
        ``(rows,)`` float32: of each row, and the mean of its labels; see `gather`.
    labels
        ``(labels,)`` float32: of all labels.
    is_softmax
        Which loss they are for.
    """

    rows: Array
    means: Array
    labels: Array
    is_softmax: bool

    def gather(self, span: slice, weights: Array | None, y: Csr, rows: Array) -> None:
        """Fill ``rows[span]`` with ``weights[rows]``, and ``means[span]`` from their labels.

        Without ``weights`` a row counts 1; so does the mean of no labels.
        """
        held = _NONE if weights is None else weights
        place = y.indptr, y.indices, rows
        _batch_weights(self.rows[span], self.means[span], held, self.labels, *place)

    def add_target_logits(
        self, out: Array, logits: Array, bias: Array, y: Csr, rows: Array, first_row: int,
        first_label: int,
    ) -> None:  # fmt: skip
        """Add to ``out`` what a row's labels in the block take from its loss.

        With ``z = logits + bias`` and the label's weight ``c`` that is ``c * z`` in softmax. In
        sigmoid it is ``z - (c - 1) * log(1 + exp(-z))``: what remains of ``log(1 + exp(z))`` is
        ``c * log(1 + exp(-z))``.
        """
        _target_logits(
            out, logits, bias, self.labels[first_label : first_label + logits.shape[0]],
            y.indptr, y.indices, rows, first_row, first_label, self.is_softmax,
        )  # fmt: skip

    def subtract_targets(
        self, delta: Array, row_sums: Array, weights: Array, y: Csr, rows: Array, first_row: int,
        first_label: int,
    ) -> None:  # fmt: skip
        """Turn probabilities into the gradient at rows' labels in the block, and in ``row_sums``.

        With ``w = weights[first_row + i]`` and the label's weight ``c`` an entry ``d`` becomes
        ``d - c * w`` in softmax, ``c * (d - w)`` in sigmoid.
        """
        _subtract_targets(
            delta, row_sums, weights, self.labels[first_label : first_label + delta.shape[0]],
            y.indptr, y.indices, rows, first_row, first_label, self.is_softmax,
        )  # fmt: skip

    def softmax_losses(
        self, out: Array, peak: Array, total: Array, partial_targets: Array, lengths: Array
    ) -> None:
        """``out = rows * (means * (peak + log(total)) - target / lengths)``; 0 without labels.

        ``partial_targets (parts, rows)`` are sums of `add_target_logits`.
        """
        _softmax_losses(out, peak, total, partial_targets, lengths, self.means, self.rows)


@njit(nogil=True, cache=True, error_model="numpy")
def _batch_weights(
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
def _target_logits(
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
def _subtract_targets(
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
def _softmax_losses(
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
