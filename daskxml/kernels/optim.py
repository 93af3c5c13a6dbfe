"""The contract of the optimizers' kernels: steps that change parameters in place.

Parameters and their moments are matrices ``(rows, width)``. A gradient covers some of the rows, or
all. ``keep`` is 1 - learning rate * weight decay, the share of a weight that decay leaves.

A whole SGD step with one row, which Hogwild consists of, is one kernel: every product is matrix
times vector, so the step is limited by reading each weight and writing most of them. Many small
kernels, with Python in between that holds the GIL, would take as long again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Protocol

from daskxml.core.arrays import Array
from daskxml.kernels.sparse import DeviceCount

ROW_BLOCK: Final = 512  # the most labels whose logits are computed before they are used


@dataclass(frozen=True, slots=True)
class InPlace:
    """Where a parameter's gradient goes at once: ``target = keep * target + factor * gradient``."""

    target: Array
    factor: float
    keep: float


@dataclass(frozen=True, slots=True)
class RowGradient:
    """The gradient of some rows of a matrix.

    Attributes
    ----------
    values
        ``(count, width)``.
    ids
        ``(count,)`` int32, distinct: the rows of the matrix; None for all rows in order.
    skip_zero_rows
        Leave a row and its moments unchanged if its gradient is zero throughout.
    scale
        Factor of the values.
    device_count
        With ``skip_zero_rows``, where ``count`` is an upper bound: where the device has the true
        count, and the number of the first row. Rows beyond it are left unchanged.

    Examples
    --------
    >>> import numpy as np
    >>> RowGradient(np.zeros((2, 3), np.float32)).scale
    1.0
    """

    values: Array
    ids: Array | None = None
    skip_zero_rows: bool = False
    scale: float = 1.0
    device_count: DeviceCount | None = None


@dataclass(frozen=True, slots=True)
class RowSums:
    """The gradient of some rows of a matrix, each as a sum of scaled rows of another, ``x``.

    Row ``ids[i]`` has ``sum of values[e] * x[rows[e]]``, ``e`` in ``starts[i] .. starts[i + 1]``.

    Attributes
    ----------
    ids
        ``(count,)`` int32, distinct.
    starts
        ``(count + 1,)`` int64.
    rows, values
        ``(entries,)`` int32 and float32.
    device_count
        As in `RowGradient`.

    Examples
    --------
    >>> import numpy as np
    >>> ids, starts = np.array([4, 2], np.int32), np.array([0, 1, 3])
    >>> RowSums(ids, starts, np.zeros(3, np.int32), np.ones(3, np.float32)).count
    2
    """

    ids: Array
    starts: Array
    rows: Array
    values: Array
    device_count: DeviceCount | None = None

    @property
    def count(self) -> int:
        """The number of rows that change, or an upper bound of it."""
        return int(self.ids.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamStep:
    """The constants of one step of Adam (Kingma and Ba 2015) or LAMB (You et al. 2020).

    Attributes
    ----------
    lr, beta1, beta2, epsilon, weight_decay
        As the papers name them.
    step
        Number of the step, from 1.

    Examples
    --------
    >>> adam = AdamStep(lr=0.1, beta1=0.9, beta2=0.99, epsilon=1e-8, weight_decay=0.5, step=1)
    >>> round(adam.first_factor, 6), round(adam.second_root, 6), adam.keep
    (10.0, 10.0, 0.95)
    """

    lr: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    step: int

    @property
    def keep(self) -> float:
        """The share of a weight that weight decay leaves in this step (AdamW)."""
        return 1.0 - self.lr * self.weight_decay

    @property
    def first_factor(self) -> float:
        """Bias correction of the first moment: ``1 / (1 - beta1**step)``."""
        return 1.0 / (1.0 - self.beta1**self.step)

    @property
    def second_root(self) -> float:
        """Bias correction of the second moment's root: ``1 / sqrt(1 - beta2**step)``."""
        return 1.0 / math.sqrt(1.0 - self.beta2**self.step)

    @property
    def rates(self) -> tuple[float, float, float, float]:
        """``beta1, 1 - beta1, beta2, 1 - beta2``: float32 could not form the differences."""
        return self.beta1, 1.0 - self.beta1, self.beta2, 1.0 - self.beta2


class OptimKernels(Protocol):
    """The kernels of optimizers. Threads share the rows: equal bits for any number of threads."""

    def sgd_rows(self, weight: Array, gradient: RowGradient, lr: float, keep: float) -> None:
        """``weight = keep * weight - lr * g``."""

    def momentum_rows(
        self, weight: Array, buffer: Array, gradient: RowGradient, lr: float, keep: float,
        momentum: float, nesterov: bool,
    ) -> None:  # fmt: skip
        """``buffer = momentum * buffer + g``; ``weight = keep * weight - lr * buffer``.

        With ``nesterov`` the weight takes ``g + momentum * buffer`` instead of ``buffer``.
        """

    def adam_rows(
        self, weight: Array, first: Array, second: Array, gradient: RowGradient, adam: AdamStep
    ) -> None:
        """Update both moments, and ``weight = keep * weight - lr * m / (sqrt(v) + epsilon)``."""

    def row_rms_rows(
        self, weight: Array, second: Array, gradient: RowGradient, adam: AdamStep
    ) -> None:
        """``second[:, 0]`` follows the mean of a row's ``g**2``; other columns are not used.

        ``weight = keep * weight - lr * g / (sqrt(v) + epsilon)``, ``v`` corrected as Adam's.
        """

    def lamb_moments(
        self, norms: Array, weight: Array, first: Array, second: Array, gradient: RowGradient,
        adam: AdamStep,
    ) -> None:  # fmt: skip
        """Update the moments only; ``norms`` is ``(2, count)`` float64.

        ``norms[:, i]`` are the sums of squares of row ``i`` of the weights and of the update
        ``m / (sqrt(v) + epsilon) + weight_decay * weight``; both 0 for a skipped row.
        """

    def lamb_trust(self, trust: Array, norms: Array) -> None:
        """``trust (1,)`` float64 ``= ||weight|| / ||update||`` by `lamb_moments`; 1 if one is 0."""

    def lamb_rows(
        self, weight: Array, first: Array, second: Array, gradient: RowGradient,
        adam: AdamStep, trust: Array,
    ) -> None:  # fmt: skip
        """``weight -= lr * trust * update``, the update being that of `lamb_moments`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowNet:
    """A multi-layer perceptron of at least one hidden layer, and scratch memory for one row.

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
    """Return the floats that one row needs: activations, their gradients, and logits.

    Examples
    --------
    >>> import numpy as np
    >>> scratch_floats(np.array([[0, 12, 3, 4], [16, 36, 4, 5]]))
    1037
    """
    return 2 * int(places[:-1, 3].sum()) + int(places[-1, 3]) + 2 * ROW_BLOCK
