"""The output layer where each row sees labels of its own, as in SLIDE: forward, loss, update.

A row's logits are products with the weights of its own set, gathered one by one; its softmax, or
the sum of its sigmoid losses, goes over that set, and so does the gradient by its hidden layer.
Then the pairs of row and label are sorted by label, and each label that any row saw is updated
once, with the sum over those rows (SLIDE's threads update it for each row, without locks). The
gradient is formed for a few labels at a time. Other rows of the weights, and what the optimizer
remembers of them, stay as they are.

What `daskxml.model.sampling.layer` says of weights for labels that were drawn holds row by row.
Memory grows with rows x labels of a set: about 28 bytes each.
"""

from __future__ import annotations

from collections.abc import Sequence

from daskxml.model.batch import Buffers, Placed, Updates
from daskxml.model.sampling.config import SamplingConfig
from daskxml.model.sampling.row_choice import RowChooser
from daskxml.model.sampling.tables import LabelTables
from daskxml.ops import Kernels, RowSets, RowSums
from daskxml.types import Array


class RowSampledOutput:
    """Trains the output layer on a set of labels for each row.

    Parameters
    ----------
    weight, bias
        ``(labels, units)`` and ``(labels,)``: all labels'.
    loss
        ``softmax`` or ``sigmoid``.
    config
        How labels are chosen.
    tables
        Where they are looked up, if the method hashes.

    Attributes
    ----------
    seen
        Labels that the rows of the last batch saw, summed over rows.
    """

    def __init__(
        self, kernels: Kernels, weight: Array, bias: Array, loss: str, config: SamplingConfig,
        tables: LabelTables | None,
    ) -> None:  # fmt: skip
        self.kernels, self.weight, self.bias, self.loss = kernels, weight, bias, loss
        self.labels, self.units = int(weight.shape[0]), int(weight.shape[1])
        self.chooser = RowChooser(config, kernels, self.labels, tables)
        self.buffers = Buffers(kernels)
        self.buffers.reserve("tally", self.labels, "int32")
        self.seen = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return self.buffers.nbytes + self.chooser.nbytes

    def step(
        self, hidden: Array, batch: Sequence[Placed], lr: float, key: int, updates: Updates
    ) -> tuple[float, Array]:
        """Update the labels that were chosen with the mean gradient over the batch.

        Parameters
        ----------
        hidden
            ``(rows, units)``: the layer's input.
        key
            The batch's: seeds what chance chooses.

        Returns
        -------
        float, Array
            The sum of the rows' losses, as their sets tell it, and the mean loss's gradient by
            ``hidden``, valid until the next call.
        """
        rows, tables = int(hidden.shape[0]), self.chooser.tables
        if tables is not None:
            tables.refresh(self.kernels, self.weight, self.bias, rows)
        sets = self.chooser.choose(hidden, batch, key)
        self.seen = int(sets.ids.shape[0])
        slopes, gradient, loss = self._reserved(rows)
        is_softmax = self.loss == "softmax"
        walk = self.kernels.softmax_sets if is_softmax else self.kernels.sigmoid_sets
        weighted = self.chooser.config.weighted
        walk(slopes, gradient, loss, sets, hidden, self.weight, self.bias, weighted)
        sums, ones = self._by_label(sets, slopes), self.buffers.matrix("ones", rows, 1)
        self.kernels.fill(ones, 1.0)
        updates.chosen_sums("output.weight", sums, hidden, lr)
        updates.chosen_sums("output.bias", sums, ones, lr)
        return self.kernels.sum64(loss), gradient

    def _reserved(self, rows: int) -> tuple[Array, Array, Array]:
        """Room for gradients by logits and by the hidden layer, and for losses."""
        buffers = self.buffers
        buffers.reserve("slopes", self.seen)
        buffers.reserve("gradient", rows * self.units)
        buffers.reserve("loss", rows, "float64")
        buffers.reserve("ones", rows)
        gradient = buffers.matrix("gradient", rows, self.units)
        return buffers.vector("slopes", self.seen), gradient, buffers.vector("loss", rows)

    def _by_label(self, sets: RowSets, slopes: Array) -> RowSums:
        """The gradient by the weights: for each label its rows and their slopes."""
        pairs, most = self.seen, min(self.seen, self.labels)
        self.buffers.reserve("values", pairs)
        kinds = {"ids": (most, "int32"), "starts": (most + 1, "int64"), "rows": (pairs, "int32")}
        for name, (size, kind) in kinds.items():
            self.buffers.reserve(name, size, kind)
        ids, starts, rows = (self.buffers.vector(name, size) for name, (size, _) in kinds.items())
        values, tally = (
            self.buffers.vector("values", pairs),
            self.buffers.vector("tally", self.labels),
        )
        entries = sets.ids, sets.rows, slopes
        count, _ = self.kernels.group_entries(ids, starts, rows, values, entries, tally)
        return RowSums(ids[:count], starts[: count + 1], rows, values)
