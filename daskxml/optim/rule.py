"""What an optimizer is at its heart: how a gradient of some rows changes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

from daskxml.ops import Drop, Kernels, RowGradient
from daskxml.optim.config import OptimizerConfig
from daskxml.types import Array, Csr

_MASK = (1 << 64) - 1


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

    @property
    def is_narrow(self) -> bool:
        """Whether weights are bfloat16, as uint16: steps are rounded by chance."""
        return str(self.weight.dtype) == "uint16"

    def rows(self, span: slice) -> Place:
        """Return these rows of it."""
        return Place(self.weight[span], tuple(m[span] for m in self.moments), self.is_matrix)

    def by_rows(self) -> Place:
        """Return it with rows that can be chosen: each number of a vector is one of its own."""
        if self.is_matrix:
            return self
        columns = (array.reshape(-1, 1) for array in (self.weight, *self.moments))
        return Place(next(columns), tuple(columns), False)


def with_noise(place: Place, gradient: RowGradient, step: int, first: int) -> RowGradient:
    """Return a gradient with the chance that rounds narrow weights, if those of ``place`` are.

    It is another in every step, and for every first row.

    Examples
    --------
    >>> import numpy as np
    >>> place = Place(np.zeros((1, 2), np.uint16), (), True)
    >>> with_noise(place, RowGradient(np.zeros((1, 2), np.float32)), step=1, first=0).noise > 0
    True
    """
    if not place.is_narrow:
        return gradient
    key = (step * 0xD1342543DE82EF95 + first * 0xAF251AF3B0F025B5) & _MASK
    return replace(gradient, noise=key)


def as_rows(array: Array) -> Array:
    """Return a matrix as it is, a vector as one row.

    Examples
    --------
    >>> import numpy as np
    >>> as_rows(np.zeros(3)).shape
    (1, 3)
    """
    return array if array.ndim > 1 else array.reshape(1, -1)


class Rule(ABC):
    """One optimizer's formula; its state is the caller's.

    Attributes
    ----------
    moments
        Names of the arrays, of the parameters' shapes, that it remembers; zero at first.
    is_layerwise
        Whether a step needs the whole gradient of a layer at once.
    is_fused
        Whether `fused_product` takes every product, and `fused_sparse_product` too unless weights
        decay.
    """

    moments: ClassVar[tuple[str, ...]] = ()
    is_layerwise: ClassVar[bool] = False
    is_fused: ClassVar[bool] = False

    def __init__(self, config: OptimizerConfig, kernels: Kernels) -> None:
        self.config, self.kernels = config, kernels

    def reserve(self, rows: int) -> None:  # noqa: B027 - most rules need nothing
        """Allocate what updates of parameters of so many rows need."""

    @property
    def nbytes(self) -> int:
        """Bytes of what it has allocated itself."""
        return 0

    @abstractmethod
    def update(self, place: Place, gradient: RowGradient, lr: float, step: int) -> None:
        """Change ``place`` by a gradient of all or some of its rows, in step ``step`` from 1."""

    def fused_product(
        self, place: Place, left: Array, right: Array, lr: float, scale: float = 1.0
    ) -> bool:
        """Change ``place`` by the gradient ``scale * left.T @ right`` unwritten, if it can."""
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
