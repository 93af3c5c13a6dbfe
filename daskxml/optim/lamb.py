"""LAMB (You et al., "Large Batch Optimization for Deep Learning", ICLR 2020, Algorithm 2).

With ``u = m^ / (sqrt(v^) + epsilon) + decay * w`` of Adam's corrected moments, every layer moves
by ``w -= lr * ||w|| / ||u|| * u``: the paper's ``phi`` is the identity, and the ratio is 1 where a
norm is zero. Two deviations: biases have the ratio 1 (they begin at zero, where a ratio
would hold them), and the norms of the first layer are those of the rows that move.
"""

from __future__ import annotations

import math
from typing import ClassVar

from daskxml.ops import RowGradient
from daskxml.optim.adam import Adam
from daskxml.optim.rule import Place
from daskxml.types import Array


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

    def update(self, place: Place, gradient: RowGradient, lr: float, step: int) -> None:
        """Move the moments, compare the norms, move the weights."""
        adam = self.constants(place, lr, step)
        first, second = place.moments
        norms = self.kernels.empty((2, int(gradient.values.shape[0])), "float64")
        self.kernels.lamb_moments(norms, place.weight, first, second, gradient, adam)
        trust = self._trust(norms) if place.is_matrix else 1.0
        self.kernels.lamb_rows(place.weight, first, second, gradient, adam, trust)

    def _trust(self, norms: Array) -> float:
        """``||w|| / ||u||`` from the rows' sums of squares."""
        weights, updates = (self.kernels.sum64(squares) for squares in norms)
        return math.sqrt(weights / updates) if weights > 0.0 and updates > 0.0 else 1.0
