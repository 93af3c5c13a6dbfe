"""Stochastic gradient descent: ``w -= lr * g``, written into the weights without a gradient."""

from __future__ import annotations

from daskxml.ops import Drop, Kernels
from daskxml.optim.config import OptimizerConfig
from daskxml.types import Array, Csr


class Sgd:
    """Implements :class:`daskxml.optim.Optimizer` without state.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.ops import get_kernels
    >>> weight = np.zeros((2, 3), np.float32)
    >>> sgd = Sgd(OptimizerConfig(), get_kernels("cpu", 1), {"w": weight})
    >>> sgd.product("w", slice(1, 2), np.ones((4, 1), "f"), np.ones((4, 3), "f"), lr=0.5)
    >>> weight
    array([[ 0.,  0.,  0.],
           [-2., -2., -2.]], dtype=float32)
    """

    def __init__(
        self, config: OptimizerConfig, kernels: Kernels, parameters: dict[str, Array]
    ) -> None:
        self._kernels, self._parameters = kernels, parameters

    def begin_step(self) -> None:
        """Nothing is counted."""

    def dense(self, name: str, grad: Array, lr: float, rows: slice = slice(None)) -> None:
        """``w[rows] -= lr * grad``."""
        target = self._parameters[name][rows].reshape(-1)
        self._kernels.add_scaled(target, grad.reshape(-1), -lr)

    def product(self, name: str, rows: slice, left: Array, right: Array, lr: float) -> None:
        """``w[rows] -= lr * left.T @ right`` by one matrix product into the weights."""
        self._kernels.gemm(self._parameters[name][rows], left.T, right, -lr, 1.0)

    def sparse_product(
        self, name: str, x: Csr, rows: Array, delta: Array, lr: float, drop: Drop
    ) -> None:
        """``w -= lr * x[rows].T @ delta``; rows of unused features are not touched."""
        self._kernels.sparse_update(self._parameters[name], x, rows, delta, -lr, drop)

    def state(self) -> dict[str, Array]:
        """Nothing."""
        return {}
