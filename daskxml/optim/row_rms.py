"""RMSprop with one second moment for each row of weights: a row moves along its own gradient.

RMSprop (Tieleman and Hinton, "Lecture 6.5", COURSERA: Neural Networks for Machine Learning, 2012)
divides a gradient by the root of its second moment. Here that is one number a row, the mean over
the row, as in row-wise AdaGrad (Gupta, Bengio and Weston, "Training Highly Multiclass Classifiers",
JMLR 2014) and for output layers in Adam-mini (Zhang et al., ICLR 2025):

======  =========  ==========================================================
paper   here       meaning
======  =========  ==========================================================
eta     lr         learning rate
v       second     ``v = beta2 * v + (1 - beta2) * mean(g**2)``, one for a row
t       step       steps so far, this one included
======  =========  ==========================================================

``w -= lr * g / (sqrt(v^) + epsilon)`` with Adam's ``v^ = v / (1 - beta2**t)`` and decoupled weight
decay. In an output layer a row is a label: its weights keep the direction of the mean of its rows,
which Adam loses where it makes the small numbers of a gradient as large as the others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from daskxml.kernels import RowGradient
from daskxml.optim.adam import Adam
from daskxml.optim.rule import ParameterSlice


class RowRms(Adam):
    """A step along the gradient over the root of its row's second moment.

    It is in the first column of ``second``, whose other columns are not used: in an array of the
    parameters' shape it is merged, cut and stored as Adam's is. Of a vector each number is a row.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.kernels import get_kernels
    >>> from daskxml.optim import OptimizerConfig
    >>> weight, second = np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32)
    >>> rule = RowRms(OptimizerConfig(), get_kernels("cpu", 1))
    >>> gradient = RowGradient(np.array([[7.0, -1.0]], np.float32))
    >>> rule.update(ParameterSlice(weight, (second,), True), gradient, lr=0.5, step=1)
    >>> weight.round(4)
    array([[-0.7,  0.1]], dtype=float32)
    """

    moments: ClassVar[tuple[str, ...]] = ("second",)

    def update(self, target: ParameterSlice, gradient: RowGradient, lr: float, step: int) -> None:
        """Update the moment and the weights."""
        if not target.is_matrix:
            gradient = replace(gradient, values=gradient.values.reshape(-1, 1))
        rows = target.as_column()
        (second,) = rows.moments
        self.kernels.row_rms_rows(rows.weight, second, gradient, self.constants(target, lr, step))
