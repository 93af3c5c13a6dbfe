"""Output layers that are trained on a sample of the labels: forward, loss, update.

`SampledOutput` has one sample for a batch as a whole: its weights are gathered once into a small
matrix, on which `daskxml.models.network.output` works by matrix products.
Every row is trained on the labels
of all rows of its batch.

`RowSampledOutput` has one sample for each row, as in SLIDE. A row's logits are products with the
weights of its own sample, gathered one by one; softmax, or the sum of sigmoid losses, goes over
that sample, and so does the gradient by the hidden layer. Then the pairs of row and label are
sorted by label, and each sampled label is updated once, with the sum over its rows (SLIDE's threads
update it for each row, without locks). The gradient is formed for a few labels at a time. Memory
grows with rows x labels of a sample: about 28 bytes each.

Only the sampled rows of the weights, and of the optimizer's state, change. Labels that were drawn
uniformly may stand for all that are not in the sample: with the weight ``w`` each
(`LabelSample.weight`), softmax's sum over labels is ``sum of exp(z) over certain ones + w * sum of
exp(z) over drawn ones``, which is unbiased whatever the source named; the sigmoid loss is weighted
the same way. For `RowSampledOutput` this applies row by row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import SupportsFloat

import numpy as np

from daskxml.core.arrays import Array, Csr
from daskxml.kernels import Kernels, Lookup, RowSamples, RowSums
from daskxml.models.batch import BatchSegment, Buffers, Updates, stream_key
from daskxml.models.network.output import OutputLayer
from daskxml.models.network.sampling.config import SamplingConfig
from daskxml.models.network.sampling.source import LabelSource

# Streams of a batch's key: dropout has those of the layers' numbers.
_TIES, _DRAWS, _ROW_DRAWS = 101, 102, 103


@dataclass(frozen=True, slots=True)
class LabelSample:
    """The labels that one batch is trained on.

    Attributes
    ----------
    ids
        ``(count,)`` int32, each once; valid until the next sample.
    certain
        The first so many are the rows' own or from the source; the others were drawn uniformly.
    weight
        How many labels each drawn one stands for.
    targets
        The whole batch, with its labels as positions in ``ids``.
    """

    ids: Array
    certain: int
    weight: float
    targets: BatchSegment


class BatchSampler:
    """Draws the labels of a batch: the rows' own, those that the source names, and random ones.

    ``labels`` is the model's number of labels; ``source`` is not there for chance alone.
    """

    def __init__(
        self, config: SamplingConfig, kernels: Kernels, labels: int, source: LabelSource | None
    ) -> None:
        self.config, self.kernels, self.labels, self.source = config, kernels, labels, source
        self.active = config.labels_of(labels)
        self.buffers = Buffers(kernels)
        self.buffers.reserve("ids", labels, "int32")
        self.buffers.reserve("place", labels, "int32")
        kernels.fill(self.buffers.vector("place", labels), -1)
        if source is not None:
            self.buffers.reserve("votes", kernels.threads * labels, "int32")

    def sample(self, hidden: Array, batch: Sequence[BatchSegment], key: int) -> LabelSample:
        """Draw for a batch; the same ``key``, model and source give the same labels.

        ``hidden`` is ``(rows, units)``.
        """
        ids, place = (self.buffers.vector(name, self.labels) for name in ("ids", "place"))
        count = 0
        for piece in batch:
            count = self.kernels.add_targets(ids, place, count, piece.y, piece.rows)
        count = certain = self._add_near(ids, place, count, hidden, batch, key)
        count = self.kernels.add_random(ids, place, count, self.active, stream_key(key, _DRAWS))
        drawn = count - certain
        weight = (self.labels - certain) / drawn if drawn and self.config.weighted else 1.0
        targets = self._targets(batch, int(hidden.shape[0]), place, count)
        self.kernels.clear_positions(place, ids[:count])
        return LabelSample(ids[:count], certain, weight, targets)

    def _add_near(
        self, ids: Array, place: Array, count: int, hidden: Array, batch: Sequence[BatchSegment],
        key: int,
    ) -> int:  # fmt: skip
        """Add the labels that the source names most often, but leave room for random ones."""
        if self.source is None or count >= self.active:
            return count
        votes = self.buffers.matrix("votes", self.kernels.threads, self.labels)
        self.source.vote(self.kernels, hidden, batch, votes)
        most = self.active - round(self.config.random * (self.active - count))
        return self.kernels.add_popular(ids, place, count, votes[0], most, stream_key(key, _TIES))

    def _targets(
        self, batch: Sequence[BatchSegment], rows: int, place: Array, count: int
    ) -> BatchSegment:
        """The batch's labels as positions in the sample."""
        entries = sum(self.kernels.nonzeros(piece.y, piece.rows) for piece in batch)
        self.buffers.reserve("indptr", rows + 1, "int64")
        self.buffers.reserve("indices", entries, "int32")
        indptr = self.buffers.vector("indptr", rows + 1)
        indices = self.buffers.vector("indices", entries)
        self.kernels.fill(indptr, 0)
        for piece in batch:
            own = indptr[piece.first_row : piece.span.stop + 1]
            self.kernels.write_target_positions(own, indices, place, piece.y, piece.rows)
        targets = Csr(indptr, indices, None, count)
        in_order = self.kernels.to_device(np.arange(rows))
        return BatchSegment(targets, targets, in_order, 0)


class SampledOutput:
    """Trains the output layer on the labels of a batch's sample.

    Parameters
    ----------
    weight, bias
        ``(labels, units)`` and ``(labels,)``, of all labels.
    loss, budget_bytes
        As for `daskxml.models.network.output.OutputLayer`.
    config, source
        How labels are sampled, and what names them.

    Attributes
    ----------
    evaluated
        Labels of the last batch, summed over rows.
    """

    def __init__(
        self, kernels: Kernels, weight: Array, bias: Array, loss: str, budget_bytes: int,
        config: SamplingConfig, source: LabelSource | None,
    ) -> None:  # fmt: skip
        self.kernels, self.weight, self.bias = kernels, weight, bias
        self.labels, self.units = int(weight.shape[0]), int(weight.shape[1])
        self.sampler = BatchSampler(config, kernels, self.labels, source)
        self.buffers = Buffers(kernels)
        self.evaluated = 0
        self._layer = OutputLayer(kernels, weight[:0], bias[:0], loss, budget_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        held = (self.buffers, self.sampler.buffers, self._layer.buffers)
        return sum(buffers.nbytes for buffers in held)

    def step(
        self, hidden: Array, batch: Sequence[BatchSegment], lr: float, key: int, updates: Updates
    ) -> tuple[SupportsFloat, Array]:
        """Update the sampled labels with the mean gradient over the batch.

        Parameters
        ----------
        hidden
            ``(rows, units)``: the layer's input.
        key
            Of the batch: seeds the sample.

        Returns
        -------
        SupportsFloat, Array
            The sum of the rows' losses over the sample, and the mean loss's gradient by ``hidden``,
            valid until the next call.
        """
        rows, source = int(hidden.shape[0]), self.sampler.source
        if source is not None:
            source.refresh(self.kernels, self.weight, self.bias, rows)
        sample = self.sampler.sample(hidden, batch, key)
        weight, bias = self._gathered(sample.ids)
        if self._layer.loss == "softmax":
            bias[sample.certain :] += math.log(sample.weight)
        self._layer.use(weight, bias, rows, sample.certain, sample.weight)
        self.evaluated = rows * int(sample.ids.shape[0])
        return self._layer.step(hidden, (sample.targets,), lr, SampleUpdates(updates, sample.ids))

    def _gathered(self, ids: Array) -> tuple[Array, Array]:
        """Copies of the sampled labels' parameters."""
        count = int(ids.shape[0])
        self.buffers.reserve("weight", count * self.units)
        self.buffers.reserve("bias", count)
        weight = self.buffers.matrix("weight", count, self.units)
        bias = self.buffers.vector("bias", count)
        self.kernels.take_rows(weight, self.weight, ids)
        self.kernels.take_rows(bias, self.bias, ids)
        return weight, bias


class SampleUpdates:
    """Updates of a small layer whose label ``i`` is ``ids[i]`` of the whole one."""

    def __init__(self, updates: Updates, ids: Array) -> None:
        self._updates, self._ids = updates, ids

    def dense(self, name: str, grad: Array, lr: float, rows: slice = slice(None)) -> None:
        """Apply the gradient of some labels of the sample."""
        self._updates.subset(name, self._ids[rows], grad, lr)

    def product(
        self, name: str, rows: slice, left: Array, right: Array, lr: float, scale: float = 1.0
    ) -> None:
        """Apply a gradient that is a product."""
        if scale != 1.0:
            raise NotImplementedError("gradients of sampled labels are never scaled")
        self._updates.subset_product(name, self._ids[rows], left, right, lr)

    def in_place(self, name: str, lr: float) -> None:
        """Return None: gradients of a sample are added elsewhere."""
        return


class RowSampler:
    """Draws labels for each row: its own, those that its hash query finds, and random ones.

    ``labels`` is the model's number of labels; ``source`` is not there for chance alone.
    """

    def __init__(
        self, config: SamplingConfig, kernels: Kernels, labels: int, source: LabelSource | None
    ) -> None:
        self.config, self.kernels, self.source = config, kernels, source
        self.labels, self.active = labels, config.labels_of(labels)
        self.buffers = Buffers(kernels)
        self.marks = kernels.zeros((kernels.threads, 2, labels), "int32")

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return self.buffers.nbytes + int(self.marks.nbytes)

    def sample(self, hidden: Array, batch: Sequence[BatchSegment], key: int) -> RowSamples:
        """Draw for a batch; the same ``key``, model and source give the same labels.

        The random labels of a row depend only on ``key`` and on the row's position in the batch.
        ``hidden`` is ``(rows, units)``. The samples are valid until the next call.
        """
        samples, found = self._sized(batch, int(hidden.shape[0])), self._lookup(hidden, batch)
        random, own_key = self.config.random, stream_key(key, _ROW_DRAWS)
        for piece in batch:
            self.kernels.draw_row_samples(
                samples, piece.y, piece.rows, piece.first_row, found, random, own_key, self.marks
            )
        return samples

    def _sized(self, batch: Sequence[BatchSegment], rows: int) -> RowSamples:
        """Samples of the right sizes, still without labels."""
        reserve = self.buffers.reserve
        reserve("starts", rows + 1, "int64")
        starts = self.buffers.vector("starts", rows + 1)
        self.kernels.fill(starts, 0)
        for piece in batch:
            places = starts[piece.first_row : piece.span.stop + 1]
            self.kernels.size_row_samples(places, piece.y, piece.rows, self.active)
        sizes = {"ids": int(starts[rows]), "rows": int(starts[rows]), "own": rows, "certain": rows}
        for name, size in sizes.items():
            reserve(name, size, "int32")
        return RowSamples(
            starts, *(self.buffers.vector(name, size) for name, size in sizes.items())
        )

    def times(self, samples: RowSamples) -> Array:
        """Return how often each row's drawn labels count, ``(rows,)`` float64."""
        drawn = np.diff(samples.starts) - samples.certain
        if not self.config.weighted:
            return np.ones(drawn.shape[0])
        times: Array = (self.labels - samples.certain) / np.maximum(drawn, 1)
        return np.where(drawn > 0, times, 1.0)

    def _lookup(self, hidden: Array, batch: Sequence[BatchSegment]) -> Lookup:
        if self.source is not None:
            return self.source.lookup(self.kernels, hidden, batch)
        none = (0, int(hidden.shape[0])), (0, 1), (0, 1)
        return Lookup(*(self.kernels.empty(shape, "int32") for shape in none))


class RowSampledOutput:
    """Trains the output layer on a sample of labels for each row.

    Parameters
    ----------
    weight, bias
        ``(labels, units)`` and ``(labels,)``, of all labels.
    loss
        ``softmax`` or ``sigmoid``.
    config, source
        How labels are sampled, and what names them.

    Attributes
    ----------
    evaluated
        Labels of the last batch, summed over rows.
    """

    def __init__(
        self, kernels: Kernels, weight: Array, bias: Array, loss: str, config: SamplingConfig,
        source: LabelSource | None,
    ) -> None:  # fmt: skip
        self.kernels, self.weight, self.bias, self.loss = kernels, weight, bias, loss
        self.sampler = RowSampler(config, kernels, int(weight.shape[0]), source)
        self.pairs, self.evaluated = RowPairs(kernels, weight), 0

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return self.pairs.buffers.nbytes + self.sampler.nbytes

    def step(
        self, hidden: Array, batch: Sequence[BatchSegment], lr: float, key: int, updates: Updates
    ) -> tuple[float, Array]:
        """Update the sampled labels with the mean gradient over the batch.

        Parameters
        ----------
        hidden
            ``(rows, units)``: the layer's input.
        key
            Of the batch: seeds the samples.

        Returns
        -------
        float, Array
            The sum of the rows' losses over their samples, and the mean loss's gradient by
            ``hidden``, valid until the next call.
        """
        rows, source = int(hidden.shape[0]), self.sampler.source
        if source is not None:
            source.refresh(self.kernels, self.weight, self.bias, rows)
        samples = self.sampler.sample(hidden, batch, key)
        self.evaluated = int(samples.ids.shape[0])
        slopes, gradient, loss = self.pairs.reserved(rows, self.evaluated)
        is_softmax = self.loss == "softmax"
        backward = (
            self.kernels.softmax_row_samples if is_softmax else self.kernels.sigmoid_row_samples
        )
        times = self.sampler.times(samples)
        backward(slopes, gradient, loss, samples, hidden, self.weight, self.bias, times)
        self.pairs.update(samples, slopes, hidden, lr, updates)
        return self.kernels.sum64(loss), gradient


class RowPairs:
    """Pairs of a row and a label of its sample: their gradients, and the update of the labels.

    ``weight`` is that of the layer, ``(labels, units)``.
    """

    def __init__(self, kernels: Kernels, weight: Array) -> None:
        self.kernels, self.buffers = kernels, Buffers(kernels)
        self.labels, self.units = int(weight.shape[0]), int(weight.shape[1])
        self.buffers.reserve("tally", self.labels, "int32")

    def reserved(self, rows: int, pairs: int) -> tuple[Array, Array, Array]:
        """Buffers of the gradients by logits and by the hidden layer, and of losses."""
        buffers = self.buffers
        buffers.reserve("slopes", pairs)
        buffers.reserve("gradient", rows * self.units)
        buffers.reserve("loss", rows, "float64")
        buffers.reserve("ones", rows)
        gradient = buffers.matrix("gradient", rows, self.units)
        return buffers.vector("slopes", pairs), gradient, buffers.vector("loss", rows)

    def update(
        self, samples: RowSamples, slopes: Array, hidden: Array, lr: float, updates: Updates
    ) -> None:
        """Update the labels by their gradients."""
        sums, ones = self._by_label(samples, slopes), self.buffers.matrix("ones", len(hidden), 1)
        self.kernels.fill(ones, 1.0)
        updates.subset_sums("output.weight", sums, hidden, lr)
        updates.subset_sums("output.bias", sums, ones, lr)

    def _by_label(self, samples: RowSamples, slopes: Array) -> RowSums:
        """The gradient by the weights: for each label its rows and their slopes."""
        pairs = int(samples.ids.shape[0])
        most = min(pairs, self.labels)
        self.buffers.reserve("values", pairs)
        kinds = {"ids": (most, "int32"), "starts": (most + 1, "int64"), "rows": (pairs, "int32")}
        for name, (size, kind) in kinds.items():
            self.buffers.reserve(name, size, kind)
        ids, starts, rows = (self.buffers.vector(name, size) for name, (size, _) in kinds.items())
        values = self.buffers.vector("values", pairs)
        tally = self.buffers.vector("tally", self.labels)
        entries = samples.ids, samples.rows, slopes
        count, _ = self.kernels.group_entries(ids, starts, rows, values, entries, tally)
        return RowSums(ids[:count], starts[: count + 1], rows, values)
