"""The softmax loss where reading a block is dear and an exponential is not: on a GPU.

A block of logits is read once for the sums and once for the gradient, and is never overwritten by
exponentials in between: two kernels in the place of five. Each launch costs the host several
microseconds, so what can be done once for all blocks is left to the end.

Here, and in ``target_logits``, ``sigmoid_block`` and ``top_k_block``, a label's logits may have
more numbers behind those of the batch's rows, which are left alone. But for the last of these, a
block may be float16; sums and biases are not.
"""

from __future__ import annotations

from typing import NoReturn, Protocol

from daskxml.types import Array, Csr


class FusedKernels(Protocol):
    """The part of `daskxml.ops.Kernels` for devices that compute exponentials twice."""

    @property
    def has_fused_softmax(self) -> bool:
        """Whether these kernels are there; otherwise exponentials are kept (`LabelKernels`)."""

    def softmax_sums(self, logits: Array, bias: Array, peak: Array, total: Array) -> None:
        """As ``softmax_block``, but ``logits (block, rows)`` stay as they are."""

    def softmax_shift(self, out: Array, peak: Array, total: Array, weight: Array) -> None:
        """``out = peak + log(total) - log(weight)``, all ``(rows,)``; infinite for a weight of 0.

        ``exp(logit - out)`` is then a label's probability times the row's weight.
        """

    def softmax_gradient(self, logits: Array, bias: Array, shift: Array, row_sums: Array) -> None:
        """``logits = exp(logits + bias - shift)``; ``row_sums (block,)`` of it. In place."""

    def note_targets(
        self, delta: Array, weights: Array, y: Csr, rows: Array, first_row: int,
        first_label: int, scale: float = 1.0,
    ) -> None:  # fmt: skip
        """As ``subtract_targets``, but what the labels' sums lose is left to `settle_sums`.

        Weights and ``delta`` are ``scale`` times what they stand for, the sums later are not.
        """

    def settle_sums(self, row_sums: Array) -> None:
        """Subtract from ``row_sums (labels,)``, of all labels, what was noted, and forget that."""


class KeepsExponentials:
    """Implements `FusedKernels` by saying that it is not for this device.

    Examples
    --------
    >>> KeepsExponentials.has_fused_softmax
    False
    """

    has_fused_softmax = False

    def softmax_sums(self, logits: Array, bias: Array, peak: Array, total: Array) -> None:
        """Not here."""
        _refuse()

    def softmax_shift(self, out: Array, peak: Array, total: Array, weight: Array) -> None:
        """Not here."""
        _refuse()

    def softmax_gradient(self, logits: Array, bias: Array, shift: Array, row_sums: Array) -> None:
        """Not here."""
        _refuse()

    def note_targets(
        self, delta: Array, weights: Array, y: Csr, rows: Array, first_row: int,
        first_label: int, scale: float = 1.0,
    ) -> None:  # fmt: skip
        """Not here."""
        _refuse()

    def settle_sums(self, row_sums: Array) -> None:
        """Not here."""
        _refuse()


def _refuse() -> NoReturn:
    raise NotImplementedError("exponentials are kept here: has_fused_softmax is False")
