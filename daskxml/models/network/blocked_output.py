"""One batch in the output layer: buffers, and the operations on each block of labels.

On a CPU the exponentials of the first pass are stored; on a GPU they are computed twice
(`RecomputedOutput`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import SupportsFloat

from daskxml.core.arrays import Array
from daskxml.core.errors import ConfigError
from daskxml.kernels import Kernels
from daskxml.models.batch import BatchSegment, Buffers, OutputUpdates

LANE_SUMS = 4  # float64 of every row: exponentials, target logits, losses
FLOAT_BYTES, HALF_BYTES = 4, 2
_ALIGNED = 8  # numbers: of float16, the 16 bytes that products want
_LARGEST_BIT = 15  # 2**15 is below float16's largest number, 65504


def logits_stride(kernels: Kernels, rows: int) -> int:
    """Return the distance between the logits of two labels: see `RecomputedOutput`.

    Examples
    --------
    >>> from daskxml.kernels import get_kernels
    >>> logits_stride(get_kernels("cpu", 1), 13)
    13
    """
    return -(-rows // _ALIGNED) * _ALIGNED if kernels.has_fused_softmax else rows


class OutputArrays:
    """The parameters and buffers of an output layer, and how labels are cut into blocks.

    Parameters and errors are those of `daskxml.models.network.output.OutputLayer`.

    Attributes
    ----------
    first_label
        Of the batch's labels, the one that the first row of ``weight`` belongs to.
    label_weights
        Float32, one for each of the batch's labels: what it counts in the loss; None: all count 1.
    """

    first_label = 0

    def __init__(
        self, kernels: Kernels, weight: Array, bias: Array, loss: str, budget_bytes: int,
        uses_float16: bool = False,
    ) -> None:  # fmt: skip
        if uses_float16 and not kernels.has_fused_softmax:
            raise ConfigError("output layer: float16 logits need a GPU")
        self._uses_float16 = uses_float16
        self.kernels, self.weight, self.bias = kernels, weight, bias
        self.loss, self.budget_bytes = loss, budget_bytes
        self.labels, self.units = int(weight.shape[0]), int(weight.shape[1])
        self.certain, self.weight_of_others = self.labels, 1.0
        self.label_weights: Array | None = None
        self.buffers = Buffers(kernels)

    def reserve(self, rows: int) -> None:
        """Allocate for batches of up to ``rows`` rows."""
        sizes = range(1, rows + 1)  # a smaller batch may have more blocks
        self.buffers.reserve("logits", max(self._logits_floats(size) for size in sizes))
        self.buffers.reserve("reference", max(self._references(size) for size in sizes))
        self._reserve_rows(rows)

    def use(
        self, weight: Array, bias: Array, rows: int, certain: int, weight_of_others: float
    ) -> None:
        """Replace the parameters, of as many units, for the next step.

        Parameters
        ----------
        weight, bias
            ``(labels, units)`` and ``(labels,)``.
        rows
            Rows of that step's batch.
        certain, weight_of_others
            With the sigmoid loss, each label from ``certain`` on counts so many times.
        """
        self.weight, self.bias, self.labels = weight, bias, int(weight.shape[0])
        self.certain, self.weight_of_others = certain, weight_of_others
        self.buffers.reserve("logits", self._logits_floats(rows))
        self.buffers.reserve("reference", self._references(rows))
        self._reserve_rows(rows)

    @property
    def fuses_products(self) -> bool:
        """Whether steps take `daskxml.models.network.fused_output.FusedOutput`."""
        is_softmax = self.loss == "softmax"
        return self._uses_float16 and is_softmax and self.kernels.fuses_products(self.units)

    @property
    def is_bfloat16(self) -> bool:
        """Whether the weights are bfloat16, held as uint16."""
        return bool(self.weight.dtype == "uint16")

    def _reserve_rows(self, rows: int) -> None:
        if self._uses_float16:
            self.buffers.reserve("narrow hidden", self.stride(rows) * self.units, "float16")
            self.buffers.reserve("half weight", self.labels * self.units, "float16")
        if self.fuses_products:
            self.buffers.reserve("weighted hidden", rows * self.units)
        if self.is_bfloat16:
            floats = max(self.block_labels(size) * self.stride(size) for size in range(1, rows + 1))
            self.buffers.reserve("narrow hidden", self.stride(rows) * self.units, "uint16")
            self.buffers.reserve("narrow block", floats, "uint16")
        lanes, reserve = self.kernels.threads, self.buffers.reserve
        if self.stride(1) > 1 and not self.is_bfloat16:
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

    def block_labels(self, rows: int, logit_bytes: int = FLOAT_BYTES) -> int:
        """Return the labels of a block: the device's choice, cut to the budget."""
        most = self.budget_bytes // (logit_bytes * self.kernels.threads * max(1, self.stride(rows)))
        return max(1, min(self.kernels.block_labels(rows, self.labels), most))

    def keeps_logits(self, rows: int, logit_bytes: int = FLOAT_BYTES) -> bool:
        """Whether the whole matrix of logits is kept between the two passes of softmax."""
        whole_bytes = self.labels * self.stride(rows) * logit_bytes
        return self.loss == "softmax" and whole_bytes <= self.budget_bytes

    def max_blocks(self, rows: int, logit_bytes: int = FLOAT_BYTES) -> int:
        """Return an upper bound of the blocks that all lanes process together."""
        return (self.labels - 1) // self.block_labels(rows, logit_bytes) + self.kernels.threads

    def _logits_floats(self, rows: int) -> int:
        """Return the size of the logits buffer: float32 for ranking, and the type of steps."""
        return -(-max(self._logits_bytes(rows, each) for each in self._logit_bytes) // FLOAT_BYTES)

    def _logits_bytes(self, rows: int, logit_bytes: int) -> int:
        label_bytes = self.stride(rows) * logit_bytes
        if self.keeps_logits(rows, logit_bytes):
            return self.labels * label_bytes
        return self.kernels.threads * self.block_labels(rows, logit_bytes) * label_bytes

    def _references(self, rows: int) -> int:
        return max(self.max_blocks(rows, each) for each in self._logit_bytes) * rows

    @property
    def _logit_bytes(self) -> tuple[int, ...]:
        return (FLOAT_BYTES, HALF_BYTES) if self._uses_float16 else (FLOAT_BYTES,)


class BlockedOutput:
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
        self,
        layer: OutputArrays,
        hidden: Array,
        batch: Sequence[BatchSegment],
        is_half: bool = False,
    ) -> None:
        self.layer, self.kernels = layer, layer.kernels
        self.hidden, self.batch = hidden, batch
        self.factor, self.weight, self.scale = hidden, layer.weight, 1.0
        self.rows = rows = int(hidden.shape[0])
        self.stride = layer.stride(rows)
        logit_bytes = HALF_BYTES if is_half else FLOAT_BYTES
        self.block = layer.block_labels(rows, logit_bytes)
        self.whole = layer.keeps_logits(rows, logit_bytes)
        buffers, lanes = layer.buffers, layer.kernels.threads
        planes = 1 if self.whole else lanes
        height = layer.labels if self.whole else self.block
        kind = "float16" if is_half else None
        self.logits = buffers.cube("logits", planes, height, self.stride, kind)
        self.references = buffers.matrix("reference", layer.max_blocks(rows, logit_bytes), rows)
        self.lane_gradient = buffers.cube("gradient", lanes, self.stride, layer.units)
        self.bias_gradient = buffers.vector("bias gradient", layer.labels)
        self.lane_peak = buffers.matrix("lane peak", lanes, rows)
        self.lane_part = buffers.matrix("lane part", lanes, rows)
        self.lane_pair = buffers.cube("lane pair", lanes, 2, rows)
        self.lane_factors = buffers.matrix("lane factors", lanes, rows)
        sums = buffers.cube("lane sums", LANE_SUMS, lanes, rows)
        self.lane_total, self.lane_target = sums[0], sums[1]
        self.lane_loss, self.other_loss = sums[2], sums[3]
        self.peak, self.total = buffers.vector("peak", rows), buffers.vector("total", rows)
        self.lengths = buffers.vector("lengths", rows)
        self.row_weight = buffers.vector("row weight", rows)
        self.label_weight = buffers.vector("label weight", rows)
        self.loss = buffers.vector("loss", rows)
        self.started = [False] * lanes  # lanes whose gradient is to be added to
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
        self.kernels.softmax_block(
            block, self.layer.bias[start:stop],
            self.lane_peak[lane], self.lane_total[lane], self.lane_part[lane],
        )  # fmt: skip

    def _add_target_logits(self, block: Array, lane: int, start: int, stop: int) -> None:
        for piece in self.batch:
            self.kernels.target_logits(
                self.lane_target[lane], block, self.layer.bias[start:stop],
                piece.y, piece.rows, piece.first_row, self.layer.first_label + start,
            )  # fmt: skip

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
        self.kernels.softmax_factors(factors, reference, self.peak, self.total, self.row_weight)
        self.kernels.scale_columns(block, factors, self.bias_gradient[start:stop])
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
        cut = min(max(self.layer.certain, start), stop)
        for first, last, times, loss in (
            (start, cut, 1.0, self.lane_loss),
            (cut, stop, self.layer.weight_of_others, self.other_loss),
        ):
            if first < last:
                self.kernels.sigmoid_block(
                    block[first - start : last - start], self.layer.bias[first:last],
                    times * self.scale / self.rows, self.bias_gradient[first:last],
                    loss[lane], self.lane_pair[lane],
                )  # fmt: skip
        return block

    def _update(self, block: Array, lane: int, start: int, stop: int) -> None:
        """Finish the block's gradient, propagate it through the old weights, and update them."""
        span = slice(start, stop)
        delta = self._propagate(block, lane, span)
        self.update_weight(span, delta)
        self._update_bias(span)

    def _propagate(self, block: Array, lane: int, span: slice) -> Array:
        """Subtract the targets, and add to the lane's gradient; return a factor of products."""
        for piece in self.batch:
            self._subtract_targets(piece, block, span.start, span.stop)
        beta = 1.0 if self.started[lane] else 0.0
        self.started[lane] = True
        delta = self.as_factor(block).T
        self.kernels.gemm(self.lane_gradient[lane], delta, self.weight[span], 1 / self.scale, beta)
        return delta

    def update_weight(self, span: slice, delta: Array) -> None:
        """Update the weights of a block, whose finished gradient by the logits is ``delta.T``."""
        unscale = 1.0 / self.scale
        self.updates.product("output.weight", span, delta, self.factor, self.lr, unscale)

    def _subtract_targets(self, piece: BatchSegment, block: Array, start: int, stop: int) -> None:
        self.kernels.subtract_targets(
            block, self.bias_gradient[start:stop], self.label_weight,
            piece.y, piece.rows, piece.first_row, self.layer.first_label + start,
        )  # fmt: skip

    def _update_bias(self, span: slice) -> None:
        self.updates.dense("output.bias", self.bias_gradient[span], self.lr, rows=span)

    def finish(self) -> None:
        """Complete the update after all blocks: nothing here."""

    def as_factor(self, block: Array) -> Array:
        """Return a finished block of the gradient as the operand of products."""
        return block

    def gradient(self, used: int) -> Array:
        """Return the gradient by the hidden layer: the lanes' gradients, added in order."""
        first = self.lane_gradient[0].reshape(-1)
        for lane in range(1, used):
            self.kernels.add_scaled(first, self.lane_gradient[lane].reshape(-1), 1.0)
        return self.lane_gradient[0][: self.rows]

    def softmax_loss(self) -> SupportsFloat:
        """Return the sum of the rows' losses, after the first pass; `float` of it synchronizes."""
        self.kernels.softmax_losses(
            self.loss, self.peak, self.total, self.lane_target, self.lengths
        )
        return self.kernels.deferred_sum((self.loss, 1.0))

    def sigmoid_loss(self) -> SupportsFloat:
        """Return the sum of the rows' losses, after the pass; `float` of it synchronizes."""
        return self.kernels.deferred_sum(
            (self.lane_loss.reshape(-1), 1.0),
            (self.other_loss.reshape(-1), self.layer.weight_of_others),
            (self.lane_target.reshape(-1), -1.0),
        )

    def rank(self, lane: int, start: int, stop: int, scores: Array, ids: Array) -> None:
        """Insert the block into the lane's best k, and sum its exponentials for softmax."""
        block = self.logits_of(lane, start, stop)
        self.kernels.top_k_block(block, self.layer.bias[start:stop], start, scores[lane], ids[lane])
        if self.layer.loss == "softmax":
            self._exponentiate(block, lane, start, stop)


class RecomputedOutput(BlockedOutput):
    """Keeps or recomputes logits, and turns them into the gradient in one pass: on a GPU.

    The first pass reads every block of logits once, for the log-sum-exp of each row. The second
    forms ``exp(z - shift)``, with ``shift = log-sum-exp - log(row's weight)``. Where the whole
    matrix of logits fits into the budget it is kept between the two; otherwise logits are computed
    again, a block at a time, and no matrix of rows x labels ever exists.

    Products are fast where rows begin at multiples of 16 bytes, and batches have any size. So a
    label's logits begin at multiples of 8 numbers: the hidden layer is padded with rows of 0, whose
    logits and gradients stay 0, since kernels only touch the batch's own rows.

    Where the weights are bfloat16, the hidden layer and finished blocks of the gradient are rounded
    to bfloat16 for the products; sums, logits and losses are float32.

    Where logits are float16, so are the operands of products, with as many mantissa bits as TF32:
    the hidden layer, a copy of the weights, and the gradient, which lies between ``-1 / rows`` and
    ``1 / rows``. It is multiplied by a power of two that makes the largest ``2**15``, so that
    probabilities keep all their bits down to 2e-9; products are divided by the same. A row's own
    labels are subtracted from probabilities that are rounded already: near the target, the error is
    at most 2**-11 of the row's weight. A step is bound by memory traffic, of which this is half.
    """

    def __init__(
        self,
        layer: OutputArrays,
        hidden: Array,
        batch: Sequence[BatchSegment],
        is_half: bool = False,
    ) -> None:
        super().__init__(layer, hidden, batch, is_half)
        self._is_bfloat16 = layer.is_bfloat16
        if self._is_bfloat16 or is_half:
            self.factor = self._converted("narrow hidden", hidden, self.stride)
        elif self.stride > self.rows:
            self.factor = self._padded("padded hidden", self.stride)
            self.kernels.copy(self.factor[: self.rows].reshape(-1), hidden.reshape(-1))
        if is_half:
            self.weight = self._converted("half weight", layer.weight)
            self.scale = 2.0 ** (_LARGEST_BIT + self.rows.bit_length() - 1)

    def _converted(self, name: str, matrix: Array, height: int = 0) -> Array:
        """Round a matrix to the type of a buffer, padded with rows of 0."""
        rows, columns = (int(size) for size in matrix.shape)
        out = (
            self._padded(name, height) if height else self.layer.buffers.matrix(name, rows, columns)
        )
        self.kernels.convert(out[:rows].reshape(-1), matrix.reshape(-1), 1.0)
        return out

    def _padded(self, name: str, height: int) -> Array:
        """Return a buffer for the hidden layer whose last rows are 0."""
        out = self.layer.buffers.matrix(name, height, self.layer.units)
        if height > self.rows:
            self.kernels.fill(out[self.rows :], 0.0)
        return out

    def as_factor(self, block: Array) -> Array:
        """Return the block, in bfloat16 where the weights are, for a product of both."""
        return self._converted("narrow block", block) if self._is_bfloat16 else block

    def exponentials(self) -> None:
        """Run the first pass of softmax: peak, total and shift of every row."""
        self.join_lanes(self._sum_exponentials())
        self.shift = self.lane_factors[0]
        self.kernels.softmax_shift(self.shift, self.peak, self.total, self.row_weight)

    def _sum_exponentials(self) -> int:
        """Fill peaks, totals and target logits of the lanes; return how many were used."""
        return self.each_block(self._exponentials_of)

    def _exponentials_of(self, lane: int, start: int, stop: int) -> None:
        block = self.logits_of(lane, start, stop)
        self._add_target_logits(block, lane, start, stop)
        self._exponentiate(block, lane, start, stop)

    def _exponentiate(self, block: Array, lane: int, start: int, stop: int) -> None:
        bias = self.layer.bias[start:stop]
        self.kernels.softmax_sums(block, bias, self.lane_peak[lane], self.lane_total[lane])

    def softmax_update(self, lane: int, start: int, stop: int) -> None:
        """Run the second pass on a block: from logits to the gradient and the update."""
        kept = self.logits[0, start:stop] if self.whole else self.logits_of(lane, start, stop)
        bias, sums = self.layer.bias[start:stop], self.bias_gradient[start:stop]
        self.kernels.softmax_gradient(kept, bias, self.shift, sums)
        self._update(kept, lane, start, stop)

    def _subtract_targets(self, piece: BatchSegment, block: Array, start: int, stop: int) -> None:
        self.kernels.subtract_targets_deferred(
            block, self.label_weight, piece.y, piece.rows, piece.first_row,
            self.layer.first_label + start, self.scale,
        )  # fmt: skip

    def _update_bias(self, span: slice) -> None:
        """Leave the biases to `finish`, for all labels at once."""

    def finish(self) -> None:
        """Update the biases."""
        if self.scale != 1.0:
            self.kernels.scale(self.bias_gradient, self.bias_gradient, 1.0 / self.scale)
        self.kernels.apply_deferred_sums(self.bias_gradient, self.layer.first_label)
        self.updates.dense("output.bias", self.bias_gradient, self.lr)
