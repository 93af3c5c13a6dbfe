"""One batch's way through the output layer where exponentials are computed twice: on a GPU.

The first walk reads every block of logits once, for the log-sum-exp of each row. The second forms
``exp(z - shift)`` in one pass, with ``shift = log-sum-exp - log(row's weight)``. Where the whole
matrix of logits fits into the budget it is kept between the two, as logits; otherwise it is
multiplied out again, a block at a time, and no matrix of rows x labels ever exists.

Products are fast where rows begin at multiples of 16 bytes, and batches have any size. So a label's
logits begin at multiples of 8 numbers: the hidden layer gets rows of 0 below it, whose logits are 0
and stay so, gradients as well, since kernels only touch the batch's own rows.

Where the weights are bfloat16, the hidden layer and finished blocks of the gradient are rounded to
it for the products; sums, logits and losses are float32.

Where logits are float16, so are the products' operands, with as many bits behind the point as TF32
has: the hidden layer, a copy of the weights, and the gradient, which is a probability's, between
``-1 / rows`` and ``1 / rows``. It is multiplied by a power of two that makes ``2**15`` of the
largest, so that probabilities keep all their bits down to 2e-9; products are divided by the same.
A row's own labels are subtracted from probabilities that are rounded already: where one is almost
the target, what is left has an error of 2**-11 of the row's weight at most.
A block of logits is half as many bytes on each of its ways, which are what a step waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from daskxml.model.batch import Placed, Updates
from daskxml.model.walk import Walk
from daskxml.types import Array

if TYPE_CHECKING:
    from daskxml.model.output import OutputLayer


_LARGEST_BIT = 15  # 2**15 is below float16's largest number, 65504


class FusedWalk(Walk):
    """A `daskxml.model.walk.Walk` that leaves logits as they are until they become a gradient."""

    def __init__(
        self, layer: OutputLayer, hidden: Array, batch: Sequence[Placed], is_half: bool = False
    ) -> None:
        super().__init__(layer, hidden, batch, is_half)
        self._narrow = layer.is_narrow
        if self._narrow or is_half:
            self.factor = self._converted("narrow hidden", hidden, self.stride)
        elif self.stride > self.rows:
            self.factor = self._padded("padded hidden", self.stride)
            self.kernels.copy(self.factor[: self.rows].reshape(-1), hidden.reshape(-1))
        if is_half:
            self.weight = self._converted("half weight", layer.weight)
            self.scale = 2.0 ** (_LARGEST_BIT + self.rows.bit_length() - 1)

    def _converted(self, name: str, matrix: Array, height: int = 0) -> Array:
        """A matrix rounded to the type of a buffer, with rows of 0 below it."""
        rows, columns = (int(size) for size in matrix.shape)
        out = (
            self._padded(name, height) if height else self.layer.buffers.matrix(name, rows, columns)
        )
        self.kernels.convert(out[:rows].reshape(-1), matrix.reshape(-1), 1.0)
        return out

    def _padded(self, name: str, height: int) -> Array:
        """A buffer for the hidden layer whose last rows are 0."""
        out = self.layer.buffers.matrix(name, height, self.layer.units)
        if height > self.rows:
            self.kernels.fill(out[self.rows :], 0.0)
        return out

    def as_factor(self, block: Array) -> Array:
        """The block; in bfloat16 where the weights are, for a product of both."""
        return self._converted("narrow block", block) if self._narrow else block

    def exponentials(self) -> None:
        """The first walk of softmax: peak, total and shift of every row; the blocks, if kept."""
        self.join_lanes(self.each_block(self._exponentials_of))
        self.shift = self.lane_factors[0]
        self.kernels.softmax_shift(self.shift, self.peak, self.total, self.row_weight)

    def _exponentials_of(self, lane: int, start: int, stop: int) -> None:
        block = self.logits_of(lane, start, stop)
        self._add_target_logits(block, lane, start, stop)
        self._exponentiate(block, lane, start, stop)

    def _exponentiate(self, block: Array, lane: int, start: int, stop: int) -> None:
        bias = self.layer.bias[start:stop]
        self.kernels.softmax_sums(block, bias, self.lane_peak[lane], self.lane_total[lane])

    def softmax_update(self, lane: int, start: int, stop: int, lr: float, updates: Updates) -> None:
        """The second walk: from logits to the gradient, and on."""
        kept = self.logits[0, start:stop] if self.whole else self.logits_of(lane, start, stop)
        bias, sums = self.layer.bias[start:stop], self.bias_gradient[start:stop]
        self.kernels.softmax_gradient(kept, bias, self.shift, sums)
        self._update(kept, lane, start, stop, lr, updates)

    def _subtract_targets(self, piece: Placed, block: Array, start: int, stop: int) -> None:
        self.kernels.note_targets(
            block, self.label_weight,
            piece.segment.partition.labels, piece.segment.rows, piece.first_row, start, self.scale,
        )  # fmt: skip

    def _update_bias(self, span: slice, lr: float, updates: Updates) -> None:
        """`finish` does it, for all labels at once."""

    def finish(self, lr: float, updates: Updates) -> None:
        """Update the biases."""
        if self.scale != 1.0:
            self.kernels.scale(self.bias_gradient, self.bias_gradient, 1.0 / self.scale)
        self.kernels.settle_sums(self.bias_gradient)
        updates.dense("output.bias", self.bias_gradient, lr)
