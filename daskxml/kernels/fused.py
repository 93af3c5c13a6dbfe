"""The contract of products with the softmax in them: logits are computed twice, and never stored.

The hidden layer and the output weights are float16, ``hidden (rows or more, units)`` and ``weight
(labels, units)``; sums, biases, shifts and what is updated are float32.
"""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

from daskxml.core.arrays import Array, Csr


class FusedKernels(Protocol):
    """The part of `daskxml.kernels.Kernels` that a GPU of capability 9.0 has beside the others."""

    def fuses_products(self, units: int) -> bool:
        """Whether the kernels of this class exist for so many units."""

    def softmax_products(
        self, hidden: Array, weight: Array, bias: Array, peak: Array, total: Array
    ) -> None:
        """As ``softmax_sums`` of the logits ``weight @ hidden[:rows].T``, with ``peak (rows,)``."""

    def softmax_update(
        self, delta: Array, out: Array, row_sums: Array, hidden: Array, weight: Array,
        bias: Array, shift: Array, factor: float, keep: float,
    ) -> None:  # fmt: skip
        """``out = keep * out + factor * delta @ hidden`` with the gradient ``delta`` of the logits.

        ``delta (labels, rows or more)`` float16 ``= exp(weight @ hidden.T + bias - shift)``, where
        ``shift`` is ``(rows,)``; ``row_sums (labels,)`` is the sum over its rows, and ``out
        (labels, units)`` is not read where ``keep`` is 0.
        """

    def target_products(
        self, out: Array, hidden: Array, weight: Array, bias: Array, y: Csr, rows: Array,
        first_row: int,
    ) -> None:  # fmt: skip
        """As ``target_logits`` of all labels, with the logits ``weight @ hidden.T``."""

    def scale_rows(self, out: Array, x: Array, factors: Array) -> None:
        """``out[i] = factors[i] * x[i]``; matrices ``(rows, units)`` float32."""


def _refuse(self: object, *operands: Any, **options: Any) -> NoReturn:
    raise NotImplementedError("logits are stored here: fuses_products says so")


class NoFusedProducts:
    """`FusedKernels` of a device that stores logits.

    Examples
    --------
    >>> NoFusedProducts().fuses_products(128)
    False
    """

    def fuses_products(self, units: int) -> bool:
        """See `FusedKernels`."""
        return False

    softmax_products = softmax_update = target_products = scale_rows = _refuse
