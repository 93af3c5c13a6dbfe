"""One batch's way through the output layer: what is done to each block of labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, SupportsFloat

from daskxml.model.batch import Placed, Updates
from daskxml.types import Array

if TYPE_CHECKING:
    from daskxml.model.output import OutputLayer

LANE_SUMS = 4  # float64 of every row: exponentials, target logits, losses
FLOAT_BYTES, HALF_BYTES = 4, 2


class Walk:
    """The arrays of one batch, in the buffers of a layer; see `daskxml.model.output`.

    Parameters
    ----------
    is_half
        Whether logits and their gradient are float16.

    Attributes
    ----------
    stride
        From one label's logits to the next's: those behind the batch's are 0.
    factor, weight
        The hidden layer, with as many rows, and the weights, as products take them.
    scale
        What gradients are multiplied by, until they are products.
    """

    def __init__(
        self, layer: OutputLayer, hidden: Array, batch: Sequence[Placed], is_half: bool = False
    ) -> None:
        self.layer, self.kernels = layer, layer.kernels
        self.hidden, self.batch = hidden, batch
        self.factor, self.weight, self.scale = hidden, layer.weight, 1.0
        self.rows = rows = int(hidden.shape[0])
        self.stride = layer.stride(rows)
        logit_bytes = HALF_BYTES if is_half else FLOAT_BYTES
        self.block = layer.block_labels(rows, logit_bytes)
        self.whole = layer.keeps_logits(rows, logit_bytes)
        buffers, lanes = layer.buffers, layer.kernels.lanes
        planes = 1 if self.whole else lanes
        height = layer.labels if self.whole else self.block
        kind = "float16" if is_half else None
        self.logits = buffers.cube("logits", planes, height, self.stride, kind)
        self.references = buffers.matrix("reference", layer.slots(rows, logit_bytes), rows)
        self.lane_gradient = buffers.cube("gradient", lanes, self.stride, layer.units)
        self.bias_gradient = buffers.vector("bias gradient", layer.labels)
        self.lane_peak = buffers.matrix("lane peak", lanes, rows)
        self.lane_part = buffers.matrix("lane part", lanes, rows)
        self.lane_pair = buffers.cube("lane pair", lanes, 2, rows)
        self.lane_factors = buffers.matrix("lane factors", lanes, rows)
        sums = buffers.cube("lane sums", LANE_SUMS, lanes, rows)
        self.lane_total, self.lane_target = sums[0], sums[1]
        self.lane_loss, self.other_loss = sums[2], sums[3]
        self.peak, self.total = buffers.vector("peak", rows), buffers.vector("total", rows)
        self.lengths = buffers.vector("lengths", rows)
        self.row_weight = buffers.vector("row weight", rows)
        self.label_weight = buffers.vector("label weight", rows)
        self.loss = buffers.vector("loss", rows)
        self.started = [False] * lanes  # lanes whose gradient holds something already
        self.kernels.fill(self.lane_peak, float("-inf"))
        self.kernels.fill(sums, 0.0)

    def each_block(self, work: Callable[[int, int, int], None]) -> int:
        """Call ``work(lane, start, stop)`` for all blocks; returns how many lanes were used."""
        return self.kernels.for_label_blocks(self.layer.labels, self.block, work)

    def weigh_targets(self, each_row: bool) -> None:
        """What a row, and each of its labels, weighs in the mean over the batch."""
        self.count_targets()
        share = self.scale / self.rows
        self.kernels.target_weights(
            self.row_weight, self.label_weight, self.lengths, share, each_row
        )

    def count_targets(self) -> None:
        """How many labels each row has."""
        for piece in self.batch:
            labels = piece.segment.partition.labels
            self.kernels.row_lengths(self.lengths[piece.span], labels, piece.segment.rows)

    def logits_of(self, lane: int, start: int, stop: int) -> Array:
        """The block's place, and its logits without the bias in it."""
        place = self.logits[0, start:stop] if self.whole else self.logits[lane, : stop - start]
        self.kernels.gemm(place, self.weight[start:stop], self.factor.T)
        return place

    def exponentials(self) -> None:
        """The first walk of softmax: peak and total of every row; the blocks, if kept."""
        used = self.each_block(self._exponentials_of)
        self.join_lanes(used)
        if not self.whole:  # the second walk starts from the final peak
            for lane in range(used):
                self.kernels.copy(self.lane_peak[lane], self.peak)

    def _exponentials_of(self, lane: int, start: int, stop: int) -> None:
        block = self.logits_of(lane, start, stop)
        self._add_target_logits(block, lane, start, stop)
        self._exponentiate(block, lane, start, stop)
        self.kernels.copy(self.references[start // self.block + lane], self.lane_peak[lane])

    def _exponentiate(self, block: Array, lane: int, start: int, stop: int) -> None:
        self.kernels.softmax_block(
            block, self.layer.bias[start:stop],
            self.lane_peak[lane], self.lane_total[lane], self.lane_part[lane],
        )  # fmt: skip

    def _add_target_logits(self, block: Array, lane: int, start: int, stop: int) -> None:
        for piece in self.batch:
            self.kernels.target_logits(
                self.lane_target[lane], block, self.layer.bias[start:stop],
                piece.segment.partition.labels, piece.segment.rows, piece.first_row, start,
            )  # fmt: skip

    def join_lanes(self, used: int) -> None:
        """The peak and total of every row over all lanes."""
        self.kernels.merge_softmax(
            self.lane_peak[:used], self.lane_total[:used], self.peak, self.total
        )

    def softmax_update(self, lane: int, start: int, stop: int, lr: float, updates: Updates) -> None:
        """The second walk: from exponentials to the gradient, and on."""
        if self.whole:
            block = self.logits[0, start:stop]
            reference = self.references[start // self.block + lane]
        else:
            block = self.logits_of(lane, start, stop)
            self._exponentiate(block, lane, start, stop)
            reference = self.lane_peak[lane]
        factors = self.lane_factors[lane]
        self.kernels.softmax_factors(factors, reference, self.peak, self.total, self.row_weight)
        self.kernels.scale_columns(block, factors, self.bias_gradient[start:stop])
        self._update(block, lane, start, stop, lr, updates)

    def sigmoid_update(self, lane: int, start: int, stop: int, lr: float, updates: Updates) -> None:
        """The only walk of the sigmoid loss."""
        block = self._sigmoid_block(lane, start, stop)
        self._update(block, lane, start, stop, lr, updates)

    def add_sigmoid_losses(self, lane: int, start: int, stop: int) -> None:
        """The walk that only wants the loss."""
        self._sigmoid_block(lane, start, stop)

    def _sigmoid_block(self, lane: int, start: int, stop: int) -> Array:
        """The block's weighted probabilities; its losses are added to the lane's."""
        block = self.logits_of(lane, start, stop)
        self._add_target_logits(block, lane, start, stop)
        cut = min(max(self.layer.certain, start), stop)
        for first, last, times, loss in (
            (start, cut, 1.0, self.lane_loss),
            (cut, stop, self.layer.weight_of_others, self.other_loss),
        ):
            if first < last:
                self.kernels.sigmoid_block(
                    block[first - start : last - start], self.layer.bias[first:last],
                    times * self.scale / self.rows, self.bias_gradient[first:last],
                    loss[lane], self.lane_pair[lane],
                )  # fmt: skip
        return block

    def _update(
        self, block: Array, lane: int, start: int, stop: int, lr: float, updates: Updates
    ) -> None:
        """Finish the block's gradient and hand it down, while the weights are old, and out."""
        span = slice(start, stop)
        for piece in self.batch:
            self._subtract_targets(piece, block, start, stop)
        beta = 1.0 if self.started[lane] else 0.0
        self.started[lane] = True
        delta, unscale = self.as_factor(block).T, 1.0 / self.scale
        self.kernels.gemm(self.lane_gradient[lane], delta, self.weight[span], unscale, beta)
        updates.product("output.weight", span, delta, self.factor, lr, unscale)
        self._update_bias(span, lr, updates)

    def _subtract_targets(self, piece: Placed, block: Array, start: int, stop: int) -> None:
        self.kernels.subtract_targets(
            block, self.bias_gradient[start:stop], self.label_weight,
            piece.segment.partition.labels, piece.segment.rows, piece.first_row, start,
        )  # fmt: skip

    def _update_bias(self, span: slice, lr: float, updates: Updates) -> None:
        updates.dense("output.bias", self.bias_gradient[span], lr, rows=span)

    def finish(self, lr: float, updates: Updates) -> None:
        """Do what is left when all blocks are done: nothing here."""

    def as_factor(self, block: Array) -> Array:
        """A finished block of the gradient as products take it."""
        return block

    def gradient(self, used: int) -> Array:
        """The lanes' gradients by the hidden layer, added in order."""
        first = self.lane_gradient[0].reshape(-1)
        for lane in range(1, used):
            self.kernels.add_scaled(first, self.lane_gradient[lane].reshape(-1), 1.0)
        return self.lane_gradient[0][: self.rows]

    def softmax_loss(self) -> SupportsFloat:
        """The sum of the rows' losses, after the first walk; who makes a float of it waits."""
        self.kernels.softmax_losses(
            self.loss, self.peak, self.total, self.lane_target, self.lengths
        )
        return self.kernels.late_sum((self.loss, 1.0))

    def sigmoid_loss(self) -> SupportsFloat:
        """The sum of the rows' losses, after the walk; who makes a float of it waits."""
        return self.kernels.late_sum(
            (self.lane_loss.reshape(-1), 1.0),
            (self.other_loss.reshape(-1), self.layer.weight_of_others),
            (self.lane_target.reshape(-1), -1.0),
        )

    def rank(self, lane: int, start: int, stop: int, scores: Array, ids: Array) -> None:
        """Insert the block into the lane's best k, and sum its exponentials for softmax."""
        block = self.logits_of(lane, start, stop)
        self.kernels.top_k_block(block, self.layer.bias[start:stop], start, scores[lane], ids[lane])
        if self.layer.loss == "softmax":
            self._exponentiate(block, lane, start, stop)
