"""Gradient descent, plain and with momentum, in the convention of PyTorch's SGD.

Plain: ``w -= lr * (g + decay * w)``. With ``b = momentum * b + g``: ``w -= lr * b`` (Polyak), or
``w -= lr * (g + momentum * b)`` (Nesterov, as Sutskever et al. 2013 write it at the point where the
gradient is taken). The learning rate is outside of ``b``, so a new rate applies at once to the
accumulated gradients. Weight decay is decoupled from ``b``: ``w -= lr * decay * w``.

Rows of the first layer that a batch does not use are skipped: neither the weights nor ``b`` change,
so momentum counts the steps in which a feature occurs.
"""

from __future__ import annotations

from typing import ClassVar

from daskxml.core.arrays import Array, Csr
from daskxml.kernels import Drop, RowGradient
from daskxml.optim.rule import ParameterSlice, Rule


class Sgd(Rule):
    """A step against the gradient, which is not materialized where it is a product.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.kernels import get_kernels
    >>> from daskxml.optim import OptimizerConfig
    >>> weight = np.zeros((1, 3), np.float32)
    >>> sgd = Sgd(OptimizerConfig(), get_kernels("cpu", 1))
    >>> left, right = np.ones((4, 1), np.float32), np.ones((4, 3), np.float32)
    >>> sgd.fused_product(ParameterSlice(weight, (), True), left, right, lr=0.5)
    True
    >>> weight
    array([[-2., -2., -2.]], dtype=float32)
    """

    is_fused: ClassVar[bool] = True

    def update(self, target: ParameterSlice, gradient: RowGradient, lr: float, step: int) -> None:
        """``w = keep * w - lr * g``."""
        self.kernels.sgd_rows(target.weight, gradient, lr, self.keep(target, lr))

    def fused_product(
        self, target: ParameterSlice, left: Array, right: Array, lr: float, scale: float = 1.0
    ) -> bool:
        """One matrix product into the weights, unless they are bfloat16."""
        if target.is_bfloat16:
            return False
        self.kernels.gemm(target.weight, left.T, right, -lr * scale, self.keep(target, lr))
        return True

    def fused_sparse_product(
        self, target: ParameterSlice, x: Csr, rows: Array, delta: Array, lr: float, drop: Drop
    ) -> bool:
        """Accumulate in the weights; not with weight decay, which each row has once a step."""
        if self.decay(target):
            return False
        self.kernels.sparse_update(target.weight, x, rows, delta, -lr, drop)
        return True


class Momentum(Rule):
    """A step along a decaying sum of gradients.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.kernels import get_kernels
    >>> from daskxml.optim import OptimizerConfig
    >>> weight, buffer = np.zeros((1, 1), np.float32), np.ones((1, 1), np.float32)
    >>> rule = Momentum(OptimizerConfig(momentum=0.5), get_kernels("cpu", 1))
    >>> gradient = RowGradient(np.ones((1, 1), np.float32))
    >>> rule.update(ParameterSlice(weight, (buffer,), True), gradient, lr=0.1, step=1)
    >>> weight
    array([[-0.15]], dtype=float32)
    """

    moments: ClassVar[tuple[str, ...]] = ("momentum",)
    is_nesterov: ClassVar[bool] = False

    def update(self, target: ParameterSlice, gradient: RowGradient, lr: float, step: int) -> None:
        """Add to the sum and move along it."""
        (buffer,) = target.moments
        keep, momentum = self.keep(target, lr), self.config.momentum
        self.kernels.momentum_rows(
            target.weight, buffer, gradient, lr, keep, momentum, self.is_nesterov
        )


class Nesterov(Momentum):
    """A step along where the sum will lead.

    Examples
    --------
    >>> Nesterov.moments
    ('momentum',)
    """

    is_nesterov: ClassVar[bool] = True
