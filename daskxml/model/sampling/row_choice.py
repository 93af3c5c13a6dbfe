"""Which labels each row sees: its own, those that its hash query finds, and some by chance."""

from __future__ import annotations

from collections.abc import Sequence

from daskxml.model.batch import Buffers, Placed, batch_rows, stream_key
from daskxml.model.sampling.config import SamplingConfig
from daskxml.model.sampling.tables import LabelTables
from daskxml.ops import Kernels, Lookup, RowSets
from daskxml.types import Array

_CHOICE = 103  # stream of a batch's key, beside those of `daskxml.model.sampling.choice`


class RowChooser:
    """Chooses a set of labels for each row, with buffers of its own.

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
        self.config, self.kernels, self.tables = config, kernels, tables
        self.active = config.labels_of(labels)
        self.buffers = Buffers(kernels)
        self.marks = kernels.zeros((kernels.lanes, 2, labels), "int32")

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return self.buffers.nbytes + int(self.marks.nbytes)

    def choose(self, hidden: Array, batch: Sequence[Placed], key: int) -> RowSets:
        """Choose for a batch; the same ``key``, model and tables give the same labels.

        What chance adds to a row depends on ``key`` and on the row's place in the batch only.
        ``hidden`` is ``(rows, units)``, what the tables are asked for. The sets are valid until
        the next choice.
        """
        sets, found = self._sized(batch), self._lookup(hidden)
        own_key = stream_key(key, _CHOICE)
        for piece in batch:
            y, rows = piece.segment.partition.labels, piece.segment.rows
            self.kernels.choose_sets(
                sets, y, rows, piece.first_row, found, self.config.random, own_key, self.marks
            )
        return sets

    def _sized(self, batch: Sequence[Placed]) -> RowSets:
        """Sets that have their places, and no labels yet."""
        rows, reserve = batch_rows([piece.segment for piece in batch]), self.buffers.reserve
        reserve("starts", rows + 1, "int64")
        starts = self.buffers.vector("starts", rows + 1)
        self.kernels.fill(starts, 0)
        for piece in batch:
            places = starts[piece.first_row : piece.span.stop + 1]
            y = piece.segment.partition.labels
            self.kernels.size_sets(places, y, piece.segment.rows, self.active)
        sizes = {"ids": int(starts[rows]), "rows": int(starts[rows]), "own": rows, "certain": rows}
        for name, size in sizes.items():
            reserve(name, size, "int32")
        return RowSets(starts, *(self.buffers.vector(name, size) for name, size in sizes.items()))

    def _lookup(self, hidden: Array) -> Lookup:
        if self.tables is not None:
            return self.tables.lookup(self.kernels, hidden)
        none = (0, int(hidden.shape[0])), (0, 1), (0, 1)
        return Lookup(*(self.kernels.empty(shape, "int32") for shape in none))
