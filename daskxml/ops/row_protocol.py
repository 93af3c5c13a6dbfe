"""One row's whole step as one kernel: the part of `daskxml.ops.Kernels` that Hogwild lives on.

With one row every product has a vector in it: the step reads each weight and writes most of them,
and calls of many small kernels, each with some Python around it that holds the GIL, would take as
long as that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from daskxml.types import Array, Csr

ROW_BLOCK: Final = 512  # the most labels whose numbers are formed before they are used


@dataclass(frozen=True, slots=True, kw_only=True)
class RowNet:
    """A multi-layer perceptron of at least one hidden layer, and memory for one row's way.

    Attributes
    ----------
    flat
        ``(n,)`` float32: all parameters.
    places
        ``(layers, 4)`` int64: where each layer's weights and biases begin in ``flat``, its inputs
        and its outputs; the output layer last. Weights are ``(inputs, outputs)``, but those of the
        output layer ``(outputs, inputs)``: a row for each label.
    scratch
        ``(scratch_floats(places),)`` float32, contents arbitrary.
    activation
        ``relu`` or ``sigmoid``, of the hidden layers.
    loss
        ``softmax`` or ``sigmoid``.
    """

    flat: Array
    places: Array
    scratch: Array
    activation: str
    loss: str


def scratch_floats(places: Array) -> int:
    """Return the floats that a row's numbers take: activations, their gradients and the labels'.

    Examples
    --------
    >>> import numpy as np
    >>> scratch_floats(np.array([[0, 12, 3, 4], [16, 36, 4, 5]]))
    1037
    """
    return 2 * int(places[:-1, 3].sum()) + int(places[-1, 3]) + 2 * ROW_BLOCK


class RowKernels(Protocol):
    """The kernel of a step with one row."""

    @property
    def has_row_step(self) -> bool:
        """Whether `row_step` is what a batch of one row is best given to on this device."""

    def row_step(self, net: RowNet, x: Csr, y: Csr, row: int, lr: float, output_lr: float) -> float:
        """Step of plain SGD with one row, in place in ``net.flat``; returns the row's loss.

        Every gradient is by the weights as they were read, before they were changed. A row of ``x``
        without labels in ``y`` has neither loss nor gradient with softmax. ``lr`` is the learning
        rate of the hidden layers, ``output_lr`` that of the last. Other threads may read and change
        ``net.flat`` at the same time, with a ``scratch`` of their own: additions may be lost.
        """
