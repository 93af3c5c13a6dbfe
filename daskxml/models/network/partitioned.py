"""A network whose output layer is cut along its labels: the order of labels, and a part's step.

Labels are put in an order that the run's seed gives, so that frequent and rare ones spread over
all parts; a part is a range of places in that order. The step of a part is the one of
`daskxml.models.network.output`, cut open where the workers exchange something: softmax needs the
peak and the sum of exponentials of each row over the labels of all, and the layers below need the
sum of the gradients by the last hidden layer. The update of the last blocks of weights waits until
the part's own gradient is on its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskxml.core.arrays import Array, Csr
from daskxml.core.errors import ConfigError
from daskxml.models.batch import BatchSegment, OutputUpdates
from daskxml.models.network.blocked_output import FLOAT_BYTES, BlockedOutput, RecomputedOutput
from daskxml.models.network.mlp import Mlp
from daskxml.models.network.output import OutputLayer
from daskxml.models.network.weighted_output import WeightedOutput

WAITING_BYTES = 16 << 20  # of gradients by logits, whose blocks of weights are updated last
_LABEL_ORDER = 5  # keeps this random choice of a run apart from others


@dataclass(frozen=True, slots=True)
class LabelOrder:
    """The labels in the order in which they are cut into parts.

    Attributes
    ----------
    labels
        ``(labels,)`` int32: the label at each place.
    places
        ``(labels,)`` int32: the place of each label.
    """

    labels: Array
    places: Array

    @classmethod
    def of(cls, labels: int, seed: int) -> LabelOrder:
        """Return the order of a seed.

        Examples
        --------
        >>> order = LabelOrder.of(5, seed=1)
        >>> order.labels[order.places]
        array([0, 1, 2, 3, 4], dtype=int32)
        """
        drawn = np.random.default_rng([abs(seed), _LABEL_ORDER]).permutation(labels)
        places = np.empty(labels, np.int32)
        places[drawn] = np.arange(labels, dtype=np.int32)
        return cls(drawn.astype(np.int32), places)

    def placed(self, matrix: Csr) -> Csr:
        """Return rows of labels as rows of places, ascending in each row."""
        rows = np.repeat(np.arange(matrix.rows, dtype=np.int64), np.diff(matrix.indptr))
        keys = np.sort(rows * matrix.columns + self.places[matrix.indices])
        places = (keys - rows * matrix.columns).astype(np.int32)
        return Csr(matrix.indptr, places, matrix.data, matrix.columns)


def cut_labels(labels: int, shares: Sequence[int]) -> tuple[int, ...]:
    """Return where labels are cut in proportion to shares: the first place of each, and the end.

    Raises
    ------
    ConfigError
        If there are fewer labels than parts.

    Examples
    --------
    >>> cut_labels(10, (2, 1, 1))
    (0, 5, 8, 10)
    """
    if labels < len(shares):
        raise ConfigError(
            f"[model] output = 'partitioned': {labels} labels cannot be cut for {len(shares)} "
            "workers: leave it out, or take fewer workers"
        )
    ends = np.rint(np.cumsum(shares) * (labels / sum(shares))).astype(np.int64)
    for part, end in enumerate(ends[:-1]):  # none is empty
        before = ends[part - 1] if part else 0
        ends[part] = min(max(end, before + 1), labels - (len(shares) - 1 - part))
    return (0, *map(int, ends))


class PartPass(BlockedOutput):
    """The arrays and operations of one batch on a part of the labels.

    Attributes
    ----------
    waits_from
        The blocks from this label of the part on are updated by `update_waiting`.
    """

    layer: PartitionedOutput

    def __init__(
        self, layer: PartitionedOutput, hidden: Array, batch: Sequence[BatchSegment]
    ) -> None:
        super().__init__(layer, hidden, batch)
        waiting = layer.waiting_labels(self.rows)
        self.waits_from, self._used = layer.labels - waiting, 0
        self._waiting: dict[int, Array] = {}
        if not self.whole:
            self._kept = layer.buffers.matrix("waiting", waiting, self.stride)

    @property
    def share_waiting(self) -> float:
        """The share of the weights that `update_waiting` updates, about."""
        return 1.0 - self.waits_from / max(1, self.layer.labels)

    def logits_of(self, lane: int, start: int, stop: int) -> Array:
        """Compute the logits of a block, without the bias; those that wait stay where they are."""
        if self.whole or start < self.waits_from:
            return super().logits_of(lane, start, stop)
        block = self._kept[start - self.waits_from : stop - self.waits_from]
        self.kernels.gemm(block, self.weight[start:stop], self.factor.T)
        return block

    def exponentials(self) -> None:
        """Run the first pass of softmax: peak and total of every row over the part's labels."""
        self._used = self.each_block(self._exponentials_of)
        if self.layer.labels:
            self.join_lanes(self._used)
        else:  # a sample has none of this part
            self.kernels.fill(self.peak, float("-inf"))
            self.kernels.fill(self.total, 0.0)

    def join_parts(self, peaks: Array, totals: Array) -> None:
        """Set peak and total of every row over all labels, from those of all parts.

        ``peaks`` float32 and ``totals`` float64 are ``(parts, rows)``, in the order of the parts.
        """
        self.kernels.merge_softmax(peaks, totals, self.peak, self.total)
        if not self.whole:  # the second pass starts from the final peak
            for lane in range(self._used):
                self.kernels.copy(self.lane_peak[lane], self.peak)

    def back_propagate(self) -> Array:
        """Return the part's gradient by the hidden layer; update all weights that do not wait."""
        softmax = self.layer.loss == "softmax"
        if not self.layer.labels:
            self.kernels.fill(self.lane_gradient[0], 0.0)
        lanes = self.each_block(self.softmax_update if softmax else self.sigmoid_update)
        self.finish()
        return self.gradient(lanes)

    def update_weight(self, span: slice, delta: Array) -> None:
        """Update the weights of a block, or let them wait."""
        if span.start < self.waits_from:
            super().update_weight(span, delta)
        else:
            self._waiting[span.start] = delta  # by any of the threads

    def update_waiting(self) -> None:
        """Update the weights that waited."""

        def work(lane: int, start: int, stop: int) -> None:
            if start in self._waiting:
                super(PartPass, self).update_weight(slice(start, stop), self._waiting[start])

        self.each_block(work)

    def loss_sum(self, own: slice) -> float:
        """Return a sum that is, over all parts, the sum of the rows' losses.

        ``own`` are the rows of which this part counts what is common to all labels.
        """
        if self.layer.loss == "sigmoid":
            return float(self.sigmoid_loss())
        held = self.peak, self.total, self.lengths, self.lane_target
        peak, total, counts, target = map(self.kernels.to_host, held)
        has_labels = counts > 0.0
        lengths = np.maximum(counts, 1.0)
        common = (peak + np.log(total))[own]
        targets = target.sum(axis=0) / lengths
        return float(common[has_labels[own]].sum() - targets.sum())


class RecomputedPartPass(PartPass, RecomputedOutput):
    """`PartPass` on a GPU, whose second pass starts from a shift of every row."""

    def join_parts(self, peaks: Array, totals: Array) -> None:
        """As in `PartPass`; then set the shift."""
        self.kernels.merge_softmax(peaks, totals, self.peak, self.total)
        self.shift = self.lane_factors[0]
        self.kernels.softmax_shift(self.shift, self.peak, self.total, self.row_weight)


class WeightedPartPass(PartPass, WeightedOutput):
    """`PartPass` with the weights of the batch's rows and of all labels."""

    def loss_sum(self, own: slice) -> float:
        """Return a sum that is, over all parts, the sum of the rows' weighted losses."""
        if self.layer.loss == "sigmoid":
            return float(self.sigmoid_loss())
        lengths = np.maximum(self.lengths, 1.0)
        common = self.mean_weight * (self.peak + np.log(self.total)) * (self.lengths > 0.0)
        targets = self.lane_target.sum(axis=0) / lengths
        return float((self.share * common)[own].sum() - (self.share * targets).sum())


class PartitionedOutput(OutputLayer):
    """A part of an output layer; ``first_label`` is its first place in the order of the labels."""

    def waiting_labels(self, rows: int) -> int:
        """Return how many labels, the last ones, are updated after the others."""
        label_bytes = FLOAT_BYTES * max(1, self.stride(rows))
        return min(self.labels, min(WAITING_BYTES, self.budget_bytes) // label_bytes)

    def _reserve_rows(self, rows: int) -> None:
        super()._reserve_rows(rows)
        floats = max(self.waiting_labels(size) * self.stride(size) for size in range(1, rows + 1))
        self.buffers.reserve("waiting", floats)

    def begin(
        self, hidden: Array, batch: Sequence[BatchSegment], lr: float, updates: OutputUpdates
    ) -> PartPass:
        """Begin a step; see `OutputLayer.step`."""
        has_weights = any(piece.weights is not None for piece in batch)
        is_weighted = has_weights or self.label_weights is not None
        kind = RecomputedPartPass if self.kernels.has_fused_softmax else PartPass
        found = (WeightedPartPass if is_weighted else kind)(self, hidden, batch)
        found.begin_update(lr, updates)
        return found

    def rank(self, hidden: Array, scores: Array, ids: Array) -> None:
        """Fill ``scores`` with the largest logits, and ``ids`` with their labels in the part."""
        self._rank(hidden, scores, ids)


class PartitionedMlp(Mlp):
    """The layers below, and a part of the labels."""

    output: PartitionedOutput

    def _new_output(self, *arguments: Any) -> PartitionedOutput:
        return PartitionedOutput(*arguments)
