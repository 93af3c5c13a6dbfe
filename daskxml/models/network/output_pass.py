"""One batch in the output layer: buffers, and the operations on each block of labels.

On a CPU the exponentials of the first pass are stored; on a GPU they are computed twice
(`GpuPass`), or never stored at all (`FusedPass`). Rows, and their labels, may have weights on a
CPU (`daskxml.kernels.cpu.labels.BatchWeights`). A batch is still the mean over its rows, whatever
they weigh: a row of weight 2 counts there as two rows do, and the mean weight of all training rows
is 1 (`daskxml.data.side_files`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, SupportsFloat, cast

from daskxml.core.arrays import Array
from daskxml.kernels.operands import InPlace
from daskxml.models.batch import BatchSegment

if TYPE_CHECKING:
    from daskxml.kernels.cpu.kernels import CpuKernels
    from daskxml.kernels.cuda.kernels import CudaKernels
    from daskxml.models.network.output import OutputLayer
    from daskxml.models.network.sampling import OutputUpdates
    from daskxml.optim import Optimizer

LANE_SUMS = 3  # float64 of every row: exponentials, target logits, losses
FLOAT_BYTES, HALF_BYTES = 4, 2
_LARGEST_BIT = 15  # 2**15 is below float16's largest number, 65504


class BlockPass:
    """The arrays and operations of one batch; see `daskxml.models.network.output`.

    Parameters
    ----------
    is_half
        Whether logits and their gradient are float16.

    Attributes
    ----------
    stride
        Distance between the logits of two labels; those beyond the batch's rows are 0.
    factor, weight
        The operands of products: the hidden layer, with ``stride`` rows, and the weights.
    scale
        A factor on the gradients of logits, which products divide by.
    """

    def __init__(
        self, layer: OutputLayer, hidden: Array, batch: Sequence[BatchSegment], is_half: bool
    ) -> None:
        self.layer, self.kernels = layer, layer.kernels
        self.cpu = cast("CpuKernels", layer.kernels)  # not in a `GpuPass`
        self.hidden, self.batch = hidden, batch
        self.factor, self.weight, self.scale = hidden, layer.weight, 1.0
        self.rows = rows = int(hidden.shape[0])
        self.stride = layer.stride(rows)
        logit_bytes = HALF_BYTES if is_half else FLOAT_BYTES
        self.block = layer.block_labels(rows, logit_bytes)
        self.whole = layer.keeps_logits(rows, logit_bytes)
        buffers, lanes = layer.buffers, layer.kernels.threads
        shape, kind = layer.logits_shape(rows, logit_bytes), "float16" if is_half else None
        self.logits = buffers.array("logits", *shape, dtype=kind)
        self.references = buffers.array("reference", layer.max_blocks(rows, logit_bytes), rows)
        self.lane_gradient = buffers.array("gradient", lanes, self.stride, layer.units)
        self.bias_gradient = buffers.array("bias gradient", layer.labels)
        self.lane_peak = buffers.array("lane peak", lanes, rows)
        self.lane_part = buffers.array("lane part", lanes, rows)
        self.lane_pair = buffers.array("lane pair", lanes, 2, rows)
        self.lane_factors = buffers.array("lane factors", lanes, rows)
        sums = buffers.array("lane sums", LANE_SUMS, lanes, rows)
        self.lane_total, self.lane_target, self.lane_loss = sums[0], sums[1], sums[2]
        self.peak, self.total = buffers.array("peak", rows), buffers.array("total", rows)
        self.lengths = buffers.array("lengths", rows)
        self.row_weight = buffers.array("row weight", rows)
        self.label_weight = buffers.array("label weight", rows)
        self.loss = buffers.array("loss", rows)
        self.started = [False] * lanes  # lanes whose gradient is to be added to
        self.weights = layer.weights_of(batch)
        self.kernels.fill(self.lane_peak, float("-inf"))
        self.kernels.fill(sums, 0.0)

    def each_block(self, work: Callable[[int, int, int], None]) -> int:
        """Call ``work(lane, start, stop)`` for all blocks; return the number of lanes used."""
        return self.kernels.for_label_blocks(self.layer.labels, self.block, work)

    def begin_update(self, lr: float, updates: OutputUpdates) -> None:
        """Set where gradients go, and the weights of rows and labels in the mean over the batch."""
        self.lr, self.updates = lr, updates
        self.count_targets()
        weights, each_row = (self.row_weight, self.label_weight), self.layer.loss == "softmax"
        self.kernels.target_weights(*weights, self.lengths, self.scale / self.rows, each_row)
        if self.weights is not None:
            self.label_weight *= self.weights.rows
            self.row_weight *= self.weights.rows
            self.row_weight *= self.weights.means  # of softmax alone

    def count_targets(self) -> None:
        """Count the labels of each row."""
        for piece in self.batch:
            self.kernels.row_lengths(self.lengths[piece.span], piece.y, piece.rows)

    def logits_of(self, lane: int, start: int, stop: int) -> Array:
        """Compute the logits of a block, without the bias."""
        block = self.logits[0, start:stop] if self.whole else self.logits[lane, : stop - start]
        self.kernels.gemm(block, self.weight[start:stop], self.factor.T)
        return block

    def exponentials(self) -> None:
        """Run the first pass of softmax: peak and total of every row, and the blocks, if kept."""
        used = self.each_block(self._exponentials_of)
        self.join_lanes(used)
        if not self.whole:  # the second pass starts from the final peak
            for lane in range(used):
                self.kernels.copy(self.lane_peak[lane], self.peak)

    def _exponentials_of(self, lane: int, start: int, stop: int) -> None:
        block = self.logits_of(lane, start, stop)
        self._add_target_logits(block, lane, start, stop)
        self._exponentiate(block, lane, start, stop)
        self.kernels.copy(self.references[start // self.block + lane], self.lane_peak[lane])

    def _exponentiate(self, block: Array, lane: int, start: int, stop: int) -> None:
        self.cpu.softmax_block(
            block, self.layer.bias[start:stop],
            self.lane_peak[lane], self.lane_total[lane], self.lane_part[lane],
        )  # fmt: skip

    def _add_target_logits(self, block: Array, lane: int, start: int, stop: int) -> None:
        weights, out, bias = self.weights, self.lane_target[lane], self.layer.bias[start:stop]
        add = self.kernels.target_logits if weights is None else weights.add_target_logits
        for piece in self.batch:
            add(out, block, bias, piece.y, piece.rows, piece.first_row, start)

    def join_lanes(self, used: int) -> None:
        """Reduce peak and total of every row over the lanes."""
        self.kernels.merge_softmax(
            self.lane_peak[:used], self.lane_total[:used], self.peak, self.total
        )

    def softmax_update(self, lane: int, start: int, stop: int) -> None:
        """Run the second pass on a block: from exponentials to the gradient and the update."""
        if self.whole:
            block = self.logits[0, start:stop]
            reference = self.references[start // self.block + lane]
        else:
            block = self.logits_of(lane, start, stop)
            self._exponentiate(block, lane, start, stop)
            reference = self.lane_peak[lane]
        factors = self.lane_factors[lane]
        self.cpu.softmax_factors(factors, reference, self.peak, self.total, self.row_weight)
        self.cpu.scale_columns(block, factors, self.bias_gradient[start:stop])
        self._update(block, lane, start, stop)

    def sigmoid_update(self, lane: int, start: int, stop: int) -> None:
        """Run the only pass of the sigmoid loss on a block."""
        self._update(self._sigmoid_block(lane, start, stop), lane, start, stop)

    def add_sigmoid_losses(self, lane: int, start: int, stop: int) -> None:
        """Add the sigmoid losses of a block, without an update."""
        self._sigmoid_block(lane, start, stop)

    def _sigmoid_block(self, lane: int, start: int, stop: int) -> Array:
        """Return the block's weighted probabilities; add its losses to the lane's."""
        block = self.logits_of(lane, start, stop)
        self._add_target_logits(block, lane, start, stop)
        self.kernels.sigmoid_block(
            block, self.layer.bias[start:stop], self.scale / self.rows,
            self.bias_gradient[start:stop], self.lane_loss[lane], self.lane_pair[lane],
        )  # fmt: skip
        if self.weights is not None:
            self.cpu.scale_columns(block, self.weights.rows, self.bias_gradient[start:stop])
        return block

    def _update(self, block: Array, lane: int, start: int, stop: int) -> None:
        """Finish the block's gradient, propagate it through the old weights, and update them."""
        span = slice(start, stop)
        delta, unscale = self._propagate(block, lane, span), 1.0 / self.scale
        self.updates.product("output.weight", span, delta, self.factor, self.lr, unscale)
        self._update_bias(span)

    def _propagate(self, block: Array, lane: int, span: slice) -> Array:
        """Subtract the targets, and add to the lane's gradient; return a factor of products."""
        for piece in self.batch:
            self._subtract_targets(piece, block, span.start, span.stop)
        beta = 1.0 if self.started[lane] else 0.0
        self.started[lane] = True
        delta = block.T
        self.kernels.gemm(self.lane_gradient[lane], delta, self.weight[span], 1 / self.scale, beta)
        return delta

    def _subtract_targets(self, piece: BatchSegment, block: Array, start: int, stop: int) -> None:
        weights, sums = self.weights, self.bias_gradient[start:stop]
        subtract = self.cpu.subtract_targets if weights is None else weights.subtract_targets
        place = piece.y, piece.rows, piece.first_row, start
        subtract(block, sums, self.label_weight, *place)

    def _update_bias(self, span: slice) -> None:
        self.updates.dense("output.bias", self.bias_gradient[span], self.lr, rows=span)

    def finish(self) -> None:
        """Complete the update after all blocks: nothing here."""

    def gradient(self, used: int) -> Array:
        """Return the gradient by the hidden layer: the lanes' gradients, added in order."""
        first = self.lane_gradient[0].reshape(-1)
        for lane in range(1, used):
            self.kernels.add_scaled(first, self.lane_gradient[lane].reshape(-1), 1.0)
        return self.lane_gradient[0][: self.rows]

    def softmax_loss(self) -> SupportsFloat:
        """Return the sum of the rows' losses, after the first pass; `float` of it synchronizes."""
        losses = (self.kernels if self.weights is None else self.weights).softmax_losses
        losses(self.loss, self.peak, self.total, self.lane_target, self.lengths)
        return self.kernels.deferred_sum((self.loss, 1.0))

    def sigmoid_loss(self) -> SupportsFloat:
        """Return the sum of the rows' losses, after the pass; `float` of it synchronizes."""
        if self.weights is not None:
            for sums in (self.lane_loss, self.lane_target):
                sums *= self.weights.rows
        return self.kernels.deferred_sum(
            (self.lane_loss.reshape(-1), 1.0), (self.lane_target.reshape(-1), -1.0)
        )

    def rank(self, lane: int, start: int, stop: int, scores: Array, ids: Array) -> None:
        """Insert the block into the lane's best k, and sum its exponentials for softmax."""
        block = self.logits_of(lane, start, stop)
        self.kernels.top_k_block(block, self.layer.bias[start:stop], start, scores[lane], ids[lane])
        if self.layer.loss == "softmax":
            self._exponentiate(block, lane, start, stop)


class GpuPass(BlockPass):
    """Keeps or recomputes logits, and turns them into the gradient in one pass: on a GPU.

    The first pass reads every block of logits once, for the log-sum-exp of each row. The second
    forms ``exp(z - shift)``, with ``shift = log-sum-exp - log(row's weight)``. Where the whole
    matrix of logits fits into the budget it is kept between the two; otherwise logits are computed
    again, a block at a time, and no matrix of rows x labels ever exists.

    Products are fast where rows begin at multiples of 16 bytes, and batches have any size. So a
    label's logits begin at multiples of 8 numbers: the hidden layer is padded with rows of 0, whose
    logits and gradients stay 0, since kernels only touch the batch's own rows.

    Where logits are float16, so are the operands of products, with as many mantissa bits as TF32:
    the hidden layer, a copy of the weights, and the gradient, which is between ``-1 / rows`` and
    ``1 / rows``. It is multiplied by a power of two that makes the largest ``2**15``, so that
    probabilities keep all their bits down to 2e-9; products are divided by the same. A row's own
    labels are subtracted from probabilities that are rounded already: near the target, the error is
    at most 2**-11 of the row's weight. A step is bound by memory traffic, of which this is half.
    """

    def __init__(
        self, layer: OutputLayer, hidden: Array, batch: Sequence[BatchSegment], is_half: bool
    ) -> None:
        super().__init__(layer, hidden, batch, is_half)
        self.gpu = cast("CudaKernels", layer.kernels)
        if is_half:
            self.scale = 2.0 ** (_LARGEST_BIT + self.rows.bit_length() - 1)
            self._narrow()
        elif self.stride > self.rows:
            self.factor = self._copied("padded hidden", hidden, self.stride)

    def _narrow(self) -> None:
        """Set the operands of products: copies in float16."""
        self.weight = self._copied("half weight", self.layer.weight, self.layer.labels)
        self.factor = self._copied("narrow hidden", self.hidden, self.stride)

    def _copied(self, name: str, matrix: Array, height: int) -> Array:
        """Return a copy of a matrix in a buffer, in the type of that, with rows of 0 below."""
        rows = int(matrix.shape[0])
        out = self.layer.buffers.array(name, height, self.layer.units)
        copied = out[:rows].reshape(-1), matrix.reshape(-1)
        if out.dtype == matrix.dtype:
            self.kernels.copy(*copied)
        else:
            self.kernels.convert(*copied, 1.0)
        if height > rows:
            self.kernels.fill(out[rows:], 0.0)
        return out

    def exponentials(self) -> None:
        """Run the first pass of softmax: peak, total and shift of every row."""
        self.join_lanes(self._sum_exponentials())
        self.shift = self.lane_factors[0]
        self.gpu.softmax_shift(self.shift, self.peak, self.total, self.row_weight)

    def _sum_exponentials(self) -> int:
        """Fill peaks, totals and target logits of the lanes; return how many were used."""
        return self.each_block(self._exponentials_of)

    def _exponentials_of(self, lane: int, start: int, stop: int) -> None:
        block = self.logits_of(lane, start, stop)
        self._add_target_logits(block, lane, start, stop)
        self._exponentiate(block, lane, start, stop)

    def _exponentiate(self, block: Array, lane: int, start: int, stop: int) -> None:
        bias = self.layer.bias[start:stop]
        self.gpu.softmax_sums(block, bias, self.lane_peak[lane], self.lane_total[lane])

    def softmax_update(self, lane: int, start: int, stop: int) -> None:
        """Run the second pass on a block: from logits to the gradient and the update."""
        kept = self.logits[0, start:stop] if self.whole else self.logits_of(lane, start, stop)
        bias, sums = self.layer.bias[start:stop], self.bias_gradient[start:stop]
        self.gpu.softmax_gradient(kept, bias, self.shift, sums)
        self._update(kept, lane, start, stop)

    def _subtract_targets(
        self, piece: BatchSegment, block: Array | None, start: int, stop: int
    ) -> None:
        self.gpu.subtract_targets_deferred(
            block, self.label_weight, piece.y, piece.rows, piece.first_row,
            start, self.scale,
        )  # fmt: skip

    def _update_bias(self, span: slice) -> None:
        """Leave the biases to `finish`, for all labels at once."""

    def finish(self) -> None:
        """Update the biases."""
        if self.scale != 1.0:
            self.kernels.scale(self.bias_gradient, self.bias_gradient, 1.0 / self.scale)
        self.gpu.apply_deferred_sums(self.bias_gradient)
        self.updates.dense("output.bias", self.bias_gradient, self.lr)


class FusedPass(GpuPass):
    """`GpuPass` of float16 with the softmax in the products: logits are never stored.

    A step of float16 is bound by its passes over the logits, 12 bytes for each. Here tensor cores
    compute them twice, in registers (`daskxml.kernels.cuda.labels`). The first pass sums, of every
    row, exponentials, and exponentials times weights: by FlashAttention's recurrence (Dao et al.
    2022, Algorithm 1) that is the gradient by the hidden layer, but for targets and a factor that
    is known at its end. The second pass multiplies exponentials by the hidden layer, and adds them
    to the weights.

    Targets are a few of the gradient's numbers. They are subtracted from both products afterwards,
    in float32. It takes an optimizer that adds to the weights in place: see `OutputLayer`.
    """

    def _narrow(self) -> None:
        """Set the operands of products: copies in float16, in tiles; and no blocks of labels."""
        layer, array = self.layer, self.layer.buffers.array
        self.block = layer.labels
        self.weight = array("half weight", self.gpu.tiled_rows(layer.labels), layer.units)
        self.factor = array("narrow hidden", self.gpu.tiled_rows(self.rows), layer.units)
        self.gpu.to_tiles(self.weight, layer.weight)
        self.gpu.to_tiles(self.factor, self.hidden, is_hidden=True)
        chunks = self.gpu.product_chunks(self.rows, layer.labels)
        tops, sums = (array(f"chunk {name}", chunks, self.rows) for name in ("tops", "sums"))
        self.parts = tops, sums, array("chunk means", chunks, self.rows, layer.units)

    def _sum_exponentials(self) -> int:
        operands, sums = (self.factor, self.weight, self.layer.bias), self.lane_gradient[0]
        self.gpu.softmax_products(self.parts, *operands, self.lane_peak[0], self.lane_total[0])
        for piece in self.batch:
            self.gpu.target_products(
                self.lane_target[0], sums, *operands, piece.y, piece.rows, piece.first_row
            )
        return 1

    def softmax_update(self, lane: int, start: int, stop: int) -> None:
        """Run the second pass, from the sums to the update, on all labels at once."""
        updates = cast("Optimizer", self.updates)  # samples are not for GPUs
        place = cast(InPlace, updates.in_place("output.weight", self.lr))
        self._place, self._factor = place.target, place.factor / self.scale
        self.gpu.softmax_update(
            place.target, self.bias_gradient, self.factor, self.weight, self.layer.bias,
            self.shift, self._factor, place.keep,
        )  # fmt: skip

    def finish(self) -> None:
        """Update the biases, and the weights by the targets."""
        for piece in self.batch:
            self._subtract_targets(piece, None, 0, self.layer.labels)
        super().finish()
        scaled = self.layer.buffers.array("weighted hidden", self.rows, self.layer.units)
        self.gpu.scale_rows(scaled, self.hidden, self.label_weight)
        for piece in self.batch:
            self.kernels.sparse_update(
                self._place, piece.y, piece.rows, scaled[piece.span], -self._factor
            )

    def gradient(self, used: int) -> Array:
        """Return the gradient by the hidden layer."""
        out, weights = self.lane_gradient[0][: self.rows], self.label_weight
        self.gpu.join_products(out, self.parts, self.shift, weights, 1.0 / self.scale)
        return out
