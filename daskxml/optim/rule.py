"""What an optimizer is at its heart: how a gradient of some rows changes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from daskxml.ops import Drop, Kernels, RowGradient
from daskxml.optim.config import OptimizerConfig
from daskxml.types import Array, Csr


@dataclass(frozen=True, slots=True)
class Place:
    """Rows of a parameter, with what a rule remembers of them.

    Attributes
    ----------
    weight
        ``(rows, width)``; a vector is one row.
    moments
        One array of the same shape for each name in the rule's ``moments``.
    is_matrix
        Whether the parameter is a matrix: vectors, which are biases, have no weight decay.

    Examples
    --------
    >>> import numpy as np
    >>> Place(np.zeros((4, 2)), (np.zeros((4, 2)),), True).rows(slice(1, 3)).moments[0].shape
    (2, 2)
    """

    weight: Array
    moments: tuple[Array, ...]
    is_matrix: bool

    def rows(self, span: slice) -> Place:
        """Return these rows of it."""
        return Place(self.weight[span], tuple(m[span] for m in self.moments), self.is_matrix)


class Rule(ABC):
    """One optimizer's formula; its state is the caller's.

    Attributes
    ----------
    moments
        Names of the arrays, of the parameters' shapes, that it remembers; zero at first.
    is_layerwise
        Whether a step needs the whole gradient of a layer at once.
    """

    moments: ClassVar[tuple[str, ...]] = ()
    is_layerwise: ClassVar[bool] = False

    def __init__(self, config: OptimizerConfig, kernels: Kernels) -> None:
        self.config, self.kernels = config, kernels

    @abstractmethod
    def update(self, place: Place, gradient: RowGradient, lr: float, step: int) -> None:
        """Change ``place`` by a gradient of all or some of its rows, in step ``step`` from 1."""

    def fused_product(self, place: Place, left: Array, right: Array, lr: float) -> bool:
        """Change ``place`` by the gradient ``left.T @ right`` unwritten; False where it cannot."""
        return False

    def fused_sparse_product(
        self, place: Place, x: Csr, rows: Array, delta: Array, lr: float, drop: Drop
    ) -> bool:
        """Change ``place`` by ``x[rows].T @ delta`` unwritten; False where the rule cannot."""
        return False

    def decay(self, place: Place) -> float:
        """Return the weight decay there."""
        return self.config.weight_decay if place.is_matrix else 0.0

    def keep(self, place: Place, lr: float) -> float:
        """Return what weight decay leaves of a weight there in one step."""
        return 1.0 - lr * self.decay(place)
