"""What optimizers ask of a device: the part of `daskxml.ops.Kernels` that changes parameters.

Parameters, and what an optimizer remembers of them, are matrices ``(rows, width)``. A gradient
covers some of the rows, or all. ``keep`` is 1 - rate * weight decay, what remains of a weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from daskxml.types import Array

Live = tuple[Array, int]  # (1,) int32 on the device, and the number of the first row


@dataclass(frozen=True, slots=True)
class RowGradient:
    """The gradient of some rows of a matrix.

    Attributes
    ----------
    values
        ``(count, width)``.
    ids
        ``(count,)`` int32, each once: the rows that they belong to; None where it is all in order.
    waits
        Leave a row alone, with what is remembered of it, where its gradient is zero throughout.
    scale
        What the values are multiplied by on their way.
    live
        Where ``waits``, and the host was not told how many rows there are: the device's array
        that knows, and which of them the first is. Rows beyond are left alone.
    noise
        64 bits: where weights are bfloat16 (uint16, on a GPU), what is added is rounded up or down
        by chance, and this is the stream of it.

    Examples
    --------
    >>> import numpy as np
    >>> RowGradient(np.zeros((2, 3), np.float32)).scale
    1.0
    """

    values: Array
    ids: Array | None = None
    waits: bool = False
    scale: float = 1.0
    live: Live | None = None
    noise: int = 0


@dataclass(frozen=True, slots=True)
class RowSums:
    """The gradient of some rows of a matrix, each as a sum of scaled rows of another, ``x``.

    Row ``ids[i]`` has ``sum of values[e] * x[rows[e]]``, ``e`` in ``starts[i] .. starts[i + 1]``.

    Attributes
    ----------
    ids
        ``(count,)`` int32, each once.
    starts
        ``(count + 1,)`` int64.
    rows, values
        ``(entries,)`` int32 and float32.
    live
        ``(1,)`` int32 on the device: how many of the rows there are, where the host was not told.

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
    live: Array | None = None

    @property
    def count(self) -> int:
        """How many rows change, at most."""
        return int(self.ids.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamStep:
    """The constants of one step of Adam (Kingma and Ba 2015) or LAMB (You et al. 2020).

    Attributes
    ----------
    lr, beta1, beta2, epsilon, weight_decay
        As the papers name them.
    step
        Which step it is, from 1.

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
        """What weight decay leaves of a weight in this step (AdamW)."""
        return 1.0 - self.lr * self.weight_decay

    @property
    def first_factor(self) -> float:
        """What the first moment is multiplied by for its bias: ``1 / (1 - beta1**step)``."""
        return 1.0 / (1.0 - self.beta1**self.step)

    @property
    def second_root(self) -> float:
        """What the second moment's root is multiplied by: ``1 / sqrt(1 - beta2**step)``."""
        return 1.0 / math.sqrt(1.0 - self.beta2**self.step)


class OptimKernels(Protocol):
    """The kernels of optimizers. Rows are shared among lanes: the same bits for any number."""

    # -- the first layer's gradient, for the features in use only -------------------------------

    def group_entries(
        self, features: Array, starts: Array, rows: Array, values: Array,
        entries: tuple[Array, Array, Array], tally: Array,
    ) -> tuple[int, Array | None]:  # fmt: skip
        """Sort entries by feature, in the order of their first use.

        Returns how many features there are at most, and, where that is not their number, the
        array ``(1,)`` int32 on the device that has it: nobody waits for it.

        ``entries`` are columns int32, rows int32, values float32, each ``(n,)``. Feature ``i`` is
        ``features[i]`` int32 and has ``rows`` and ``values`` from ``starts[i]`` to ``starts[i +
        1]`` (int64, one more than features), in the order of the entries. ``tally``, int32 and
        as long as the largest column asks, is zero and is left so. Rows must ascend, and have a
        feature only once each.
        """

    def gather_rows(
        self, out: Array, starts: Array, rows: Array, values: Array, delta: Array,
        live: Live | None = None,
    ) -> None:  # fmt: skip
        """``out[i] = sum of values[e] * delta[rows[e]]``, ``e`` in ``starts[i] .. starts[i + 1]``.

        ``out`` is ``(count, units)``, ``starts`` ``(count + 1,)``; rows that ``live`` says are not
        there stay as they are.
        """

    # -- steps, all in place ---------------------------------------------------------------------

    def sgd_rows(self, weight: Array, gradient: RowGradient, lr: float, keep: float) -> None:
        """``weight = keep * weight - lr * g``."""

    def momentum_rows(
        self, weight: Array, buffer: Array, gradient: RowGradient, lr: float, keep: float,
        momentum: float, nesterov: bool,
    ) -> None:  # fmt: skip
        """``buffer = momentum * buffer + g``; ``weight = keep * weight - lr * buffer``.

        With ``nesterov`` the weight takes ``g + momentum * buffer`` in the place of ``buffer``.
        """

    def adam_rows(
        self, weight: Array, first: Array, second: Array, gradient: RowGradient, adam: AdamStep
    ) -> None:
        """Moments move to ``g`` and ``g**2``, the weight by the one over the root of the other."""

    def lamb_moments(
        self, norms: Array, weight: Array, first: Array, second: Array, gradient: RowGradient,
        adam: AdamStep,
    ) -> None:  # fmt: skip
        """Move the moments only; ``norms`` is ``(2, count)`` float64.

        ``norms[:, i]`` are the sums of squares of row ``i`` of the weights and of the update
        ``m / (sqrt(v) + epsilon) + weight_decay * weight``; both 0 where the row waits.
        """

    def lamb_trust(self, trust: Array, norms: Array) -> None:
        """``trust (1,)`` float64 ``= ||weight|| / ||update||`` by `lamb_moments`; 1 for a 0."""

    def lamb_rows(
        self, weight: Array, first: Array, second: Array, gradient: RowGradient,
        adam: AdamStep, trust: Array,
    ) -> None:  # fmt: skip
        """``weight -= lr * trust * update``, the update being that of `lamb_moments`."""
