"""The naive twin of the weights of rows and labels."""

from dataclasses import dataclass

import numpy as np

from daskxml.core.arrays import Array, Csr
from harness.naive_sparse import dense_rows


@dataclass
class NaiveBatchWeights:
    """`daskxml.kernels.cpu.labels.BatchWeights` in plain NumPy."""

    rows: Array
    means: Array
    labels: Array
    is_softmax: bool

    def gather(self, span: slice, weights: Array | None, y: Csr, rows: Array) -> None:
        """Gather the weights of rows, and average those of their labels."""
        self.rows[span] = 1.0 if weights is None else weights[rows]
        for i, targets in enumerate(dense_rows(y, rows)):
            mean = self.labels[targets > 0].mean() if targets.any() else 1.0
            self.means[span.start + i] = mean

    def add_target_logits(
        self, out: Array, logits: Array, bias: Array, y: Csr, rows: Array, first_row: int,
        first_label: int,
    ) -> None:  # fmt: skip
        """Add what a row's labels take from its loss."""
        for label in range(logits.shape[0]):
            for i, row in enumerate(dense_rows(y, rows)):
                if row[first_label + label]:
                    z = np.float64(logits[label, first_row + i] + bias[label])
                    c = self.labels[first_label + label]
                    lost = np.logaddexp(0.0, z) - c * np.logaddexp(0.0, -z)
                    out[first_row + i] += c * z if self.is_softmax else lost

    def subtract_targets(
        self, delta: Array, row_sums: Array, weights: Array, y: Csr, rows: Array, first_row: int,
        first_label: int,
    ) -> None:  # fmt: skip
        """From probabilities to the gradient at a row's labels."""
        before = delta.copy()
        for label in range(delta.shape[0]):
            for i, row in enumerate(dense_rows(y, rows)):
                if row[first_label + label]:
                    d, w = delta[label, first_row + i], weights[first_row + i]
                    c = self.labels[first_label + label]
                    delta[label, first_row + i] = d - c * w if self.is_softmax else c * (d - w)
        row_sums += (delta - before).sum(axis=1)

    def softmax_losses(
        self, out: Array, peak: Array, total: Array, partial_targets: Array, lengths: Array
    ) -> None:
        """The weighted losses of rows."""
        mean = partial_targets.sum(axis=0) / np.maximum(lengths, 1)
        loss = self.rows * (self.means * (peak + np.log(total)) - mean)
        out[:] = np.where(lengths > 0, loss, 0.0)
