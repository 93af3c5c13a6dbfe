"""Naive twins of the kernels on weighted rows and labels."""

from __future__ import annotations

import numpy as np

from daskxml.core.arrays import Array, Csr
from harness.naive_sparse import dense_rows


class NaiveWeights:
    """Implements :class:`daskxml.kernels.weights.WeightKernels` in plain NumPy."""

    def batch_weights(
        self, out: Array, means: Array, weights: Array | None, label_weights: Array, y: Csr,
        rows: Array,
    ) -> None:  # fmt: skip
        out[:] = 1.0 if weights is None else weights[rows]
        for i, targets in enumerate(dense_rows(y, rows)):
            means[i] = label_weights[targets > 0].mean() if targets.any() else 1.0

    def multiply(self, out: Array, factors: Array) -> None:
        out *= factors

    def weighted_target_logits(
        self, out: Array, logits: Array, bias: Array, label_weights: Array, y: Csr, rows: Array,
        first_row: int, first_label: int, each_row: bool,
    ) -> None:  # fmt: skip
        for label in range(logits.shape[0]):
            for i, row in enumerate(dense_rows(y, rows)):
                if row[first_label + label]:
                    z, c = np.float64(logits[label, first_row + i] + bias[label]), label_weights
                    lost = np.logaddexp(0.0, z) - c[label] * np.logaddexp(0.0, -z)
                    out[first_row + i] += c[label] * z if each_row else lost

    def subtract_weighted_targets(
        self, delta: Array, row_sums: Array, weights: Array, label_weights: Array, y: Csr,
        rows: Array, first_row: int, first_label: int, each_row: bool,
    ) -> None:  # fmt: skip
        before = delta.copy()
        for label in range(delta.shape[0]):
            for i, row in enumerate(dense_rows(y, rows)):
                if row[first_label + label]:
                    d, w, c = delta[label, first_row + i], weights[first_row + i], label_weights
                    new = d - c[label] * w if each_row else c[label] * (d - w)
                    delta[label, first_row + i] = new
        row_sums += (delta - before).sum(axis=1)

    def weighted_softmax_losses(
        self, out: Array, peak: Array, total: Array, partial_targets: Array, lengths: Array,
        means: Array, weights: Array,
    ) -> None:  # fmt: skip
        mean = partial_targets.sum(axis=0) / np.maximum(lengths, 1)
        loss = weights * (means * (peak + np.log(total)) - mean)
        out[:] = np.where(lengths > 0, loss, 0.0)
