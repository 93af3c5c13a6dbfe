"""One batch in the output layer where products have the softmax in them: logits are never stored.

A step of float16 is bound by its passes over the logits, 12 bytes for each. Here tensor cores
compute them twice, in registers: once for the log-sum-exp of every row, and once for the gradient,
which is multiplied by the hidden layer at once, and added to the weights. It passes through memory
for the one product that is left, the gradient by the hidden layer: 4 bytes for each logit.
"""

from __future__ import annotations

from collections.abc import Sequence

from daskxml.core.arrays import Array
from daskxml.models.batch import BatchSegment, OutputUpdates
from daskxml.models.network.blocked_output import OutputArrays, RecomputedOutput


class FusedOutput(RecomputedOutput):
    """`RecomputedOutput` of float16 with the kernels of `daskxml.kernels.fused.FusedKernels`.

    Targets are a few of the gradient's numbers. They are subtracted from it in memory, for the
    layer below; from the weights they are subtracted afterwards, in float32, label by label. Where
    an optimizer needs the gradient of the weights itself, logits are stored for that, a block of
    labels at a time.
    """

    def __init__(
        self,
        layer: OutputArrays,
        hidden: Array,
        batch: Sequence[BatchSegment],
        is_half: bool = True,
    ) -> None:
        super().__init__(layer, hidden, batch, is_half)
        self.whole = False  # no logits are kept for the second pass

    def begin_update(self, lr: float, updates: OutputUpdates) -> None:
        """As `BlockedOutput.begin_update`."""
        super().begin_update(lr, updates)
        self._place = updates.in_place("output.weight", lr)

    def _sum_exponentials(self) -> int:
        operands = self.factor, self.weight, self.layer.bias
        self.kernels.softmax_products(*operands, self.lane_peak[0], self.lane_total[0])
        for piece in self.batch:
            self.kernels.target_products(
                self.lane_target[0], *operands, piece.y, piece.rows, piece.first_row
            )
        return 1

    def softmax_update(self, lane: int, start: int, stop: int) -> None:
        """Run the second pass on a block: from the sums to the gradient and the update."""
        if self._place is None:
            super().softmax_update(lane, start, stop)
            return
        span, block = slice(start, stop), self.logits[lane, : stop - start]
        self.kernels.softmax_update(
            block, self._place.target[span], self.bias_gradient[span], self.factor,
            self.weight[span], self.layer.bias[span], self.shift,
            self._place.factor / self.scale, self._place.keep,
        )  # fmt: skip
        self._propagate(block, lane, span)

    def finish(self) -> None:
        """Update the biases, and the weights by the targets."""
        super().finish()
        if self._place is None:
            return
        scaled = self.layer.buffers.matrix("weighted hidden", self.rows, self.layer.units)
        self.kernels.scale_rows(scaled, self.hidden, self.label_weight)
        factor = -self._place.factor / self.scale
        for piece in self.batch:
            self.kernels.sparse_update(
                self._place.target, piece.y, piece.rows, scaled[piece.span], factor
            )
