"""Adam (Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, Algorithm 1).

======  =========  ==========================================================
paper   here       meaning
======  =========  ==========================================================
alpha   lr         rate
m       first      ``m = beta1 * m + (1 - beta1) * g``
v       second     ``v = beta2 * v + (1 - beta2) * g**2``
t       step       steps so far, this one included
======  =========  ==========================================================

``w -= lr * m^ / (sqrt(v^) + epsilon)`` with ``m^ = m / (1 - beta1**t)``, ``v^ = v / (1 -
beta2**t)``. Weight decay is decoupled (Loshchilov and Hutter, "Decoupled Weight Decay
Regularization", ICLR 2019): ``w -= lr * decay * w``, with nothing of it in the moments.
"""

from __future__ import annotations

from typing import ClassVar

from daskxml.ops import AdamStep, RowGradient
from daskxml.optim.rule import Place, Rule


class Adam(Rule):
    """A step along the first moment over the root of the second.

    Rows of the first layer that a batch does not touch wait: weights and moments stay as they
    are, and the bias correction counts all steps, as in PyTorch's ``SparseAdam``.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.ops import get_kernels
    >>> from daskxml.optim import OptimizerConfig
    >>> weight, first, second = (np.zeros((1, 2), np.float32) for _ in range(3))
    >>> adam = Adam(OptimizerConfig(), get_kernels("cpu", 1))
    >>> gradient = RowGradient(np.array([[3.0, -0.01]], np.float32))
    >>> adam.update(Place(weight, (first, second), True), gradient, lr=0.5, step=1)
    >>> weight.round(4)
    array([[-0.5,  0.5]], dtype=float32)
    """

    moments: ClassVar[tuple[str, ...]] = ("first", "second")

    def update(self, place: Place, gradient: RowGradient, lr: float, step: int) -> None:
        """Move both moments, and the weights."""
        adam = self.constants(place, lr, step)
        first, second = place.moments
        self.kernels.adam_rows(place.weight, first, second, gradient, adam)

    def constants(self, place: Place, lr: float, step: int) -> AdamStep:
        """Return the constants of a step there."""
        config = self.config
        return AdamStep(
            lr=lr, beta1=config.beta1, beta2=config.beta2, epsilon=config.epsilon,
            weight_decay=self.decay(place), step=step,
        )  # fmt: skip
