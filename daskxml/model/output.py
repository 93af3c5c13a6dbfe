"""The output layer: every label's logit, loss and update, one block of labels at a time.

A block of logits ``Z (block, rows) = W[block] @ H.T`` is label-major and small enough for a
core's cache. Softmax needs all labels before it can form a gradient, so it walks twice: first
``exp(Z - peak)`` with a running peak and sum a row (Milakov and Gimelshein 2018), then
``D = exp(Z - peak) * (exp(peak - last peak) / sum) - target``. Between the walks the exponentials
are kept where they fit into the budget, else the second walk computes them again. Sigmoid needs
one walk and never holds more than a block for each lane. Then, with the weights still old,
``G += D.T @ W[block]`` for the layer below, and ``D @ H`` goes to the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from daskxml.model.batch import Buffers, Placed, Updates
from daskxml.ops import Kernels
from daskxml.types import Array

_FLOAT_BYTES = 4


class OutputLayer:
    """Buffers and walks of the output layer; the parameters are the caller's.

    Parameters
    ----------
    weight, bias
        ``(labels, units)`` and ``(labels,)``.
    loss
        ``softmax`` or ``sigmoid``.
    budget_bytes
        The most that logits may take: the whole matrix, if it fits, else a block for each lane.
    """

    def __init__(
        self, kernels: Kernels, weight: Array, bias: Array, loss: str, budget_bytes: int
    ) -> None:
        self.kernels, self.weight, self.bias = kernels, weight, bias
        self.loss, self.budget_bytes = loss, budget_bytes
        self.labels, self.units = int(weight.shape[0]), int(weight.shape[1])
        self.buffers = Buffers(kernels)

    def reserve(self, rows: int) -> None:
        """Allocate for batches of up to ``rows`` rows."""
        lanes, reserve = self.kernels.lanes, self.buffers.reserve
        sizes = range(1, rows + 1)  # a smaller batch may have more blocks: take the most of each
        reserve("logits", max(self._logits_floats(size) for size in sizes))
        reserve("reference", max(self._slots(size) * size for size in sizes))
        reserve("gradient", lanes * rows * self.units)
        reserve("bias gradient", self.labels)
        for name in ("lane peak", "lane part", "lane factors"):
            reserve(name, lanes * rows)
        reserve("lane pair", lanes * 2 * rows)
        for name in ("lane total", "lane target", "lane loss"):
            reserve(name, lanes * rows, "float64")
        for name in ("peak", "lengths", "row weight", "label weight"):
            reserve(name, rows)
        for name in ("total", "loss"):
            reserve(name, rows, "float64")

    def step(
        self, hidden: Array, batch: Sequence[Placed], lr: float, updates: Updates
    ) -> tuple[float, Array]:
        """Update the layer with the mean gradient over the batch.

        Parameters
        ----------
        hidden
            ``(rows, units)``: the layer's input.
        batch
            The batch's segments, for their labels.

        Returns
        -------
        float, Array
            The sum of the rows' losses, and the mean loss's gradient by ``hidden``
            ``(rows, units)``, valid until the next call.
        """
        walk = _Walk(self, hidden, batch)
        walk.weigh_targets(each_row=self.loss == "softmax")
        if self.loss == "softmax":
            walk.exponentials()
            lanes = walk.each_block(lambda i, a, b: walk.softmax_update(i, a, b, lr, updates))
            return walk.softmax_loss(), walk.gradient(lanes)
        lanes = walk.each_block(lambda i, a, b: walk.sigmoid_update(i, a, b, lr, updates))
        return walk.sigmoid_loss(), walk.gradient(lanes)

    def top_k(self, hidden: Array, scores: Array, ids: Array) -> None:
        """Fill ``scores`` float32 and ``ids`` int32, both ``(rows, k)``, best first."""
        rows, k = scores.shape
        walk, lanes = _Walk(self, hidden, ()), self.kernels.lanes
        self.buffers.reserve("lane scores", lanes * rows * k)
        self.buffers.reserve("lane ids", lanes * rows * k, "int32")
        best = (self.buffers.cube("lane scores", lanes, rows, k),
                self.buffers.cube("lane ids", lanes, rows, k))  # fmt: skip
        self.kernels.fill(best[0], float("-inf"))
        self.kernels.fill(best[1], -1)
        used = walk.each_block(lambda i, a, b: walk.rank(i, a, b, best[0], best[1]))
        self.kernels.merge_top_k(best[0][:used], best[1][:used], scores, ids)
        if self.loss == "softmax":
            walk.join_lanes(used)
            self.kernels.softmax_scores(scores, ids, walk.peak, walk.total)
        else:
            self.kernels.sigmoid_scores(scores, ids)

    def block_labels(self, rows: int) -> int:
        """Labels of a block: what the device likes, cut to the budget."""
        most = self.budget_bytes // (_FLOAT_BYTES * self.kernels.lanes * max(1, rows))
        return max(1, min(self.kernels.block_labels(rows, self.labels), most))

    def keeps_logits(self, rows: int) -> bool:
        """Whether the whole matrix of logits is kept between the two walks of softmax."""
        return self.loss == "softmax" and self.labels * rows * _FLOAT_BYTES <= self.budget_bytes

    def _logits_floats(self, rows: int) -> int:
        if self.keeps_logits(rows):
            return self.labels * rows
        return self.kernels.lanes * self.block_labels(rows) * rows

    def _slots(self, rows: int) -> int:
        return (self.labels - 1) // self.block_labels(rows) + self.kernels.lanes


class _Walk:
    """One batch's arrays, and what is done to each block of labels."""

    def __init__(self, layer: OutputLayer, hidden: Array, batch: Sequence[Placed]) -> None:
        self.layer, self.kernels = layer, layer.kernels
        self.hidden, self.batch = hidden, batch
        self.rows = rows = int(hidden.shape[0])
        self.block = layer.block_labels(rows)
        self.whole = layer.keeps_logits(rows)
        buffers, lanes = layer.buffers, layer.kernels.lanes
        planes = 1 if self.whole else lanes
        height = layer.labels if self.whole else self.block
        self.logits = buffers.cube("logits", planes, height, rows)
        self.references = buffers.matrix("reference", layer._slots(rows), rows)
        self.lane_gradient = buffers.cube("gradient", lanes, rows, layer.units)
        self.bias_gradient = buffers.vector("bias gradient", layer.labels)
        self.lane_peak = buffers.matrix("lane peak", lanes, rows)
        self.lane_part = buffers.matrix("lane part", lanes, rows)
        self.lane_pair = buffers.cube("lane pair", lanes, 2, rows)
        self.lane_factors = buffers.matrix("lane factors", lanes, rows)
        self.lane_total = buffers.matrix("lane total", lanes, rows)
        self.lane_target = buffers.matrix("lane target", lanes, rows)
        self.lane_loss = buffers.matrix("lane loss", lanes, rows)
        self.peak, self.total = buffers.vector("peak", rows), buffers.vector("total", rows)
        self.lengths = buffers.vector("lengths", rows)
        self.row_weight = buffers.vector("row weight", rows)
        self.label_weight = buffers.vector("label weight", rows)
        self.loss = buffers.vector("loss", rows)
        self.started = [False] * lanes  # lanes whose gradient holds something already
        for array, value in (
            (self.lane_peak, float("-inf")), (self.lane_total, 0.0),
            (self.lane_target, 0.0), (self.lane_loss, 0.0),
        ):  # fmt: skip
            self.kernels.fill(array, value)

    def each_block(self, work: Callable[[int, int, int], None]) -> int:
        return self.kernels.for_label_blocks(self.layer.labels, self.block, work)

    def weigh_targets(self, each_row: bool) -> None:
        """What a row, and each of its labels, weighs in the mean over the batch."""
        for piece in self.batch:
            labels = piece.segment.partition.labels
            self.kernels.row_lengths(self.lengths[piece.span], labels, piece.segment.rows)
        self.kernels.target_weights(
            self.row_weight, self.label_weight, self.lengths, 1.0 / self.rows, each_row
        )

    def logits_of(self, lane: int, start: int, stop: int) -> Array:
        """The block's place, and its logits without the bias in it."""
        place = self.logits[0, start:stop] if self.whole else self.logits[lane, : stop - start]
        self.kernels.gemm(place, self.layer.weight[start:stop], self.hidden.T)
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
        block, bias = self.logits_of(lane, start, stop), self.layer.bias[start:stop]
        self._add_target_logits(block, lane, start, stop)
        self.kernels.sigmoid_block(
            block, bias, 1.0 / self.rows, self.bias_gradient[start:stop],
            self.lane_loss[lane], self.lane_pair[lane],
        )  # fmt: skip
        self._update(block, lane, start, stop, lr, updates)

    def _update(
        self, block: Array, lane: int, start: int, stop: int, lr: float, updates: Updates
    ) -> None:
        """Finish the block's gradient and hand it down, while the weights are old, and out."""
        span, bias_gradient = slice(start, stop), self.bias_gradient[start:stop]
        for piece in self.batch:
            self.kernels.subtract_targets(
                block, bias_gradient, self.label_weight,
                piece.segment.partition.labels, piece.segment.rows, piece.first_row, start,
            )  # fmt: skip
        beta = 1.0 if self.started[lane] else 0.0
        self.started[lane] = True
        self.kernels.gemm(self.lane_gradient[lane], block.T, self.layer.weight[span], beta=beta)
        updates.product("output.weight", span, block.T, self.hidden, lr)
        updates.dense("output.bias", bias_gradient, lr, rows=span)

    def gradient(self, used: int) -> Array:
        """The lanes' gradients by the hidden layer, added in order."""
        first = self.lane_gradient[0].reshape(-1)
        for lane in range(1, used):
            self.kernels.add_scaled(first, self.lane_gradient[lane].reshape(-1), 1.0)
        return self.lane_gradient[0]

    def softmax_loss(self) -> float:
        self.kernels.softmax_losses(
            self.loss, self.peak, self.total, self.lane_target, self.lengths
        )
        return self.kernels.sum64(self.loss)

    def sigmoid_loss(self) -> float:
        losses, targets = self.lane_loss.reshape(-1), self.lane_target.reshape(-1)
        return self.kernels.sum64(losses) - self.kernels.sum64(targets)

    def rank(self, lane: int, start: int, stop: int, scores: Array, ids: Array) -> None:
        """Insert the block into the lane's best k, and sum its exponentials for softmax."""
        block = self.logits_of(lane, start, stop)
        self.kernels.top_k_block(block, self.layer.bias[start:stop], start, scores[lane], ids[lane])
        if self.layer.loss == "softmax":
            self._exponentiate(block, lane, start, stop)
