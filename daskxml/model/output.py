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

from daskxml.errors import ConfigError
from daskxml.model.batch import Buffers, Placed, Updates
from daskxml.model.fused_walk import FusedWalk
from daskxml.model.walk import FLOAT_BYTES, HALF_BYTES, LANE_SUMS, Walk
from daskxml.ops import Kernels
from daskxml.types import Array

_ALIGNED = 8  # numbers: of float16, the 16 bytes that products want


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
    has_halves
        Whether a step's logits are float16: see `daskxml.model.fused_walk`. Ranks are those of
        float32.

    Raises
    ------
    ConfigError
        If float16 is asked for on a device that has none.
    """

    def __init__(
        self, kernels: Kernels, weight: Array, bias: Array, loss: str, budget_bytes: int,
        has_halves: bool = False,
    ) -> None:  # fmt: skip
        if has_halves and not kernels.has_fused_softmax:
            raise ConfigError("output layer: float16 logits need a GPU")
        self._has_halves = has_halves
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
        self.buffers.reserve("reference", max(self._references(size) for size in sizes))
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
        self.buffers.reserve("reference", self._references(rows))
        self._reserve_rows(rows)

    @property
    def is_narrow(self) -> bool:
        """Whether the weights are bfloat16, held as uint16."""
        return str(self.weight.dtype) == "uint16"

    def _reserve_rows(self, rows: int) -> None:
        if self._has_halves:
            self.buffers.reserve("narrow hidden", self.stride(rows) * self.units, "float16")
            self.buffers.reserve("half weight", self.labels * self.units, "float16")
        if self.is_narrow:
            floats = max(self.block_labels(size) * self.stride(size) for size in range(1, rows + 1))
            self.buffers.reserve("narrow hidden", self.stride(rows) * self.units, "uint16")
            self.buffers.reserve("narrow block", floats, "uint16")
        lanes, reserve = self.kernels.lanes, self.buffers.reserve
        if self.stride(1) > 1 and not self.is_narrow:
            reserve("padded hidden", self.stride(rows) * self.units)
        reserve("gradient", lanes * self.stride(rows) * self.units)
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
        walk = self._walk(self, hidden, batch, self._has_halves)
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
        walk = self._walk(self, hidden, batch, self._has_halves)
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

    def stride(self, rows: int) -> int:
        """How far apart the logits of two labels are."""
        return logits_stride(self.kernels, rows)

    def block_labels(self, rows: int, logit_bytes: int = FLOAT_BYTES) -> int:
        """Labels of a block: what the device likes, cut to the budget."""
        most = self.budget_bytes // (logit_bytes * self.kernels.lanes * max(1, self.stride(rows)))
        return max(1, min(self.kernels.block_labels(rows, self.labels), most))

    def keeps_logits(self, rows: int, logit_bytes: int = FLOAT_BYTES) -> bool:
        """Whether the whole matrix of logits is kept between the two walks of softmax."""
        whole_bytes = self.labels * self.stride(rows) * logit_bytes
        return self.loss == "softmax" and whole_bytes <= self.budget_bytes

    def slots(self, rows: int, logit_bytes: int = FLOAT_BYTES) -> int:
        """The most blocks that the lanes walk through together."""
        return (self.labels - 1) // self.block_labels(rows, logit_bytes) + self.kernels.lanes

    def _logits_floats(self, rows: int) -> int:
        """Of the logits of so many rows: float32 for ranks, and what steps have."""
        return -(-max(self._logits_bytes(rows, each) for each in self._logit_bytes) // FLOAT_BYTES)

    def _logits_bytes(self, rows: int, logit_bytes: int) -> int:
        label_bytes = self.stride(rows) * logit_bytes
        if self.keeps_logits(rows, logit_bytes):
            return self.labels * label_bytes
        return self.kernels.lanes * self.block_labels(rows, logit_bytes) * label_bytes

    def _references(self, rows: int) -> int:
        return max(self.slots(rows, each) for each in self._logit_bytes) * rows

    @property
    def _logit_bytes(self) -> tuple[int, ...]:
        return (FLOAT_BYTES, HALF_BYTES) if self._has_halves else (FLOAT_BYTES,)


def logits_stride(kernels: Kernels, rows: int) -> int:
    """How far apart the logits of two labels are in a batch: see `daskxml.model.fused_walk`.

    Examples
    --------
    >>> from daskxml.ops import get_kernels
    >>> logits_stride(get_kernels("cpu", 1), 13)
    13
    """
    return -(-rows // _ALIGNED) * _ALIGNED if kernels.has_fused_softmax else rows
