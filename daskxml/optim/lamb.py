"""LAMB (You et al., "Large Batch Optimization for Deep Learning", ICLR 2020, Algorithm 2).

With ``u = m^ / (sqrt(v^) + epsilon) + decay * w`` of Adam's corrected moments, every layer moves
by ``w -= lr * ||w|| / ||u|| * u``: the paper's ``phi`` is the identity, and the ratio is 1 where a
norm is zero. Two deviations: biases have the ratio 1 (they begin at zero, where a ratio
would hold them), and the norms of the first layer are those of the rows that move.
"""

from __future__ import annotations

from typing import ClassVar

from daskxml.ops import Kernels, RowGradient
from daskxml.optim.adam import Adam
from daskxml.optim.config import OptimizerConfig
from daskxml.optim.rule import Place


class Lamb(Adam):
    """Adam's step, in every layer as long as the layer's weights times the rate.

    Rows of the first layer that a batch does not touch wait, and count in neither norm: the rows
    that are touched are the layer of this step.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.ops import get_kernels
    >>> from daskxml.optim import OptimizerConfig
    >>> weight = np.array([[3.0, 4.0]], np.float32)
    >>> moments = np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32)
    >>> lamb = Lamb(OptimizerConfig(), get_kernels("cpu", 1))
    >>> gradient = RowGradient(np.array([[7.0, 7.0]], np.float32))
    >>> lamb.update(Place(weight, moments, True), gradient, lr=0.1, step=1)
    >>> weight.round(4)
    array([[2.6464, 3.6464]], dtype=float32)
    """

    is_layerwise: ClassVar[bool] = True

    def __init__(self, config: OptimizerConfig, kernels: Kernels) -> None:
        super().__init__(config, kernels)
        self._norms = kernels.empty(0, "float64")
        self._trust = kernels.empty(1, "float64")

    def reserve(self, rows: int) -> None:
        """Allocate for parameters of so many rows."""
        if self._norms.shape[0] < 2 * rows:
            self._norms = self.kernels.empty(2 * rows, "float64")

    @property
    def nbytes(self) -> int:
        """Bytes of the norms, and of the ratio."""
        return int(self._norms.nbytes + self._trust.nbytes)

    def update(self, place: Place, gradient: RowGradient, lr: float, step: int) -> None:
        """Move the moments, compare the norms, move the weights."""
        adam = self.constants(place, lr, step)
        first, second = place.moments
        count = int(gradient.values.shape[0])
        self.reserve(count)
        norms, trust = self._norms[: 2 * count].reshape(2, count), self._trust
        self.kernels.lamb_moments(norms, place.weight, first, second, gradient, adam)
        if place.is_matrix:
            self.kernels.lamb_trust(trust, norms)
        else:
            self.kernels.fill(trust, 1.0)
        self.kernels.lamb_rows(place.weight, first, second, gradient, adam, trust)
