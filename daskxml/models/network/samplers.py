"""Drawing labels for a batch as a whole, or for each of its rows; a step on the latter.

A batch's sample has the labels of all its rows, and others by chance. A row's own, as in SLIDE,
depends on the other rows only by their number. Its logits are products with the weights of its own
sample, gathered one by one; softmax, or the sum of sigmoid losses, goes over that sample, and so
does the gradient by the hidden layer. Then the pairs of row and label are sorted by label, and each
sampled label is updated once, with the sum over its rows (SLIDE's threads update it for each row,
without locks). The gradient is formed for a few labels at a time. Memory grows with rows x labels
of a sample: about 28 bytes each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from daskxml.core.arrays import Array, Csr
from daskxml.core.errors import ConfigError
from daskxml.kernels import Kernels
from daskxml.kernels.cpu import row_sampling, sampling
from daskxml.kernels.cpu.kernels import CpuKernels
from daskxml.kernels.operands import RowSamples, RowSums
from daskxml.models.batch import BatchSegment, Buffers, stream_key
from daskxml.models.network.hash_tables import LabelTables
from daskxml.models.network.sampling import LabelSample, SamplingConfig
from daskxml.optim import Optimizer

# Streams of a batch's key: dropout has those of the layers' numbers.
_DRAWS, _ROW_DRAWS = 102, 103


class BatchSampler:
    """Draws the labels of a batch: the rows' own, and random ones.

    ``labels`` is the model's number of labels.
    """

    def __init__(self, config: SamplingConfig, kernels: CpuKernels, labels: int) -> None:
        self.kernels, self.labels, self.active = kernels, labels, config.labels_of(labels)
        self.buffers = Buffers(kernels)
        self._ids, self._place = (
            self.buffers.array(name, labels, dtype="int32") for name in ("ids", "place")
        )
        kernels.fill(self._place, -1)

    def sample(self, hidden: Array, batch: Sequence[BatchSegment], key: int) -> LabelSample:
        """Draw for a batch; the same ``key`` gives the same labels. ``hidden`` only says rows."""
        ids, place, count = self._ids, self._place, 0
        for piece in batch:
            count = sampling.add_targets(ids, place, count, piece.y, piece.rows)
        count = sampling.add_random(ids, place, count, self.active, stream_key(key, _DRAWS))
        targets = self._targets(batch, int(hidden.shape[0]), place, count)
        sampling.clear_positions(place, ids[:count])
        return LabelSample(ids[:count], targets)

    def _targets(
        self, batch: Sequence[BatchSegment], rows: int, place: Array, count: int
    ) -> BatchSegment:
        """The batch's labels as positions in the sample."""
        entries = sum(self.kernels.nonzeros(piece.y, piece.rows) for piece in batch)
        indptr = self.buffers.array("indptr", rows + 1, dtype="int64")
        indices = self.buffers.array("indices", entries, dtype="int32")
        self.kernels.fill(indptr, 0)
        for piece in batch:
            own = indptr[piece.first_row : piece.span.stop + 1]
            sampling.write_target_positions(own, indices, place, piece.y, piece.rows)
        targets = Csr(indptr, indices, None, count)
        in_order = self.kernels.to_device(np.arange(rows))
        return BatchSegment(targets, targets, in_order, 0)


class RowSampler:
    """Draws labels for each row: its own, those that its hash query finds, and random ones."""

    def __init__(self, config: SamplingConfig, kernels: CpuKernels, tables: LabelTables) -> None:
        self.config, self.kernels, self.tables = config, kernels, tables
        self.active = config.labels_of(tables.labels)
        self.buffers = Buffers(kernels)
        sizes = kernels.threads, 2, tables.labels
        self.marks = self.buffers.array("marks", *sizes, dtype="int32")

    def sample(self, hidden: Array, batch: Sequence[BatchSegment], key: int) -> RowSamples:
        """Draw for a batch; the same ``key``, model and tables give the same labels.

        The random labels of a row depend only on ``key`` and on the row's position in the batch.
        ``hidden`` is ``(rows, units)``. The samples are valid until the next call.
        """
        samples = self._sized(batch, int(hidden.shape[0]))
        found = self.tables.lookup(self.kernels, hidden)
        random, own_key = self.config.random, stream_key(key, _ROW_DRAWS)
        for piece in batch:
            row_sampling.draw_row_samples(
                self.kernels.team, samples, piece.y, piece.rows, piece.first_row, found, random,
                own_key, self.marks,
            )  # fmt: skip
        return samples

    def _sized(self, batch: Sequence[BatchSegment], rows: int) -> RowSamples:
        """Samples of the right sizes, still without labels."""
        starts = self.buffers.array("starts", rows + 1, dtype="int64")
        self.kernels.fill(starts, 0)
        for piece in batch:
            places = starts[piece.first_row : piece.span.stop + 1]
            row_sampling.size_row_samples(places, piece.y, piece.rows, self.active)
        pairs = int(starts[rows])
        sizes = ("ids", pairs), ("rows", pairs), ("own", rows)
        return RowSamples(starts, *(self.buffers.array(*size, dtype="int32") for size in sizes))


def new_sampler(
    config: SamplingConfig, kernels: Kernels, labels: int, tables: LabelTables | None
) -> BatchSampler | RowSampler:
    """Return what draws labels as a run file says.

    Parameters
    ----------
    labels
        Of the model.
    tables
        What names labels of each row; None: chance draws a batch's.

    Raises
    ------
    ConfigError
        On a GPU.
    """
    if kernels.name == "cuda":
        raise ConfigError('sampled labels need a CPU: give device "cpu", or leave sampling off')
    cpu = cast(CpuKernels, kernels)
    if tables is None:
        return BatchSampler(config, cpu, labels)
    return RowSampler(config, cpu, tables)


class RowPairs:
    """Pairs of a row and a label of its sample: their gradients, and the update of the labels.

    Parameters
    ----------
    weight, bias
        ``(labels, units)`` and ``(labels,)``, of all labels.
    loss
        ``softmax`` or ``sigmoid``.
    """

    def __init__(self, kernels: CpuKernels, weight: Array, bias: Array, loss: str) -> None:
        self.kernels, self.weight, self.bias, self.loss = kernels, weight, bias, loss
        self.labels, self.units = int(weight.shape[0]), int(weight.shape[1])
        self.buffers = Buffers(kernels)
        self._tally = self.buffers.array("tally", self.labels, dtype="int32")

    def step(
        self, samples: RowSamples, hidden: Array, lr: float, updates: Optimizer
    ) -> tuple[float, Array]:
        """Update the sampled labels; see `daskxml.models.network.output.OutputLayer.step`."""
        kernels, buffers, rows = self.kernels, self.buffers, int(hidden.shape[0])
        slopes = buffers.array("slopes", samples.pairs)
        loss = buffers.array("loss", rows, dtype="float64")
        gradient = buffers.array("gradient", rows, self.units)
        place = samples, hidden, self.weight, self.bias, self.loss == "softmax"
        row_sampling.sampled_losses(kernels.team, slopes, gradient, loss, *place)
        self._update(samples, slopes, hidden, lr, updates)
        return kernels.deferred_sum((loss, 1.0)), gradient

    def _update(
        self, samples: RowSamples, slopes: Array, hidden: Array, lr: float, updates: Optimizer
    ) -> None:
        """Update the labels by their gradients."""
        sums, ones = self._by_label(samples, slopes), self.buffers.array("ones", len(hidden), 1)
        self.kernels.fill(ones, 1.0)
        updates.subset_sums("output.weight", sums, hidden, lr)
        updates.subset_sums("output.bias", sums, ones, lr)

    def _by_label(self, samples: RowSamples, slopes: Array) -> RowSums:
        """The gradient by the weights: for each label its rows and their slopes."""
        pairs = samples.pairs
        most = min(pairs, self.labels)
        ids = self.buffers.array("ids", most, dtype="int32")
        starts = self.buffers.array("starts", most + 1, dtype="int64")
        rows = self.buffers.array("rows", pairs, dtype="int32")
        values = self.buffers.array("values", pairs)
        entries = samples.ids, samples.rows, slopes
        count, _ = self.kernels.group_entries(ids, starts, rows, values, entries, self._tally)
        return RowSums(ids[:count], starts[: count + 1], rows, values)
