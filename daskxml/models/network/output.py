"""The output layer: every label's logit, loss and update, one block of labels at a time.

A block of logits ``Z (block, rows) = W[block] @ H.T`` is label-major and small enough for a
core's cache. Softmax needs all labels before it can form a gradient, so it takes two passes: first
``exp(Z - peak)`` with a running peak and sum for each row (Milakov and Gimelshein 2018), then
``D = exp(Z - peak) * (exp(peak - last peak) / sum) - target``. Between the passes the exponentials
are kept where they fit into the budget, else the second pass computes them again. Sigmoid needs
one pass and never more than a block for each lane. Then, with the weights still old,
``G += D.T @ W[block]`` for the layer below, and ``D @ H`` goes to the optimizer.

A step may be on a sample of the labels (`daskxml.models.network.sampling`). One for the whole batch
is gathered once into a small layer of the same kind; one for each row is a matter of pairs of a row
and a label.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, SupportsFloat, cast

from daskxml.core.arrays import Array
from daskxml.core.errors import ConfigError
from daskxml.kernels import Kernels
from daskxml.kernels.operands import RowSamples
from daskxml.models.batch import BatchSegment, Buffers, has_weights
from daskxml.models.network.output_pass import (
    FLOAT_BYTES,
    HALF_BYTES,
    LANE_SUMS,
    BlockPass,
    FusedPass,
    GpuPass,
)
from daskxml.models.network.sampling import LabelSample, OutputUpdates, SampleUpdates

if TYPE_CHECKING:
    from daskxml.kernels.cpu.kernels import CpuKernels
    from daskxml.kernels.cpu.labels import BatchWeights
    from daskxml.kernels.cuda.kernels import CudaKernels
    from daskxml.optim import Optimizer

Labels = LabelSample | RowSamples
_ALIGNED = 8  # numbers: of float16, the 16 bytes that products want


def logits_stride(kernels: Kernels, rows: int) -> int:
    """Return the distance between the logits of two labels: see `GpuPass`.

    Examples
    --------
    >>> from daskxml.kernels import get_kernels
    >>> logits_stride(get_kernels("cpu", 1), 13)
    13
    """
    return -(-rows // _ALIGNED) * _ALIGNED if kernels.has_fused_softmax else rows


class OutputLayer:
    """Loss, gradient, update and ranking of all labels, on the caller's parameters.

    Parameters
    ----------
    weight, bias
        ``(labels, units)`` and ``(labels,)``.
    loss
        ``softmax`` or ``sigmoid``.
    budget_bytes
        Upper bound of the logits: the whole matrix, if it fits, else a block for each lane.
    uses_float16
        Whether a step's logits are float16: see
        `daskxml.models.network.output_pass.GpuPass`. Ranking uses float32.
    samples_rows
        Whether steps are on a sample of labels for each row.
    adds_in_place
        Whether the optimizer adds to the weights in place, as
        `daskxml.models.network.output_pass.FusedPass` does.

    Raises
    ------
    ConfigError
        For float16 on a device without it.
    """

    def __init__(
        self, kernels: Kernels, weight: Array, bias: Array, loss: str, budget_bytes: int,
        uses_float16: bool = False, samples_rows: bool = False, adds_in_place: bool = False,
    ) -> None:  # fmt: skip
        if uses_float16 and not kernels.has_fused_softmax:
            raise ConfigError("output layer: float16 logits need a GPU")
        self._uses_float16, self._adds_in_place = uses_float16, adds_in_place
        self.kernels, self.weight, self.bias = kernels, weight, bias
        self.loss, self.budget_bytes = loss, budget_bytes
        self.labels, self.units = int(weight.shape[0]), int(weight.shape[1])
        self.label_weights: Array | None = None
        self.buffers = Buffers(kernels)
        self._pairs = None
        if samples_rows:
            from daskxml.models.network.samplers import RowPairs  # imports Numba

            self._pairs = RowPairs(cast("CpuKernels", kernels), weight, bias, loss)

    def reserve(self, rows: int) -> None:
        """Allocate for batches of up to ``rows`` rows."""
        stores_halves = self._uses_float16 and not self.fuses_products
        kinds = (FLOAT_BYTES, HALF_BYTES) if stores_halves else (FLOAT_BYTES,)
        sizes = [(size, each) for size in range(1, rows + 1) for each in kinds]  # smaller batches
        nbytes = [math.prod(self.logits_shape(*size)) * size[1] for size in sizes]  # may have more
        self.buffers.reserve("logits", -(-max(nbytes) // FLOAT_BYTES))
        self.buffers.reserve("reference", max(self.max_blocks(*size) * size[0] for size in sizes))
        self._reserve_rows(rows)

    def use(self, weight: Array, bias: Array, rows: int) -> None:
        """Replace the parameters, of as many units, for a step with a batch of so many rows."""
        self.weight, self.bias, self.labels = weight, bias, int(weight.shape[0])
        self._reserve_rows(rows)

    @property
    def fuses_products(self) -> bool:
        """Whether steps take `daskxml.models.network.output_pass.FusedPass`."""
        is_possible = self._uses_float16 and self._adds_in_place and self.loss == "softmax"
        return is_possible and cast("CudaKernels", self.kernels).fuses_products(self.units)

    def _reserve_rows(self, rows: int) -> None:
        lanes, reserve = self.kernels.threads, self.buffers.reserve
        tall, labels = self.stride(rows), self.labels
        if self.fuses_products:
            gpu = cast("CudaKernels", self.kernels)
            tall, labels = gpu.tiled_rows(rows), gpu.tiled_rows(labels)
            chunk_rows = max(size * gpu.product_chunks(size, labels) for size in range(1, rows + 1))
            reserve("weighted hidden", rows * self.units)
            reserve("chunk means", chunk_rows * self.units)
            for name in ("chunk tops", "chunk sums"):
                reserve(name, chunk_rows)
        if self._uses_float16:
            reserve("narrow hidden", tall * self.units, "float16")
            reserve("half weight", labels * self.units, "float16")
        if self.stride(1) > 1:
            reserve("padded hidden", self.stride(rows) * self.units)
        reserve("gradient", lanes * self.stride(rows) * self.units)
        reserve("bias gradient", self.labels)
        for name in ("lane peak", "lane part", "lane factors"):
            reserve(name, lanes * rows)
        reserve("lane pair", lanes * 2 * rows)
        reserve("lane sums", LANE_SUMS * lanes * rows, "float64")
        for name in ("peak", "lengths", "row weight", "label weight"):
            reserve(name, rows)
        for name in ("total", "loss"):
            reserve(name, rows, "float64")

    def stride(self, rows: int) -> int:
        """Return the distance between the logits of two labels."""
        return logits_stride(self.kernels, rows)

    def block_labels(self, rows: int, logit_bytes: int) -> int:
        """Return the labels of a block: the device's choice, cut to the budget."""
        most = self.budget_bytes // (logit_bytes * self.kernels.threads * max(1, self.stride(rows)))
        return max(1, min(self.kernels.block_labels(rows, self.labels), most))

    def keeps_logits(self, rows: int, logit_bytes: int) -> bool:
        """Whether the whole matrix of logits is kept between the two passes of softmax."""
        whole_bytes = self.labels * self.stride(rows) * logit_bytes
        return self.loss == "softmax" and whole_bytes <= self.budget_bytes

    def logits_shape(self, rows: int, logit_bytes: int) -> tuple[int, int, int]:
        """Return the shape of the buffer of logits: all of them, a block for each lane, or none."""
        if logit_bytes == HALF_BYTES and self.fuses_products:
            return 1, 0, self.stride(rows)
        if self.keeps_logits(rows, logit_bytes):
            return 1, self.labels, self.stride(rows)
        return self.kernels.threads, self.block_labels(rows, logit_bytes), self.stride(rows)

    def max_blocks(self, rows: int, logit_bytes: int) -> int:
        """Return an upper bound of the blocks that all lanes process together."""
        return (self.labels - 1) // self.block_labels(rows, logit_bytes) + self.kernels.threads

    def _pass(self, hidden: Array, batch: Sequence[BatchSegment]) -> BlockPass:
        is_half = bool(batch) and self._uses_float16
        kind = GpuPass if self.kernels.has_fused_softmax else BlockPass
        if is_half and self.fuses_products:
            kind = FusedPass
        return kind(self, hidden, batch, is_half)

    def weights_of(self, batch: Sequence[BatchSegment]) -> BatchWeights | None:
        """Return the weights of a batch; None where rows and labels all count 1.

        Raises
        ------
        ConfigError
            On a GPU.
        """
        if not batch or not (self.label_weights is not None or has_weights(batch)):
            return None
        if self.kernels.has_fused_softmax:
            raise ConfigError('weights of rows or labels need a CPU: give [cluster] device = "cpu"')
        from daskxml.kernels.cpu.labels import BatchWeights  # imports Numba

        buffers, last, labels = self.buffers, batch[-1].span.stop, self.label_weights
        if labels is None:
            labels = buffers.array("equal weights", batch[0].y.columns)
            self.kernels.fill(labels, 1.0)
        rows, means = (buffers.array(f"{name} weights", last) for name in ("row", "mean label"))
        weights = BatchWeights(rows, means, labels, self.loss == "softmax")
        for piece in batch:
            weights.gather(piece.span, piece.weights, piece.y, piece.rows)
        return weights

    def step(
        self, hidden: Array, batch: Sequence[BatchSegment], lr: float, updates: Optimizer, *,
        labels: Labels | None = None,
    ) -> tuple[SupportsFloat, Array]:  # fmt: skip
        """Update the layer with the mean gradient over the batch.

        Parameters
        ----------
        hidden
            ``(rows, units)``: the layer's input.
        batch
            The batch's segments, for their labels.
        labels
            A sample of all labels, for the whole batch or for each row; None: all of them.

        Returns
        -------
        SupportsFloat, Array
            The sum of the rows' losses (converting it to float synchronizes with the device), and
            the mean loss's gradient by ``hidden`` ``(rows, units)``, valid until the next call.
        """
        if self._pairs is not None and isinstance(labels, RowSamples):
            return self._pairs.step(labels, hidden, lr, updates)
        if isinstance(labels, LabelSample):
            layer, of_sample = self._layer_of(labels), SampleUpdates(updates, labels.ids)
            return layer._step(hidden, (labels.targets,), lr, of_sample)
        return self._step(hidden, batch, lr, updates)

    def _step(
        self, hidden: Array, batch: Sequence[BatchSegment], lr: float, updates: OutputUpdates
    ) -> tuple[SupportsFloat, Array]:
        """Step on all labels of the layer."""
        blocks = self._pass(hidden, batch)
        blocks.begin_update(lr, updates)
        if self.loss == "softmax":
            blocks.exponentials()
            lanes = blocks.each_block(blocks.softmax_update)
            blocks.finish()
            return blocks.softmax_loss(), blocks.gradient(lanes)
        lanes = blocks.each_block(blocks.sigmoid_update)
        blocks.finish()
        return blocks.sigmoid_loss(), blocks.gradient(lanes)

    def _layer_of(self, sample: LabelSample) -> OutputLayer:
        """Return a layer of copies of the sampled labels' parameters."""
        from daskxml.kernels.cpu.sampling import take_rows  # imports Numba

        team = cast("CpuKernels", self.kernels).team
        count, layer = int(sample.ids.shape[0]), self._small
        weight = self.buffers.array("sampled weight", count, self.units)
        bias = self.buffers.array("sampled bias", count)
        take_rows(team, weight, self.weight, sample.ids)
        take_rows(team, bias, self.bias, sample.ids)
        layer.use(weight, bias, int(sample.targets.rows.shape[0]))
        return layer

    @cached_property
    def _small(self) -> OutputLayer:
        """The layer of a sample, with buffers of its own."""
        place = self.weight[:0], self.bias[:0]
        return OutputLayer(self.kernels, *place, self.loss, self.budget_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        parts = self, self._pairs, vars(self).get("_small")  # which steps alone make
        return sum(part.buffers.nbytes for part in parts if part is not None)

    def loss_sum(self, hidden: Array, batch: Sequence[BatchSegment]) -> float:
        """Return the sum of the rows' losses, with the bits of `step`; nothing is updated."""
        blocks = self._pass(hidden, batch)
        if self.loss == "softmax":
            blocks.count_targets()
            blocks.exponentials()
            return float(blocks.softmax_loss())
        blocks.each_block(blocks.add_sigmoid_losses)
        return float(blocks.sigmoid_loss())

    def top_k(self, hidden: Array, scores: Array, ids: Array) -> None:
        """Fill ``scores`` float32 and ``ids`` int32, both ``(rows, k)``, best first."""
        rows, k = scores.shape
        blocks, lanes = self._pass(hidden, ()), self.kernels.threads
        best = (self.buffers.array("lane scores", lanes, rows, k),
                self.buffers.array("lane ids", lanes, rows, k, dtype="int32"))  # fmt: skip
        self.kernels.fill(best[0], float("-inf"))
        self.kernels.fill(best[1], -1)
        used = blocks.each_block(lambda i, a, b: blocks.rank(i, a, b, *best))
        self.kernels.merge_top_k(best[0][:used], best[1][:used], scores, ids)
        if self.loss == "softmax":
            blocks.join_lanes(used)
            self.kernels.softmax_scores(scores, ids, blocks.peak, blocks.total)
        else:
            self.kernels.sigmoid_scores(scores, ids)
