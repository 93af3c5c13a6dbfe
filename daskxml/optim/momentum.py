"""Gradient descent with momentum, in the convention of PyTorch's SGD.

With ``b = momentum * b + g``: ``w -= lr * b`` (Polyak), or ``w -= lr * (g + momentum * b)``
(Nesterov, as Sutskever et al. 2013 write it at the point where the gradient is taken). The rate is
outside of ``b``, so a new rate holds at once for all that has been gathered. Weight decay is apart
from it: ``w -= lr * decay * w``.
"""

from __future__ import annotations

from typing import ClassVar

from daskxml.ops import RowGradient
from daskxml.optim.rule import Place, Rule


class Momentum(Rule):
    """A step along a decaying sum of gradients.

    Rows of the first layer that a batch does not touch wait: neither the weights nor the sum
    change, so momentum counts the steps in which a feature occurs.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.ops import get_kernels
    >>> from daskxml.optim import OptimizerConfig
    >>> weight, buffer = np.zeros((1, 1), np.float32), np.ones((1, 1), np.float32)
    >>> rule = Momentum(OptimizerConfig(momentum=0.5), get_kernels("cpu", 1))
    >>> gradient = RowGradient(np.ones((1, 1), np.float32))
    >>> rule.update(Place(weight, (buffer,), True), gradient, lr=0.1, step=1)
    >>> weight
    array([[-0.15]], dtype=float32)
    """

    moments: ClassVar[tuple[str, ...]] = ("momentum",)
    is_nesterov: ClassVar[bool] = False

    def update(self, place: Place, gradient: RowGradient, lr: float, step: int) -> None:
        """Add to the sum and move along it."""
        (buffer,) = place.moments
        keep, momentum = self.keep(place, lr), self.config.momentum
        self.kernels.momentum_rows(
            place.weight, buffer, gradient, lr, keep, momentum, self.is_nesterov
        )


class Nesterov(Momentum):
    """A step along where the sum will lead; rows that a batch does not touch wait.

    Examples
    --------
    >>> Nesterov.moments
    ('momentum',)
    """

    is_nesterov: ClassVar[bool] = True
