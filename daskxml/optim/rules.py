"""Rules, the formulas of optimizers: how a gradient changes some rows of a parameter.

Gradient descent, plain and with momentum, in the convention of PyTorch's SGD.

Plain: ``w -= lr * (g + decay * w)``. With ``b = momentum * b + g``: ``w -= lr * b`` (Polyak), or
``w -= lr * (g + momentum * b)`` (Nesterov, as Sutskever et al. 2013 write it at the point where the
gradient is taken). The learning rate is outside of ``b``, so a new rate applies at once to the
accumulated gradients. Weight decay is decoupled from ``b``: ``w -= lr * decay * w``.

Rows of the first layer that a batch does not use are skipped: neither the weights nor ``b`` change,
so momentum counts the steps in which a feature occurs.

Adam and LAMB: steps along the first moment over the root of the second.

Adam (Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, Algorithm 1):

======  =========  ==========================================================
paper   here       meaning
======  =========  ==========================================================
alpha   lr         learning rate
m       first      ``m = beta1 * m + (1 - beta1) * g``
v       second     ``v = beta2 * v + (1 - beta2) * g**2``
t       step       steps so far, this one included
======  =========  ==========================================================

``w -= lr * m^ / (sqrt(v^) + epsilon)`` with ``m^ = m / (1 - beta1**t)``, ``v^ = v / (1 -
beta2**t)``. Weight decay is decoupled (Loshchilov and Hutter, "Decoupled Weight Decay
Regularization", ICLR 2019): ``w -= lr * decay * w``, not part of the moments.

LAMB (You et al., "Large Batch Optimization for Deep Learning", ICLR 2020, Algorithm 2): with
``u = m^ / (sqrt(v^) + epsilon) + decay * w`` of these moments, every layer moves by
``w -= lr * ||w|| / ||u|| * u``: the paper's ``phi`` is the identity, and the ratio is 1 where a
norm is zero. Two deviations: biases have the ratio 1 (they begin at zero, where a ratio would hold
them), and the norms of the first layer are those of the rows that move.

RMSprop with one second moment for each row of weights: a row moves along its own gradient.

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

from dataclasses import dataclass, replace
from typing import ClassVar

from daskxml.core.arrays import Array
from daskxml.kernels import Kernels
from daskxml.kernels.operands import RowGradient, RuleStep
from daskxml.optim.config import OptimizerConfig


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


def as_rows(array: Array) -> Array:
    """Return a matrix as it is, a vector as one row.

    Examples
    --------
    >>> import numpy as np
    >>> as_rows(np.zeros(3)).shape
    (1, 3)
    """
    return array if array.ndim > 1 else array.reshape(1, -1)


class Rule:
    """The formula of an optimizer; the state belongs to `daskxml.optim.Optimizer`.

    Attributes
    ----------
    moments
        Names of the arrays of state, of the parameters' shapes; zero at first.
    is_layerwise
        Whether a step needs the whole gradient of a layer at once.
    kernel
        Its name for `daskxml.kernels.Kernels.moment_rows`.
    is_nesterov
        Whether a rule ``momentum`` looks ahead.
    is_fused
        Whether a step adds multiples of the gradient to the weights and does nothing else but
        weight decay: a gradient that is a product is then not materialized.
    """

    kernel: ClassVar[str] = ""
    moments: ClassVar[tuple[str, ...]] = ()
    is_layerwise: ClassVar[bool] = False
    is_fused: ClassVar[bool] = False
    is_nesterov: ClassVar[bool] = False

    def __init__(self, config: OptimizerConfig, kernels: Kernels) -> None:
        self.config, self.kernels = config, kernels

    def reserve(self, rows: int) -> None:
        """Allocate scratch memory for updates of parameters of so many rows."""

    @property
    def nbytes(self) -> int:
        """Bytes of scratch memory."""
        return 0

    def update(self, target: ParameterSlice, gradient: RowGradient, lr: float, step: int) -> None:
        """Change ``target`` by a gradient of all or some of its rows, in step ``step`` from 1."""
        given = target.weight, target.moments, gradient, self.constants(target, lr, step)
        self.kernels.moment_rows(self.kernel, *given)

    def constants(self, target: ParameterSlice, lr: float, step: int) -> RuleStep:
        """Return the constants of a step."""
        config = self.config
        return RuleStep(
            lr=lr, beta1=config.beta1, beta2=config.beta2, epsilon=config.epsilon,
            weight_decay=self.decay(target), step=step, momentum=config.momentum,
            is_nesterov=self.is_nesterov,
        )  # fmt: skip

    def decay(self, target: ParameterSlice) -> float:
        """Return the weight decay of a target."""
        return self.config.weight_decay if target.is_matrix else 0.0

    def keep(self, target: ParameterSlice, lr: float) -> float:
        """Return the share of a weight that weight decay leaves in one step."""
        decay = self.decay(target)
        return 1.0 - lr * decay if decay else 1.0


class Sgd(Rule):
    """A step against the gradient, which is not materialized where it is a product.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.kernels import get_kernels
    >>> from daskxml.optim import OptimizerConfig
    >>> weight, gradient = np.zeros((1, 3), np.float32), np.full((1, 3), 4.0, np.float32)
    >>> sgd = Sgd(OptimizerConfig(), get_kernels("cpu", 1))
    >>> sgd.update(ParameterSlice(weight, (), True), RowGradient(gradient), lr=0.5, step=1)
    >>> weight
    array([[-2., -2., -2.]], dtype=float32)
    """

    is_fused: ClassVar[bool] = True

    def update(self, target: ParameterSlice, gradient: RowGradient, lr: float, step: int) -> None:
        """``w = keep * w - lr * g``."""
        self.kernels.sgd_rows(target.weight, gradient, lr, self.keep(target, lr))


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

    kernel: ClassVar[str] = "momentum"
    moments: ClassVar[tuple[str, ...]] = ("momentum",)


class Nesterov(Momentum):
    """A step along where the sum will lead.

    Examples
    --------
    >>> Nesterov.moments
    ('momentum',)
    """

    is_nesterov: ClassVar[bool] = True


class Adam(Rule):
    """A step along the first moment over the root of the second.

    Rows of the first layer that a batch does not use are skipped: weights and moments do not
    change, and the bias correction counts all steps, as in PyTorch's ``SparseAdam``.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.kernels import get_kernels
    >>> from daskxml.optim import OptimizerConfig
    >>> weight, first, second = (np.zeros((1, 2), np.float32) for _ in range(3))
    >>> adam = Adam(OptimizerConfig(), get_kernels("cpu", 1))
    >>> gradient = RowGradient(np.array([[3.0, -0.01]], np.float32))
    >>> adam.update(ParameterSlice(weight, (first, second), True), gradient, lr=0.5, step=1)
    >>> weight.round(4)
    array([[-0.5,  0.5]], dtype=float32)
    """

    kernel: ClassVar[str] = "adam"
    moments: ClassVar[tuple[str, ...]] = ("first", "second")


class Lamb(Adam):
    """Adam's step, rescaled in every layer to the norm of its weights times the learning rate.

    Rows of the first layer that a batch does not use are skipped, and count in neither norm: the
    rows in use are the layer of this step.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.kernels import get_kernels
    >>> from daskxml.optim import OptimizerConfig
    >>> weight = np.array([[3.0, 4.0]], np.float32)
    >>> moments = np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32)
    >>> lamb = Lamb(OptimizerConfig(), get_kernels("cpu", 1))
    >>> gradient = RowGradient(np.array([[7.0, 7.0]], np.float32))
    >>> lamb.update(ParameterSlice(weight, moments, True), gradient, lr=0.1, step=1)
    >>> weight.round(4)
    array([[2.6464, 3.6464]], dtype=float32)
    """

    is_layerwise: ClassVar[bool] = True

    def __init__(self, config: OptimizerConfig, kernels: Kernels) -> None:
        super().__init__(config, kernels)
        self._norms = kernels.empty(0, "float64")
        self._trust = kernels.empty(1, "float64")

    def reserve(self, rows: int) -> None:
        """Allocate norms for parameters of so many rows."""
        if self._norms.shape[0] < 2 * rows:
            self._norms = self.kernels.empty(2 * rows, "float64")

    @property
    def nbytes(self) -> int:
        """Bytes of the norms, and of the ratio."""
        return int(self._norms.nbytes + self._trust.nbytes)

    def update(self, target: ParameterSlice, gradient: RowGradient, lr: float, step: int) -> None:
        """Update the moments, compare the norms, update the weights."""
        adam = self.constants(target, lr, step)
        first, second = target.moments
        count = int(gradient.values.shape[0])
        self.reserve(count)
        norms = self._norms[: 2 * count].reshape(2, count)  # of every row, squared
        self.kernels.lamb_moments(norms, target.weight, first, second, gradient, adam)
        if target.is_matrix:
            self.kernels.lamb_trust(self._trust, norms)
        else:
            self.kernels.fill(self._trust, 1.0)
        self.kernels.lamb_rows(target.weight, first, second, gradient, adam, self._trust)


class RowRms(Rule):
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

    kernel: ClassVar[str] = "row-rms"
    moments: ClassVar[tuple[str, ...]] = ("second",)

    def update(self, target: ParameterSlice, gradient: RowGradient, lr: float, step: int) -> None:
        """Update the moment and the weights."""
        if not target.is_matrix:
            gradient = replace(gradient, values=gradient.values.reshape(-1, 1))
        super().update(target.as_column(), gradient, lr, step)


OPTIMIZERS: dict[str, type[Rule]] = {
    "sgd": Sgd, "momentum": Momentum, "nesterov": Nesterov, "adam": Adam, "lamb": Lamb,
    "row-rms": RowRms,
}  # fmt: skip
