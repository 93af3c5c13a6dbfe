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

from collections.abc import Sequence
from typing import SupportsFloat

from daskxml.model.batch import Buffers, Placed, Updates
from daskxml.model.fused_walk import FusedWalk
from daskxml.model.walk import LANE_SUMS, Walk
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
        self.certain, self.weight_of_others = self.labels, 1.0
        self.buffers = Buffers(kernels)
        self._walk = FusedWalk if kernels.has_fused_softmax else Walk

    def reserve(self, rows: int) -> None:
        """Allocate for batches of up to ``rows`` rows."""
        sizes = range(1, rows + 1)  # a smaller batch may have more blocks: take the most of each
        self.buffers.reserve("logits", max(self._logits_floats(size) for size in sizes))
        self.buffers.reserve("reference", max(self.slots(size) * size for size in sizes))
        self._reserve_rows(rows)

    def use(
        self, weight: Array, bias: Array, rows: int, certain: int, weight_of_others: float
    ) -> None:
        """Work with other parameters, of as many units, in the next step.

        Parameters
        ----------
        weight, bias
            ``(labels, units)`` and ``(labels,)``.
        rows
            Of that step's batch.
        certain, weight_of_others
            With the sigmoid loss, labels from this one on count so many times each.
        """
        self.weight, self.bias, self.labels = weight, bias, int(weight.shape[0])
        self.certain, self.weight_of_others = certain, weight_of_others
        self.buffers.reserve("logits", self._logits_floats(rows))
        self.buffers.reserve("reference", self.slots(rows) * rows)
        self._reserve_rows(rows)

    @property
    def is_narrow(self) -> bool:
        """Whether the weights are bfloat16, held as uint16."""
        return str(self.weight.dtype) == "uint16"

    def _reserve_rows(self, rows: int) -> None:
        if self.is_narrow:
            floats = max(self.block_labels(size) * size for size in range(1, rows + 1))
            self.buffers.reserve("narrow hidden", rows * self.units, "uint16")
            self.buffers.reserve("narrow block", floats, "uint16")
        lanes, reserve = self.kernels.lanes, self.buffers.reserve
        reserve("gradient", lanes * rows * self.units)
        reserve("bias gradient", self.labels)
        for name in ("lane peak", "lane part", "lane factors"):
            reserve(name, lanes * rows)
        reserve("lane pair", lanes * 2 * rows)
        reserve("lane sums", LANE_SUMS * lanes * rows, "float64")
        for name in ("peak", "lengths", "row weight", "label weight"):
            reserve(name, rows)
        for name in ("total", "loss"):
            reserve(name, rows, "float64")

    def step(
        self, hidden: Array, batch: Sequence[Placed], lr: float, updates: Updates
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
            The sum of the rows' losses (who makes a float of it waits), and the mean loss's
            gradient by ``hidden`` ``(rows, units)``, valid until the next call.
        """
        walk = self._walk(self, hidden, batch)
        walk.weigh_targets(each_row=self.loss == "softmax")
        if self.loss == "softmax":
            walk.exponentials()
            lanes = walk.each_block(lambda i, a, b: walk.softmax_update(i, a, b, lr, updates))
            walk.finish(lr, updates)
            return walk.softmax_loss(), walk.gradient(lanes)
        lanes = walk.each_block(lambda i, a, b: walk.sigmoid_update(i, a, b, lr, updates))
        walk.finish(lr, updates)
        return walk.sigmoid_loss(), walk.gradient(lanes)

    def loss_sum(self, hidden: Array, batch: Sequence[Placed]) -> float:
        """The sum of the rows' losses, the same bits as `step` finds; nothing is updated."""
        walk = self._walk(self, hidden, batch)
        if self.loss == "softmax":
            walk.count_targets()
            walk.exponentials()
            return float(walk.softmax_loss())
        walk.each_block(walk.add_sigmoid_losses)
        return float(walk.sigmoid_loss())

    def top_k(self, hidden: Array, scores: Array, ids: Array) -> None:
        """Fill ``scores`` float32 and ``ids`` int32, both ``(rows, k)``, best first."""
        rows, k = scores.shape
        walk, lanes = self._walk(self, hidden, ()), self.kernels.lanes
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

    def slots(self, rows: int) -> int:
        """The most blocks that the lanes walk through together."""
        return (self.labels - 1) // self.block_labels(rows) + self.kernels.lanes
