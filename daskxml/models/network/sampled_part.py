"""A part of an output layer that is trained on a sample of all labels.

Every part draws the batch's whole sample by the same key, as one worker with all labels does
(`daskxml.models.network.sampling.outputs`), and is trained on those of its own.
What names labels, hash
tables or label trees, therefore knows all of them on every worker: trees do not change, and keys of
labels, a small part of their weights, are exchanged when tables are built.

`SampledPart` has one sample for a batch. In its own numbering of the sample the labels of other
parts come first, so that the batch's labels fall to the parts as they do where nothing is sampled.
`RowSampledPart` has one for each row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daskxml.core.arrays import Array
from daskxml.kernels import Kernels, RowSamples
from daskxml.models.batch import BatchSegment, Buffers, Updates
from daskxml.models.network.partitioned import LabelOrder, PartitionedOutput, PartPass
from daskxml.models.network.sampling import LabelSource, SamplingConfig
from daskxml.models.network.sampling.outputs import (
    BatchSampler,
    RowPairs,
    RowSampler,
    SampleUpdates,
)


@dataclass(frozen=True, slots=True)
class Part:
    """The labels of a part: those from ``start`` to ``stop`` in their order."""

    order: LabelOrder
    start: int
    stop: int

    def divide(self, ids: Array, certain: int) -> tuple[Array, int, int]:
        """Return a sample with the labels of other parts first.

        Returns
        -------
        Array, int, int
            The labels; how many are other parts'; and how many of its own are certain.

        Examples
        --------
        >>> part = Part(LabelOrder(np.arange(6), np.arange(6)), 2, 4)
        >>> part.divide(np.array([3, 5, 0, 2]), certain=2)
        (array([5, 0, 3, 2]), 2, 1)
        """
        is_own, _ = self.own(ids)
        own, others = ids[is_own], ids[~is_own]
        return np.concatenate([others, own]), len(others), int(is_own[:certain].sum())

    def own(self, ids: Array) -> tuple[Array, Array]:
        """Return which labels are of this part, and those by their place in it, int32."""
        places = self.order.places[ids]
        is_own = (places >= self.start) & (places < self.stop)
        return is_own, (places[is_own] - self.start).astype(np.int32)

    def of_rows(self, samples: RowSamples) -> RowSamples:
        """Return what rows have of this part: labels by their place in it."""
        is_own, ids = self.own(samples.ids)
        before = np.concatenate([[0], np.cumsum(is_own)])
        starts, first = before[samples.starts], samples.starts[:-1]
        own, certain = (
            (before[first + count] - starts[:-1]).astype(np.int32)
            for count in (samples.own, samples.certain)
        )
        return RowSamples(starts, ids, samples.rows[is_own], own, certain)


class SampledPart:
    """Trains a part of the labels on a batch's sample.

    Parameters
    ----------
    weight, bias, loss, budget_bytes
        Of the part, as for `daskxml.models.network.output.OutputLayer`.
    config, source
        How labels are sampled, and what names them, of all.
    part
        Which labels these are.

    Attributes
    ----------
    evaluated
        Labels of the part in the last batch's sample, summed over rows.
    """

    def __init__(
        self, kernels: Kernels, weight: Array, bias: Array, loss: str, budget_bytes: int,
        config: SamplingConfig, source: LabelSource | None, part: Part,
    ) -> None:  # fmt: skip
        self.kernels, self.weight, self.bias, self.part = kernels, weight, bias, part
        labels, self.units = int(part.order.labels.shape[0]), int(weight.shape[1])
        self.sampler = BatchSampler(config, kernels, labels, source)
        self.buffers, self.evaluated = Buffers(kernels), 0
        self._layer = PartitionedOutput(kernels, weight[:0], bias[:0], loss, budget_bytes)

    def begin(
        self, hidden: Array, batch: Sequence[BatchSegment], lr: float, key: int, updates: Updates
    ) -> PartPass:
        """Begin a step; ``batch`` has labels by their ids, and ``key`` seeds the sample."""
        drawn = self.sampler.sample(hidden, batch, key, self.part)
        _, rows = self.part.own(drawn.ids)
        weight, bias = self._gathered(rows)
        if self._layer.loss == "softmax":
            bias[drawn.certain :] += math.log(drawn.weight)
        self._layer.first_label = drawn.first
        self._layer.use(weight, bias, int(hidden.shape[0]), drawn.certain, drawn.weight)
        self.evaluated = int(hidden.shape[0]) * int(rows.shape[0])
        return self._layer.begin(hidden, (drawn.targets,), lr, SampleUpdates(updates, rows))

    def _gathered(self, rows: Array) -> tuple[Array, Array]:
        """Copies of the sampled labels' parameters."""
        count = int(rows.shape[0])
        self.buffers.reserve("weight", count * self.units)
        self.buffers.reserve("bias", count)
        weight = self.buffers.matrix("weight", count, self.units)
        bias = self.buffers.vector("bias", count)
        self.kernels.take_rows(weight, self.weight, rows)
        self.kernels.take_rows(bias, self.bias, rows)
        return weight, bias


class RowSampledPart:
    """Trains a part of the labels on a sample of each row.

    Parameters and attributes are those of `SampledPart`, but for the budget.
    """

    def __init__(
        self, kernels: Kernels, weight: Array, bias: Array, loss: str, config: SamplingConfig,
        source: LabelSource | None, part: Part,
    ) -> None:  # fmt: skip
        self.kernels, self.weight, self.bias, self.part = kernels, weight, bias, part
        labels = int(part.order.labels.shape[0])
        self.sampler = RowSampler(config, kernels, labels, source)
        self.loss, self.pairs, self.evaluated = loss, RowPairs(kernels, weight), 0

    def begin(
        self, hidden: Array, batch: Sequence[BatchSegment], lr: float, key: int, updates: Updates
    ) -> RowPartPass:
        """Begin a step; ``batch`` has labels by their ids, and ``key`` seeds the samples."""
        drawn = self.sampler.sample(hidden, batch, key)
        found = RowPartPass(self, hidden, self.part.of_rows(drawn), drawn.own, lr, updates)
        found.times = self.sampler.times(drawn)
        self.evaluated = int(found.samples.ids.shape[0])
        return found


class RowPartPass:
    """The operations of one batch, as those of `daskxml.models.network.partitioned.PartPass`.

    Parameters
    ----------
    samples
        Of the part.
    targets
        ``(rows,)``: how many targets each row has in all parts.

    Attributes
    ----------
    peak, total
        ``(rows,)`` float32 and float64: of softmax, over this part's labels, then over all.
    """

    share_waiting = 1.0  # the update by the weights comes last

    def __init__(
        self, layer: RowSampledPart, hidden: Array, samples: RowSamples, targets: Array, lr: float,
        updates: Updates,
    ) -> None:  # fmt: skip
        self.layer, self.kernels, self.hidden, self.samples = layer, layer.kernels, hidden, samples
        self.targets, self.lr, self.updates = targets, lr, updates
        rows = int(hidden.shape[0])
        reserved = layer.pairs.reserved(rows, int(samples.ids.shape[0]))
        self.slopes, self.hidden_gradient, self.losses = reserved
        self.times = np.ones(rows)
        self.sums = np.zeros((3, rows))

    def exponentials(self) -> None:
        """Run the first pass of softmax."""
        weight, bias = self.layer.weight, self.layer.bias
        operands = self.samples, self.hidden, weight, bias, self.times
        self.kernels.row_sample_exponentials(self.slopes, self.sums, *operands)
        self.peak, self.total = self.sums[0].astype(np.float32), self.sums[1]

    def join_parts(self, peaks: Array, totals: Array) -> None:
        """Set peak and total of every row over its labels in all parts; see `PartPass`."""
        self.peak, self.total = np.empty_like(self.peak), np.empty_like(self.total)
        self.kernels.merge_softmax(peaks, totals, self.peak, self.total)

    def back_propagate(self) -> Array:
        """Return the part's gradient by the hidden layer."""
        weight, bias, gradient = self.layer.weight, self.layer.bias, self.hidden_gradient
        if self.layer.loss == "sigmoid":
            operands = self.samples, self.hidden, weight, bias, self.times
            self.kernels.sigmoid_row_samples(self.slopes, gradient, self.losses, *operands)
            return gradient
        shares = (self.targets > 0) / (len(self.targets) * np.maximum(self.targets, 1.0))
        factors = np.exp(self.sums[0] - self.peak) / (len(self.targets) * self.total)
        factors[self.targets == 0] = 0.0
        self.kernels.row_sample_gradient(
            self.slopes, gradient, self.samples, weight, factors, shares
        )
        return gradient

    def update_waiting(self) -> None:
        """Update the weights."""
        self.layer.pairs.update(self.samples, self.slopes, self.hidden, self.lr, self.updates)

    def loss_sum(self, own: slice) -> float:
        """Return a sum that is, over all parts, the sum of the rows' losses; see `PartPass`."""
        if self.layer.loss == "sigmoid":
            return float(self.kernels.sum64(self.losses))
        common = (self.peak + np.log(self.total))[own]
        targets = self.sums[2] / np.maximum(self.targets, 1.0)
        return float(common[self.targets[own] > 0].sum() - targets.sum())
