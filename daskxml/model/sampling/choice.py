"""Which labels a batch sees: its rows' own, those that the tables name, and some by chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daskxml.model.batch import Buffers, Placed, batch_rows, stream_key
from daskxml.model.sampling.config import SamplingConfig
from daskxml.model.sampling.tables import LabelTables
from daskxml.ops import Kernels
from daskxml.types import Array, Csr, Partition, Segment

_TIES, _DRAWS = 101, 102  # streams of a batch's key: dropout has those of the layers' numbers


@dataclass(frozen=True, slots=True)
class Chosen:
    """The labels of one batch.

    Attributes
    ----------
    ids
        ``(count,)`` int32, each once; valid until the next choice.
    certain
        How many of them, the first ones, are there for a reason; the others were drawn evenly.
    weight
        How many labels each of those that were drawn stands for.
    targets
        The whole batch, its labels given as places in ``ids``.
    """

    ids: Array
    certain: int
    weight: float
    targets: Placed


class Chooser:
    """Chooses, with buffers of its own.

    Parameters
    ----------
    labels
        Of the model.
    tables
        Where the method hashes.
    """

    def __init__(
        self, config: SamplingConfig, kernels: Kernels, labels: int, tables: LabelTables | None
    ) -> None:
        self.config, self.kernels, self.labels, self.tables = config, kernels, labels, tables
        self.active = config.labels_of(labels)
        self.buffers = Buffers(kernels)
        self.buffers.reserve("ids", labels, "int32")
        self.buffers.reserve("place", labels, "int32")
        kernels.fill(self.buffers.vector("place", labels), -1)
        if tables is not None:
            self.buffers.reserve("votes", kernels.lanes * labels, "int32")

    def choose(self, hidden: Array, batch: Sequence[Placed], key: int) -> Chosen:
        """Choose for a batch; the same ``key``, model and tables give the same labels.

        ``hidden`` is ``(rows, units)``, what the tables are asked for.
        """
        ids, place = (
            self.buffers.vector("ids", self.labels),
            self.buffers.vector("place", self.labels),
        )
        count = 0
        for piece in batch:
            y, rows = piece.segment.partition.labels, piece.segment.rows
            count = self.kernels.add_targets(ids, place, count, y, rows)
        count = certain = self._add_near(ids, place, count, hidden, key)
        count = self.kernels.add_random(ids, place, count, self.active, stream_key(key, _DRAWS))
        targets = self._targets(batch, place, count)
        self.kernels.clear_places(place, ids[:count])
        drawn = count - certain
        weight = (self.labels - certain) / drawn if drawn and self.config.weighted else 1.0
        return Chosen(ids[:count], certain, weight, targets)

    def _add_near(self, ids: Array, place: Array, count: int, hidden: Array, key: int) -> int:
        """Add what the tables name, but leave room for chance."""
        if self.tables is None or count >= self.active:
            return count
        votes = self.buffers.matrix("votes", self.kernels.lanes, self.labels)
        self.tables.vote(self.kernels, hidden, votes)
        most = self.active - round(self.config.random * (self.active - count))
        return self.kernels.add_popular(ids, place, count, votes[0], most, stream_key(key, _TIES))

    def _targets(self, batch: Sequence[Placed], place: Array, count: int) -> Placed:
        """The batch's labels as places among the chosen ones."""
        rows, reserve = batch_rows([piece.segment for piece in batch]), self.buffers.reserve
        reserve("indptr", rows + 1, "int64")
        entries = sum(self._entries(piece) for piece in batch)
        reserve("indices", entries, "int32")
        indptr = self.buffers.vector("indptr", rows + 1)
        indices = self.buffers.vector("indices", entries)
        self.kernels.fill(indptr, 0)
        for piece in batch:
            own = indptr[piece.first_row : piece.span.stop + 1]
            y = piece.segment.partition.labels
            self.kernels.place_targets(own, indices, place, y, piece.segment.rows)
        targets = Csr(indptr, indices, None, count)
        in_order = self.kernels.to_device(np.arange(rows))
        return Placed(Segment(Partition(targets, targets), in_order), 0)

    def _entries(self, piece: Placed) -> int:
        return self.kernels.nonzeros(piece.segment.partition.labels, piece.segment.rows)
