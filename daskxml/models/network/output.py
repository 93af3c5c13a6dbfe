"""The output layer: every label's logit, loss and update, one block of labels at a time.

A block of logits ``Z (block, rows) = W[block] @ H.T`` is label-major and small enough for a
core's cache. Softmax needs all labels before it can form a gradient, so it takes two passes: first
``exp(Z - peak)`` with a running peak and sum for each row (Milakov and Gimelshein 2018), then
``D = exp(Z - peak) * (exp(peak - last peak) / sum) - target``. Between the passes the exponentials
are kept where they fit into the budget, else the second pass computes them again. Sigmoid needs
one pass and never more than a block for each lane. Then, with the weights still old,
``G += D.T @ W[block]`` for the layer below, and ``D @ H`` goes to the optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsFloat

from daskxml.core.arrays import Array
from daskxml.models.batch import BatchSegment, OutputUpdates
from daskxml.models.network.blocked_output import BlockedOutput, OutputArrays, RecomputedOutput
from daskxml.models.network.fused_output import FusedOutput
from daskxml.models.network.weighted_output import WeightedOutput


class OutputLayer(OutputArrays):
    """Loss, gradient, update and ranking of all labels, on the caller's parameters.

    Parameters
    ----------
    weight, bias
        ``(labels, units)`` and ``(labels,)``.
    loss
        ``softmax`` or ``sigmoid``.
    budget_bytes
        Upper bound of the logits: the whole matrix, if it fits, else a block for each lane.
    uses_float16
        Whether a step's logits are float16: see
        `daskxml.models.network.blocked_output.RecomputedOutput`. Ranking uses float32.

    Raises
    ------
    ConfigError
        For float16 on a device without it.
    """

    def _pass(self, hidden: Array, batch: Sequence[BatchSegment]) -> BlockedOutput:
        is_half = bool(batch) and self._uses_float16
        kind = RecomputedOutput if self.kernels.has_fused_softmax else BlockedOutput
        if is_half and self.fuses_products:
            kind = FusedOutput
        has_weights = any(piece.weights is not None for piece in batch)
        if has_weights or (batch and self.label_weights is not None):
            kind = WeightedOutput
        return kind(self, hidden, batch, is_half)

    def step(
        self, hidden: Array, batch: Sequence[BatchSegment], lr: float, updates: OutputUpdates
    ) -> tuple[SupportsFloat, Array]:
        """Update the layer with the mean gradient over the batch.

        Parameters
        ----------
        hidden
            ``(rows, units)``: the layer's input.
        batch
            The batch's segments, for their labels.

        Returns
        -------
        SupportsFloat, Array
            The sum of the rows' losses (converting it to float synchronizes with the device), and
            the mean loss's gradient by ``hidden`` ``(rows, units)``, valid until the next call.
        """
        blocks = self._pass(hidden, batch)
        blocks.begin_update(lr, updates)
        if self.loss == "softmax":
            blocks.exponentials()
            lanes = blocks.each_block(blocks.softmax_update)
            blocks.finish()
            return blocks.softmax_loss(), blocks.gradient(lanes)
        lanes = blocks.each_block(blocks.sigmoid_update)
        blocks.finish()
        return blocks.sigmoid_loss(), blocks.gradient(lanes)

    def loss_sum(self, hidden: Array, batch: Sequence[BatchSegment]) -> float:
        """Return the sum of the rows' losses, with the bits of `step`; nothing is updated."""
        blocks = self._pass(hidden, batch)
        if self.loss == "softmax":
            blocks.count_targets()
            blocks.exponentials()
            return float(blocks.softmax_loss())
        blocks.each_block(blocks.add_sigmoid_losses)
        return float(blocks.sigmoid_loss())

    def top_k(self, hidden: Array, scores: Array, ids: Array) -> None:
        """Fill ``scores`` float32 and ``ids`` int32, both ``(rows, k)``, best first."""
        blocks, used = self._rank(hidden, scores, ids)
        if self.loss == "softmax":
            blocks.join_lanes(used)
            self.kernels.softmax_scores(scores, ids, blocks.peak, blocks.total)
        else:
            self.kernels.sigmoid_scores(scores, ids)

    def _rank(self, hidden: Array, scores: Array, ids: Array) -> tuple[BlockedOutput, int]:
        """Rank by logits; return the pass over the labels, and how many lanes it used."""
        rows, k = scores.shape
        blocks, lanes = self._pass(hidden, ()), self.kernels.threads
        self.buffers.reserve("lane scores", lanes * rows * k)
        self.buffers.reserve("lane ids", lanes * rows * k, "int32")
        best = (self.buffers.cube("lane scores", lanes, rows, k),
                self.buffers.cube("lane ids", lanes, rows, k))  # fmt: skip
        self.kernels.fill(best[0], float("-inf"))
        self.kernels.fill(best[1], -1)
        used = blocks.each_block(lambda i, a, b: blocks.rank(i, a, b, best[0], best[1]))
        self.kernels.merge_top_k(best[0][:used], best[1][:used], scores, ids)
        return blocks, used
