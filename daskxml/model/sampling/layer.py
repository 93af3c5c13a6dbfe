"""The output layer where a batch sees some of the labels: forward, loss and sparse update.

The labels are chosen for the batch as a whole (`daskxml.model.sampling.choice`), and not for each
row as SLIDE does: their weights are gathered once into a small matrix, and all that
`daskxml.model.output` does is done with it, by matrix products. Every row sees the labels of all
rows of its batch. Only the rows of the weights that were chosen, and what the optimizer remembers
of them, change.

Labels that were drawn evenly may stand for all that were not chosen: with the weight ``w`` each
(`Chosen.weight`), softmax's sum over labels is ``sum of exp(z) over certain ones + w * sum of
exp(z) over drawn ones``, which is right on average whatever the tables named; the sigmoid loss is
weighed the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import SupportsFloat

from daskxml.model.batch import Buffers, Placed, Updates
from daskxml.model.output import OutputLayer
from daskxml.model.sampling.choice import Chooser
from daskxml.model.sampling.config import SamplingConfig
from daskxml.model.sampling.tables import LabelTables
from daskxml.ops import Drop, Kernels, RowSums
from daskxml.types import Array, Csr


class SampledOutput:
    """Trains the output layer on chosen labels.

    Parameters
    ----------
    weight, bias
        ``(labels, units)`` and ``(labels,)``: all labels'.
    loss, budget_bytes
        As `daskxml.model.output.OutputLayer` has them.
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
        self, kernels: Kernels, weight: Array, bias: Array, loss: str, budget_bytes: int,
        config: SamplingConfig, tables: LabelTables | None,
    ) -> None:  # fmt: skip
        self.kernels, self.weight, self.bias = kernels, weight, bias
        self.labels, self.units = int(weight.shape[0]), int(weight.shape[1])
        self.chooser = Chooser(config, kernels, self.labels, tables)
        self.buffers = Buffers(kernels)
        self.seen = 0
        self._layer = OutputLayer(kernels, weight[:0], bias[:0], loss, budget_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        held = (self.buffers, self.chooser.buffers, self._layer.buffers)
        return sum(buffers.nbytes for buffers in held)

    def step(
        self, hidden: Array, batch: Sequence[Placed], lr: float, key: int, updates: Updates
    ) -> tuple[SupportsFloat, Array]:
        """Update the chosen labels with the mean gradient over the batch.

        Parameters
        ----------
        hidden
            ``(rows, units)``: the layer's input.
        key
            The batch's: seeds what chance chooses.

        Returns
        -------
        SupportsFloat, Array
            The sum of the rows' losses, as the chosen labels tell it, and the mean loss's gradient
            by ``hidden``, valid until the next call.
        """
        rows, tables = int(hidden.shape[0]), self.chooser.tables
        if tables is not None:
            tables.refresh(self.kernels, self.weight, self.bias, rows)
        chosen = self.chooser.choose(hidden, batch, key)
        weight, bias = self._gathered(chosen.ids)
        if self._layer.loss == "softmax":
            bias[chosen.certain :] += math.log(chosen.weight)
        self._layer.use(weight, bias, rows, chosen.certain, chosen.weight)
        self.seen = rows * int(chosen.ids.shape[0])
        through = _ChosenUpdates(updates, chosen.ids)
        return self._layer.step(hidden, (chosen.targets,), lr, through)

    def _gathered(self, ids: Array) -> tuple[Array, Array]:
        """Copies of the chosen labels' parameters."""
        count = int(ids.shape[0])
        self.buffers.reserve("weight", count * self.units)
        self.buffers.reserve("bias", count)
        weight = self.buffers.matrix("weight", count, self.units)
        bias = self.buffers.vector("bias", count)
        self.kernels.take_rows(weight, self.weight, ids)
        self.kernels.take_rows(bias, self.bias, ids)
        return weight, bias


class _ChosenUpdates:
    """Updates of a small layer whose label ``i`` is ``ids[i]`` of the whole one."""

    def __init__(self, updates: Updates, ids: Array) -> None:
        self._updates, self._ids = updates, ids

    def dense(self, name: str, grad: Array, lr: float, rows: slice = slice(None)) -> None:
        self._updates.chosen(name, self._ids[rows], grad, lr)

    def product(
        self, name: str, rows: slice, left: Array, right: Array, lr: float, scale: float = 1.0
    ) -> None:
        if scale != 1.0:
            raise NotImplementedError("gradients of sampled labels are never scaled")
        self._updates.chosen_product(name, self._ids[rows], left, right, lr)

    def chosen(self, name: str, ids: Array, grad: Array, lr: float) -> None:
        self._updates.chosen(name, self._ids[ids], grad, lr)

    def chosen_product(self, name: str, ids: Array, left: Array, right: Array, lr: float) -> None:
        self._updates.chosen_product(name, self._ids[ids], left, right, lr)

    def chosen_sums(self, name: str, sums: RowSums, x: Array, lr: float) -> None:
        whole = RowSums(self._ids[sums.ids], sums.starts, sums.rows, sums.values)
        self._updates.chosen_sums(name, whole, x, lr)

    def sparse_product(
        self, name: str, x: Csr, rows: Array, delta: Array, lr: float, drop: Drop
    ) -> None:
        self._updates.sparse_product(name, x, rows, delta, lr, drop)
