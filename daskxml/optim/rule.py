"""A rule is the formula of an optimizer: how a gradient changes some rows of a parameter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

from daskxml.core.arrays import Array, Csr
from daskxml.kernels import Drop, Kernels, RowGradient
from daskxml.optim.config import OptimizerConfig

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class ParameterSlice:
    """Rows of a parameter and of its moments.

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
    >>> whole = ParameterSlice(np.zeros((4, 2)), (np.zeros((4, 2)),), True)
    >>> whole.rows(slice(1, 3)).moments[0].shape
    (2, 2)
    """

    weight: Array
    moments: tuple[Array, ...]
    is_matrix: bool

    @property
    def is_bfloat16(self) -> bool:
        """Whether weights are bfloat16, as uint16, with stochastic rounding."""
        return bool(self.weight.dtype == "uint16")

    def rows(self, span: slice) -> ParameterSlice:
        """Return some of the rows."""
        moments = tuple(moment[span] for moment in self.moments)
        return ParameterSlice(self.weight[span], moments, self.is_matrix)

    def as_column(self) -> ParameterSlice:
        """Return a vector as a column, so that each element is a row; a matrix as it is."""
        if self.is_matrix:
            return self
        columns = (array.reshape(-1, 1) for array in (self.weight, *self.moments))
        return ParameterSlice(next(columns), tuple(columns), False)

    def with_rounding(self, gradient: RowGradient, step: int, first: int) -> RowGradient:
        """Return a gradient with a key for stochastic rounding, if the weights are bfloat16.

        The key is different in every step, and for every first row.

        Examples
        --------
        >>> import numpy as np
        >>> whole = ParameterSlice(np.zeros((1, 2), np.uint16), (), True)
        >>> gradient = RowGradient(np.zeros((1, 2), np.float32))
        >>> whole.with_rounding(gradient, step=1, first=0).rounding_key > 0
        True
        """
        if not self.is_bfloat16:
            return gradient
        key = (step * 0xD1342543DE82EF95 + first * 0xAF251AF3B0F025B5) & _MASK
        return replace(gradient, rounding_key=key)


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
    """The formula of an optimizer; the state belongs to `daskxml.optim.Optimizer`.

    Attributes
    ----------
    moments
        Names of the arrays of state, of the parameters' shapes; zero at first.
    is_layerwise
        Whether a step needs the whole gradient of a layer at once.
    is_fused
        Whether `fused_product` takes every product, and, without weight decay,
        `fused_sparse_product` too.
    """

    moments: ClassVar[tuple[str, ...]] = ()
    is_layerwise: ClassVar[bool] = False
    is_fused: ClassVar[bool] = False

    def __init__(self, config: OptimizerConfig, kernels: Kernels) -> None:
        self.config, self.kernels = config, kernels

    def reserve(self, rows: int) -> None:  # noqa: B027 - most rules need nothing
        """Allocate scratch memory for updates of parameters of so many rows."""

    @property
    def nbytes(self) -> int:
        """Bytes of scratch memory."""
        return 0

    @abstractmethod
    def update(self, target: ParameterSlice, gradient: RowGradient, lr: float, step: int) -> None:
        """Change ``target`` by a gradient of all or some of its rows, in step ``step`` from 1."""

    def fused_product(
        self, target: ParameterSlice, left: Array, right: Array, lr: float, scale: float = 1.0
    ) -> bool:
        """Apply ``scale * left.T @ right`` without materializing it; False if not supported."""
        return False

    def fused_sparse_product(
        self, target: ParameterSlice, x: Csr, rows: Array, delta: Array, lr: float, drop: Drop
    ) -> bool:
        """Apply ``x[rows].T @ delta`` without materializing it; False if not supported."""
        return False

    def decay(self, target: ParameterSlice) -> float:
        """Return the weight decay of a target."""
        return self.config.weight_decay if target.is_matrix else 0.0

    def keep(self, target: ParameterSlice, lr: float) -> float:
        """Return the share of a weight that weight decay leaves in one step."""
        return 1.0 - lr * self.decay(target)
