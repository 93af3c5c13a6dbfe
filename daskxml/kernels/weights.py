"""The contract of kernels on batches whose rows, or the labels of them, have weights.

With weights ``w`` of rows and ``c`` of labels the loss of a row whose ``n`` labels are ``T`` is

=======  ==========================================================================
softmax  ``w * sum of c[l] * -log p[l] over T, / n``
sigmoid  ``w * (sum of c[l] * -log p[l] over T + sum of -log(1 - p[l]) over the others)``
=======  ==========================================================================

The blocks are those of :class:`daskxml.kernels.labels.LabelKernels`.
"""

from __future__ import annotations

from typing import Protocol

from daskxml.core.arrays import Array, Csr


class WeightKernels(Protocol):
    """The part of `daskxml.kernels.Kernels` on weighted rows and labels, on a CPU."""

    def batch_weights(
        self, out: Array, means: Array, weights: Array | None, label_weights: Array, y: Csr,
        rows: Array,
    ) -> None:  # fmt: skip
        """Fill ``out`` with ``weights[rows]``, and ``means`` with the mean weight of their labels.

        Both are ``(rows,)``. Without ``weights`` a row counts 1; so does the mean of no labels.
        ``label_weights`` is ``(labels,)``.
        """

    def multiply(self, out: Array, factors: Array) -> None:
        """``out *= factors``, both of the same shape, in place."""

    def weighted_target_logits(
        self, out: Array, logits: Array, bias: Array, label_weights: Array, y: Csr, rows: Array,
        first_row: int, first_label: int, each_row: bool,
    ) -> None:  # fmt: skip
        """Add to ``out`` what a row's labels in the block take from its loss.

        With ``z = logits + bias`` and the label's weight ``c`` that is ``c * z`` in softmax
        (``each_row``). In sigmoid it is ``z - (c - 1) * log(1 + exp(-z))``: what remains of
        ``log(1 + exp(z))`` is ``c * log(1 + exp(-z))``. ``label_weights`` ``(block,)`` are the
        block's.
        """

    def subtract_weighted_targets(
        self, delta: Array, row_sums: Array, weights: Array, label_weights: Array, y: Csr,
        rows: Array, first_row: int, first_label: int, each_row: bool,
    ) -> None:  # fmt: skip
        """Turn probabilities into the gradient at rows' labels in the block, and in ``row_sums``.

        With ``w = weights[first_row + i]`` and the label's weight ``c`` an entry ``d`` becomes
        ``d - c * w`` in softmax (``each_row``), ``c * (d - w)`` in sigmoid.
        """

    def weighted_softmax_losses(
        self, out: Array, peak: Array, total: Array, partial_targets: Array, lengths: Array,
        means: Array, weights: Array,
    ) -> None:  # fmt: skip
        """``out = weights * (means * (peak + log(total)) - target / lengths)``; 0 without labels.

        ``partial_targets (parts, rows)`` are sums of `weighted_target_logits`.
        """
