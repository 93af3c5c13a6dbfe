"""Stochastic gradient descent: ``w -= lr * (g + decay * w)``, without writing out a gradient."""

from __future__ import annotations

from typing import ClassVar

from daskxml.ops import Drop, RowGradient
from daskxml.optim.rule import Place, Rule
from daskxml.types import Array, Csr


class Sgd(Rule):
    """A step against the gradient; it remembers nothing.

    Rows of the first layer that a batch does not touch do not change: they do not decay either.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.ops import get_kernels
    >>> from daskxml.optim import OptimizerConfig
    >>> weight = np.zeros((1, 3), np.float32)
    >>> sgd = Sgd(OptimizerConfig(), get_kernels("cpu", 1))
    >>> left, right = np.ones((4, 1), np.float32), np.ones((4, 3), np.float32)
    >>> sgd.fused_product(Place(weight, (), True), left, right, lr=0.5)
    True
    >>> weight
    array([[-2., -2., -2.]], dtype=float32)
    """

    is_fused: ClassVar[bool] = True

    def update(self, place: Place, gradient: RowGradient, lr: float, step: int) -> None:
        """``w = keep * w - lr * g``."""
        self.kernels.sgd_rows(place.weight, gradient, lr, self.keep(place, lr))

    def fused_product(
        self, place: Place, left: Array, right: Array, lr: float, scale: float = 1.0
    ) -> bool:
        """One matrix product into the weights, unless they are narrow."""
        if place.is_narrow:
            return False
        self.kernels.gemm(place.weight, left.T, right, -lr * scale, self.keep(place, lr))
        return True

    def fused_sparse_product(
        self, place: Place, x: Csr, rows: Array, delta: Array, lr: float, drop: Drop
    ) -> bool:
        """Add up in the weights; weight decay, once a step, needs to know the rows first."""
        if self.decay(place):
            return False
        self.kernels.sparse_update(place.weight, x, rows, delta, -lr, drop)
        return True
