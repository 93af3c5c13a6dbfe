"""One batch in the output layer where rows, or labels, have weights: on a CPU.

What the weights mean is said at the head of `daskxml.kernels.weights`. A batch is still the mean
over its rows, whatever they weigh: a row of weight 2 counts there as two rows do, and the mean
weight of all training rows is 1 (`daskxml.data.weights`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsFloat

from daskxml.core.arrays import Array
from daskxml.models.batch import BatchSegment, OutputUpdates
from daskxml.models.network.blocked_output import BlockedOutput, OutputArrays


class WeightedOutput(BlockedOutput):
    """`BlockedOutput` with the weights of the batch's rows and of the layer's labels."""

    def __init__(
        self,
        layer: OutputArrays,
        hidden: Array,
        batch: Sequence[BatchSegment],
        is_half: bool = False,
    ) -> None:
        super().__init__(layer, hidden, batch, is_half)
        buffers, rows = layer.buffers, self.rows
        buffers.reserve("row share", rows)
        buffers.reserve("mean label weight", rows)
        if layer.label_weights is None:
            labels = batch[0].y.columns
            buffers.reserve("equal label weights", labels)
            self.label_weights = buffers.vector("equal label weights", labels)
            self.kernels.fill(self.label_weights, 1.0)
        else:
            self.label_weights = layer.label_weights
        self.share = buffers.vector("row share", rows)
        self.mean_weight = buffers.vector("mean label weight", rows)
        self.each_row = layer.loss == "softmax"
        for piece in batch:
            self.kernels.batch_weights(
                self.share[piece.span], self.mean_weight[piece.span], piece.weights,
                self.label_weights, piece.y, piece.rows,
            )  # fmt: skip

    def begin_update(self, lr: float, updates: OutputUpdates) -> None:
        """As `BlockedOutput.begin_update`; the weights of rows and labels are in the mean."""
        super().begin_update(lr, updates)
        self.kernels.multiply(self.label_weight, self.share)
        self.kernels.multiply(self.row_weight, self.share)
        self.kernels.multiply(self.row_weight, self.mean_weight)  # of softmax alone

    def _add_target_logits(self, block: Array, lane: int, start: int, stop: int) -> None:
        first = self.layer.first_label
        for piece in self.batch:
            self.kernels.weighted_target_logits(
                self.lane_target[lane], block, self.layer.bias[start:stop],
                self.label_weights[first + start : first + stop], piece.y, piece.rows,
                piece.first_row, first + start, self.each_row,
            )  # fmt: skip

    def _sigmoid_block(self, lane: int, start: int, stop: int) -> Array:
        block = super()._sigmoid_block(lane, start, stop)
        self.kernels.scale_columns(block, self.share, self.bias_gradient[start:stop])
        return block

    def _subtract_targets(self, piece: BatchSegment, block: Array, start: int, stop: int) -> None:
        first = self.layer.first_label
        self.kernels.subtract_weighted_targets(
            block, self.bias_gradient[start:stop], self.label_weight,
            self.label_weights[first + start : first + stop], piece.y, piece.rows,
            piece.first_row, first + start, self.each_row,
        )  # fmt: skip

    def softmax_loss(self) -> SupportsFloat:
        """Return the sum of the rows' weighted losses."""
        self.kernels.weighted_softmax_losses(
            self.loss, self.peak, self.total, self.lane_target, self.lengths, self.mean_weight,
            self.share,
        )  # fmt: skip
        return self.kernels.deferred_sum((self.loss, 1.0))

    def sigmoid_loss(self) -> SupportsFloat:
        """Return the sum of the rows' weighted losses."""
        for sums in (self.lane_loss, self.lane_target):
            for lane in range(sums.shape[0]):
                self.kernels.multiply(sums[lane], self.share)
        return super().sigmoid_loss()
