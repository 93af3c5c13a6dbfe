"""The one interface of all optimizers, and their registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from daskxml.ops import Drop, Kernels
from daskxml.optim.config import OptimizerConfig
from daskxml.optim.sgd import Sgd
from daskxml.types import Array, Csr


class Optimizer(Protocol):
    """Applies gradients to the parameters, in the form in which they arise, at once.

    Calls for different ``rows`` of one parameter may come from different threads at the same
    time; ``begin_step`` is called once before the gradients of a step.
    """

    def begin_step(self) -> None:
        """A new step: what counts steps counts here."""

    def dense(self, name: str, grad: Array, lr: float, rows: slice = slice(None)) -> None:
        """``grad`` has the shape of ``parameter[rows]``."""

    def product(self, name: str, rows: slice, left: Array, right: Array, lr: float) -> None:
        """The gradient of ``parameter[rows]`` is ``left.T @ right``."""

    def sparse_product(
        self, name: str, x: Csr, rows: Array, delta: Array, lr: float, drop: Drop
    ) -> None:
        """The gradient is ``x[rows].T @ delta``, zero for features that are not in use."""

    def state(self) -> dict[str, Array]:
        """The arrays that a checkpoint must hold to go on with the same bits; updated in place."""


OPTIMIZERS: dict[str, Callable[[OptimizerConfig, Kernels, dict[str, Array]], Optimizer]] = {
    "sgd": Sgd,
}


def make_optimizer(
    config: OptimizerConfig, kernels: Kernels, parameters: dict[str, Array]
) -> Optimizer:
    """The configured optimizer over ``parameters`` (views by name, updated in place).

    Examples
    --------
    >>> from daskxml.ops import get_kernels
    >>> kernels = get_kernels("cpu", 1)
    >>> bias = kernels.zeros(2)
    >>> optimizer = make_optimizer(OptimizerConfig(), kernels, {"b": bias})
    >>> optimizer.dense("b", kernels.zeros(2) + 1, lr=0.5)
    >>> bias, optimizer.state()
    (array([-0.5, -0.5], dtype=float32), {})
    """
    return OPTIMIZERS[config.name](config, kernels, parameters)
