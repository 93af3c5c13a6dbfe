"""Adam and LAMB: steps along the first moment over the root of the second.

Adam (Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, Algorithm 1):

======  =========  ==========================================================
paper   here       meaning
======  =========  ==========================================================
alpha   lr         learning rate
m       first      ``m = beta1 * m + (1 - beta1) * g``
v       second     ``v = beta2 * v + (1 - beta2) * g**2``
t       step       steps so far, this one included
======  =========  ==========================================================

``w -= lr * m^ / (sqrt(v^) + epsilon)`` with ``m^ = m / (1 - beta1**t)``, ``v^ = v / (1 -
beta2**t)``. Weight decay is decoupled (Loshchilov and Hutter, "Decoupled Weight Decay
Regularization", ICLR 2019): ``w -= lr * decay * w``, not part of the moments.

LAMB (You et al., "Large Batch Optimization for Deep Learning", ICLR 2020, Algorithm 2): with
``u = m^ / (sqrt(v^) + epsilon) + decay * w`` of these moments, every layer moves by
``w -= lr * ||w|| / ||u|| * u``: the paper's ``phi`` is the identity, and the ratio is 1 where a
norm is zero. Two deviations: biases have the ratio 1 (they begin at zero, where a ratio would hold
them), and the norms of the first layer are those of the rows that move.
"""

from __future__ import annotations

from typing import ClassVar

from daskxml.core.arrays import Array
from daskxml.kernels import AdamStep, Kernels, RowGradient
from daskxml.optim.config import OptimizerConfig
from daskxml.optim.rule import ParameterSlice, Rule


class Adam(Rule):
    """A step along the first moment over the root of the second.

    Rows of the first layer that a batch does not use are skipped: weights and moments do not
    change, and the bias correction counts all steps, as in PyTorch's ``SparseAdam``.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.kernels import get_kernels
    >>> from daskxml.optim import OptimizerConfig
    >>> weight, first, second = (np.zeros((1, 2), np.float32) for _ in range(3))
    >>> adam = Adam(OptimizerConfig(), get_kernels("cpu", 1))
    >>> gradient = RowGradient(np.array([[3.0, -0.01]], np.float32))
    >>> adam.update(ParameterSlice(weight, (first, second), True), gradient, lr=0.5, step=1)
    >>> weight.round(4)
    array([[-0.5,  0.5]], dtype=float32)
    """

    moments: ClassVar[tuple[str, ...]] = ("first", "second")

    def update(self, target: ParameterSlice, gradient: RowGradient, lr: float, step: int) -> None:
        """Update both moments and the weights."""
        adam = self.constants(target, lr, step)
        first, second = target.moments
        self.kernels.adam_rows(target.weight, first, second, gradient, adam)

    def constants(self, target: ParameterSlice, lr: float, step: int) -> AdamStep:
        """Return the constants of a step."""
        config = self.config
        return AdamStep(
            lr=lr, beta1=config.beta1, beta2=config.beta2, epsilon=config.epsilon,
            weight_decay=self.decay(target), step=step,
        )  # fmt: skip


class Lamb(Adam):
    """Adam's step, rescaled in every layer to the norm of its weights times the learning rate.

    Rows of the first layer that a batch does not use are skipped, and count in neither norm: the
    rows in use are the layer of this step.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.kernels import get_kernels
    >>> from daskxml.optim import OptimizerConfig
    >>> weight = np.array([[3.0, 4.0]], np.float32)
    >>> moments = np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32)
    >>> lamb = Lamb(OptimizerConfig(), get_kernels("cpu", 1))
    >>> gradient = RowGradient(np.array([[7.0, 7.0]], np.float32))
    >>> lamb.update(ParameterSlice(weight, moments, True), gradient, lr=0.1, step=1)
    >>> weight.round(4)
    array([[2.6464, 3.6464]], dtype=float32)
    """

    is_layerwise: ClassVar[bool] = True

    def __init__(self, config: OptimizerConfig, kernels: Kernels) -> None:
        super().__init__(config, kernels)
        self._norms = kernels.empty(0, "float64")
        self._trust = kernels.empty(1, "float64")

    def reserve(self, rows: int) -> None:
        """Allocate norms for parameters of so many rows."""
        if self._norms.shape[0] < 2 * rows:
            self._norms = self.kernels.empty(2 * rows, "float64")

    @property
    def nbytes(self) -> int:
        """Bytes of the norms, and of the ratio."""
        return int(self._norms.nbytes + self._trust.nbytes)

    def update(self, target: ParameterSlice, gradient: RowGradient, lr: float, step: int) -> None:
        """Update the moments, compare the norms, update the weights."""
        adam = self.constants(target, lr, step)
        norms = self._update_moments(target, gradient, adam)
        if target.is_matrix:
            self.kernels.lamb_trust(self._trust, norms)
        else:
            self.kernels.fill(self._trust, 1.0)
        first, second = target.moments
        self.kernels.lamb_rows(target.weight, first, second, gradient, adam, self._trust)

    def _update_moments(
        self, target: ParameterSlice, gradient: RowGradient, adam: AdamStep
    ) -> Array:
        """Update the moments; return the squares of the norms of every row, ``(2, rows)``."""
        count = int(gradient.values.shape[0])
        self.reserve(count)
        norms = self._norms[: 2 * count].reshape(2, count)
        first, second = target.moments
        self.kernels.lamb_moments(norms, target.weight, first, second, gradient, adam)
        return norms
