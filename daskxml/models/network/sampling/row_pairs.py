"""A step on a sample of labels for each row, as in SLIDE.

A row's logits are products with the weights of its own sample, gathered one by one; softmax, or the
sum of sigmoid losses, goes over that sample, and so does the gradient by the hidden layer. Then the
pairs of row and label are sorted by label, and each sampled label is updated once, with the sum
over its rows (SLIDE's threads update it for each row, without locks). The gradient is formed for a
few labels at a time. Memory grows with rows x labels of a sample: about 28 bytes each.
"""

from __future__ import annotations

from daskxml.core.arrays import Array
from daskxml.kernels import RowSamples, RowSums
from daskxml.kernels.cpu import row_sampling
from daskxml.kernels.cpu.kernels import CpuKernels
from daskxml.models.batch import Buffers, Updates


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
        self.buffers.reserve("tally", self.labels, "int32")

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return self.buffers.nbytes

    def step(
        self, samples: RowSamples, hidden: Array, lr: float, updates: Updates
    ) -> tuple[float, Array]:
        """Update the sampled labels; see `daskxml.models.network.output.OutputLayer.step`."""
        kernels, buffers, rows = self.kernels, self.buffers, int(hidden.shape[0])
        buffers.reserve("slopes", samples.pairs)
        buffers.reserve("gradient", rows * self.units)
        buffers.reserve("loss", rows, "float64")
        slopes, loss = buffers.vector("slopes", samples.pairs), buffers.vector("loss", rows)
        gradient = buffers.matrix("gradient", rows, self.units)
        is_softmax = self.loss == "softmax"
        backward = (
            row_sampling.softmax_row_samples if is_softmax else row_sampling.sigmoid_row_samples
        )
        place = samples, hidden, self.weight, self.bias
        backward(kernels.team, slopes, gradient, loss, *place)
        self._update(samples, slopes, hidden, lr, updates)
        return kernels.sum64(loss), gradient

    def _update(
        self, samples: RowSamples, slopes: Array, hidden: Array, lr: float, updates: Updates
    ) -> None:
        """Update the labels by their gradients."""
        self.buffers.reserve("ones", len(hidden))
        sums, ones = self._by_label(samples, slopes), self.buffers.matrix("ones", len(hidden), 1)
        self.kernels.fill(ones, 1.0)
        updates.subset_sums("output.weight", sums, hidden, lr)
        updates.subset_sums("output.bias", sums, ones, lr)

    def _by_label(self, samples: RowSamples, slopes: Array) -> RowSums:
        """The gradient by the weights: for each label its rows and their slopes."""
        pairs = samples.pairs
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
