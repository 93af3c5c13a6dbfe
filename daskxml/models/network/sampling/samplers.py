"""Drawing labels, for a batch as a whole or for each of its rows.

A batch's sample has the labels of all its rows. A row's own, as in SLIDE, depends on the other rows
only by their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from daskxml.core.arrays import Array, Csr
from daskxml.core.errors import ConfigError
from daskxml.kernels import Kernels, Lookup, RowSamples
from daskxml.kernels.cpu import row_sampling, sampling
from daskxml.kernels.cpu.kernels import CpuKernels
from daskxml.models.batch import BatchSegment, Buffers, stream_key
from daskxml.models.network.sampling.config import SamplingConfig
from daskxml.models.network.sampling.hash_tables import LabelTables
from daskxml.models.network.sampling.samples import LabelSample

# Streams of a batch's key: dropout has those of the layers' numbers.
_TIES, _DRAWS, _ROW_DRAWS = 101, 102, 103


class BatchSampler:
    """Draws the labels of a batch: the rows' own, those that hash tables name, and random ones.

    ``labels`` is the model's number of labels; there are no ``tables`` for chance alone.
    """

    def __init__(
        self, config: SamplingConfig, kernels: CpuKernels, labels: int, tables: LabelTables | None
    ) -> None:
        self.config, self.kernels, self.labels, self.tables = config, kernels, labels, tables
        self.active = config.labels_of(labels)
        self.buffers = Buffers(kernels)
        self.buffers.reserve("ids", labels, "int32")
        self.buffers.reserve("place", labels, "int32")
        kernels.fill(self.buffers.vector("place", labels), -1)
        if tables is not None:
            self.buffers.reserve("votes", kernels.threads * labels, "int32")

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return self.buffers.nbytes

    def sample(self, hidden: Array, batch: Sequence[BatchSegment], key: int) -> LabelSample:
        """Draw for a batch; the same ``key``, model and tables give the same labels.

        ``hidden`` is ``(rows, units)``.
        """
        ids, place = (self.buffers.vector(name, self.labels) for name in ("ids", "place"))
        count = 0
        for piece in batch:
            count = sampling.add_targets(ids, place, count, piece.y, piece.rows)
        count = certain = self._add_near(ids, place, count, hidden, key)
        count = sampling.add_random(ids, place, count, self.active, stream_key(key, _DRAWS))
        drawn = count - certain
        weight = (self.labels - certain) / drawn if drawn and self.config.weighted else 1.0
        targets = self._targets(batch, int(hidden.shape[0]), place, count)
        sampling.clear_positions(place, ids[:count])
        return LabelSample(ids[:count], certain, weight, targets)

    def _add_near(self, ids: Array, place: Array, count: int, hidden: Array, key: int) -> int:
        """Add the labels that hash tables name most often, but leave room for random ones."""
        if self.tables is None or count >= self.active:
            return count
        votes = self.buffers.matrix("votes", self.kernels.threads, self.labels)
        self.tables.vote(self.kernels, hidden, votes)
        most = self.active - round(self.config.random * (self.active - count))
        return sampling.add_popular(ids, place, count, votes[0], most, stream_key(key, _TIES))

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
            sampling.write_target_positions(own, indices, place, piece.y, piece.rows)
        targets = Csr(indptr, indices, None, count)
        in_order = self.kernels.to_device(np.arange(rows))
        return BatchSegment(targets, targets, in_order, 0)


class RowSampler:
    """Draws labels for each row: its own, those that its hash query finds, and random ones.

    ``labels`` is the model's number of labels; there are no ``tables`` for chance alone.
    """

    def __init__(
        self, config: SamplingConfig, kernels: CpuKernels, labels: int, tables: LabelTables | None
    ) -> None:
        self.config, self.kernels, self.tables = config, kernels, tables
        self.labels, self.active = labels, config.labels_of(labels)
        self.buffers = Buffers(kernels)
        self.marks = kernels.zeros((kernels.threads, 2, labels), "int32")

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return self.buffers.nbytes + int(self.marks.nbytes)

    def sample(self, hidden: Array, batch: Sequence[BatchSegment], key: int) -> RowSamples:
        """Draw for a batch; the same ``key``, model and tables give the same labels.

        The random labels of a row depend only on ``key`` and on the row's position in the batch.
        ``hidden`` is ``(rows, units)``. The samples are valid until the next call.
        """
        samples, found = self._sized(batch, int(hidden.shape[0])), self._lookup(hidden)
        random, own_key = self.config.random, stream_key(key, _ROW_DRAWS)
        for piece in batch:
            row_sampling.draw_row_samples(
                self.kernels.team,
                samples,
                piece.y,
                piece.rows,
                piece.first_row,
                found,
                random,
                own_key,
                self.marks,
            )
        self._count_drawn(samples)
        return samples

    def _sized(self, batch: Sequence[BatchSegment], rows: int) -> RowSamples:
        """Samples of the right sizes, still without labels."""
        reserve = self.buffers.reserve
        reserve("starts", rows + 1, "int64")
        starts = self.buffers.vector("starts", rows + 1)
        self.kernels.fill(starts, 0)
        for piece in batch:
            places = starts[piece.first_row : piece.span.stop + 1]
            row_sampling.size_row_samples(places, piece.y, piece.rows, self.active)
        sizes = {"ids": int(starts[rows]), "rows": int(starts[rows]), "own": rows, "certain": rows}
        for name, size in sizes.items():
            reserve(name, size, "int32")
        reserve("times", rows, "float64")
        sizes["times"] = rows
        return RowSamples(
            starts, *(self.buffers.vector(name, size) for name, size in sizes.items())
        )

    def _count_drawn(self, samples: RowSamples) -> None:
        """Set how often each row's drawn labels count."""
        samples.times[:] = 1.0
        if self.config.weighted:
            drawn = np.diff(samples.starts) - samples.certain
            others = self.labels - samples.certain
            samples.times[:] = np.where(drawn > 0, others / np.maximum(drawn, 1), 1.0)

    def _lookup(self, hidden: Array) -> Lookup:
        if self.tables is not None:
            return self.tables.lookup(self.kernels, hidden)
        none = (0, int(hidden.shape[0])), (0, 1), (0, 1)
        return Lookup(*(self.kernels.empty(shape, "int32") for shape in none))


def new_sampler(
    config: SamplingConfig, kernels: Kernels, labels: int, tables: LabelTables | None
) -> BatchSampler | RowSampler:
    """Return what draws labels as a run file says.

    Parameters
    ----------
    labels
        Of the model.
    tables
        What names labels, if anything does.

    Raises
    ------
    ConfigError
        On a GPU.
    """
    if kernels.name == "cuda":
        raise ConfigError('sampled labels need a CPU: give device "cpu", or leave sampling off')
    kind = RowSampler if config.sets == "row" else BatchSampler
    return kind(config, cast(CpuKernels, kernels), labels, tables)
