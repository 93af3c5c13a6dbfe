"""The description of a model, the layout of its parameters, and their initial values.

The parameters are in one flat float32 array. Merging, checkpoints and the all-reduce use the flat
array; layers use reshaped views of it. Every parameter starts at a multiple of 64 bytes. The
padding between them is and stays zero, so norms and sums of models are unaffected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from daskxml.core.arrays import Array
from daskxml.core.errors import ConfigError, ModelError
from daskxml.core.fields import bounded
from daskxml.models.protocol import Spec

ALWAYS_RANKED = 100  # places of a ranking that may stay empty
_ALIGNED_FLOATS = 16  # 64 bytes: a cache line, and the widest vector register
_DRAW_FLOATS = 1 << 20  # drawn at a time, so that no float64 copy of the model exists


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Spec):
    """A multi-layer perceptron over sparse rows.

    Attributes
    ----------
    hidden
        Units of each hidden layer, first to last; ``()`` is a linear model, meant for small sets
        (its input is made dense).
    activation
        Of the hidden layers: ``relu`` or ``sigmoid``.
    loss
        ``softmax``: cross-entropy against ``y / |y|`` (a row without labels has neither loss nor
        gradient); ``sigmoid``: cross-entropy of each label on its own, summed over labels.
    dropout, feature_dropout
        Share of hidden units, and of stored input entries, dropped in training; in [0, 1).
    output_bias
        The output biases' initial value (about -5 helps the sigmoid loss on many labels).
    init
        Distribution of the initial weights, see :func:`initial_parameters`: ``uniform``, by the
        width of the layer before; ``normal``, by that of the layer itself.
    init_scale
        Factor on the initial weights, above 0.

    Raises
    ------
    ConfigError
        If a value is out of its range.

    Examples
    --------
    >>> ModelSpec(features=500, labels=983).widths
    (500, 128, 983)
    >>> ModelSpec(features=500, labels=983, dropout=1.0)
    Traceback (most recent call last):
    daskxml.core.errors.ConfigError: dropout = 1.0: must be at least 0, below 1
    """

    kind: ClassVar[str] = "network"
    hidden: tuple[int, ...] = bounded((128,), low=1, high=2**31 - 1)
    activation: Literal["relu", "sigmoid"] = "relu"
    loss: Literal["softmax", "sigmoid"] = "softmax"
    dropout: float = bounded(0.0, low=0, below=1)
    feature_dropout: float = bounded(0.0, low=0, below=1)
    output_bias: float = bounded(0.0, low=-1000, high=1000)
    init: Literal["uniform", "normal"] = "uniform"
    init_scale: float = bounded(1.0, above=0, high=1000)

    @property
    def widths(self) -> tuple[int, ...]:
        """Features, hidden units and labels in the order data passes them."""
        return (self.features, *self.hidden, self.labels)

    @property
    def parameter_count(self) -> int:
        """Weights and biases."""
        return Layout(self).count


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter's shape and the index of its first float."""

    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Number of floats."""
        return math.prod(self.shape)


class Layout:
    """The parameters of a model in order, in one flat array.

    ``hidden0.weight`` is ``(features, units)``, one row per feature, so that an update touches
    whole rows; ``hidden1.weight`` and so on ``(units before, units)``; ``output.weight`` is
    ``(labels, units)``, one row per label, so that a block of labels is contiguous; biases are
    ``(units,)`` and ``(labels,)``.

    Attributes
    ----------
    slots
        Name to :class:`Slot`, in the order of the flat array.
    size
        Floats of the flat array, padding included.
    count
        True parameters, without padding.

    Examples
    --------
    >>> layout = Layout(ModelSpec(features=3, labels=5, hidden=(4,)))
    >>> layout.names
    ('hidden0.weight', 'hidden0.bias', 'output.weight', 'output.bias')
    >>> layout.count, layout.size, layout.slots["output.weight"]
    (41, 80, Slot(shape=(5, 4), offset=32))
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.slots: dict[str, Slot] = {}
        end = 0
        for name, shape in _shapes(spec).items():
            self.slots[name] = Slot(shape, end)
            end += -(-math.prod(shape) // _ALIGNED_FLOATS) * _ALIGNED_FLOATS
        self.size = end
        self.count = sum(slot.size for slot in self.slots.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names in the order of the flat array."""
        return tuple(self.slots)

    def views(self, flat: Array) -> dict[str, Array]:
        """Return the parameters as views of ``flat`` ``(size,)``, of any array type.

        Examples
        --------
        >>> layout = Layout(ModelSpec(features=3, labels=5))
        >>> views = layout.views(np.zeros(layout.size, np.float32))
        >>> views["output.bias"][:] = 1.0
        >>> views["hidden0.weight"].shape
        (3, 128)
        """
        return {
            name: flat[slot.offset : slot.offset + slot.size].reshape(slot.shape)
            for name, slot in self.slots.items()
        }


def initial_parameters(spec: ModelSpec, seed: int) -> Array:
    """Return a flat NumPy array of initial parameters, the same bits for a seed on any machine.

    Weights are uniform in ±init_scale·sqrt(g / fan-in), with g = 6 between hidden layers of ReLU
    (He et al. 2015) and 3, a variance of 1 / fan-in, elsewhere. The first layer's fan-in counts as
    no more than its units: a sparse row of unit length is not as many inputs as there are
    features. Biases are zero but those of the output, which are ``output_bias``.

    A sigmoid has the slope 1/4 and the mean 1/2 where its input is 0 (Glorot and Bengio 2010): from
    the second hidden layer on, weights have 16 times that variance and biases cancel the mean, so
    that a signal passes eight layers; weights of the first layer have the variance 1.

    With ``init = "normal"`` the weights of a layer of n units are normal with the standard
    deviation init_scale / n, and biases are zero: after Ma, Rusu, Wu and Sim ("Adaptive Elastic
    Training for Sparse Deep Learning on Heterogeneous Multi-GPU Servers", 2021, section 5.1), who
    print n itself, with which no training begins.

    Examples
    --------
    >>> spec = ModelSpec(features=3, labels=5)
    >>> bool((initial_parameters(spec, 7) == initial_parameters(spec, 7)).all())
    True
    """
    layout = Layout(spec)
    flat = np.zeros(layout.size, np.float32)
    views = layout.views(flat)
    for place, name in enumerate(name for name in layout.names if name.endswith("weight")):
        seeds = np.random.SeedSequence(entropy=abs(seed), spawn_key=(place,))
        _draw(views[name].reshape(-1), spec, name, np.random.default_rng(seeds))
    views["output.bias"][:] = spec.output_bias
    if spec.activation == "sigmoid" and spec.init == "uniform":
        for layer in range(1, len(spec.hidden)):
            sums = views[f"hidden{layer}.weight"].sum(axis=0, dtype=np.float64)
            views[f"hidden{layer}.bias"][:] = -0.5 * sums
    return flat


def grown_parameters(spec: ModelSpec, seed: int, model: Any) -> Array:
    """Return flat parameters that are those of a `Model`, and the seed's where it has none.

    Features and labels keep their ids; new ones follow. So the scores of old labels are unchanged
    for rows of old features.

    Raises
    ------
    ModelError
        If the model is no network, its hidden layers differ, or it has more features or labels
        than ``spec``.

    Examples
    --------
    >>> from daskxml.models.store import ModelHeader
    >>> from daskxml.models.trained import Model
    >>> small, large = (ModelSpec(features=3, labels=n, hidden=()) for n in (2, 4))
    >>> weights = {"output.weight": np.ones((2, 3), np.float32),
    ...            "output.bias": np.ones(2, np.float32)}
    >>> model = Model(ModelHeader(spec=small, training_rows=9), weights, np.array([4, 6]))
    >>> flat = grown_parameters(large, 7, model)
    >>> Layout(large).views(flat)["output.bias"]
    array([1., 1., 0., 0.], dtype=float32)
    """
    before = model.spec
    if not isinstance(before, ModelSpec):
        raise ModelError("the model to continue from is no network: give one, or leave it out")
    if (before.hidden, before.activation) != (spec.hidden, spec.activation):
        raise ModelError(
            f"the model to continue from has hidden layers {list(before.hidden)} "
            f"({before.activation}), the run {list(spec.hidden)} ({spec.activation}): "
            "leave them as they were"
        )
    for kind in ("features", "labels"):
        known, found = getattr(before, kind), getattr(spec, kind)
        if known > found:
            raise ModelError(
                f"the model to continue from has {known:,} {kind}, the rows {found:,}: give rows "
                f"with all {kind} that it was trained on"
            )
    flat = initial_parameters(spec, seed)
    for name, view in Layout(spec).views(flat).items():
        old = model.parameters[name]
        view[tuple(slice(0, length) for length in old.shape)] = old
    return flat


def _shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    before = spec.features
    for layer, units in enumerate(spec.hidden):
        shapes[f"hidden{layer}.weight"] = (before, units)
        shapes[f"hidden{layer}.bias"] = (units,)
        before = units
    shapes["output.weight"] = (spec.labels, before)
    shapes["output.bias"] = (spec.labels,)
    return shapes


def _spread(spec: ModelSpec, name: str) -> float:
    """Return the square of bound / init_scale: three times the variance."""
    is_sigmoid = spec.activation == "sigmoid"
    if name == "hidden0.weight":
        return 3.0 if is_sigmoid else 3.0 / min(spec.features, spec.hidden[0])
    if name.startswith("hidden"):
        fan_in = spec.hidden[int(name.removeprefix("hidden").split(".")[0]) - 1]
        return (48.0 if is_sigmoid else 6.0) / fan_in
    return 3.0 / spec.widths[-2]


def _units(spec: ModelSpec, name: str) -> int:
    """Return the units of the layer that has these weights."""
    layer = name.partition(".")[0].removeprefix("hidden")
    return spec.hidden[int(layer)] if layer.isdigit() else spec.labels


def _draw(out: Array, spec: ModelSpec, name: str, generator: np.random.Generator) -> None:
    """Draw the next weights of a layer; however they are cut, they are the same."""
    if spec.init == "normal":
        generator.standard_normal(dtype=np.float32, out=out)
        out *= np.float32(spec.init_scale / _units(spec, name))
    else:
        bound = np.float32(spec.init_scale * math.sqrt(_spread(spec, name)))
        _draw_uniform(out, bound, generator)


def _draw_uniform(out: Array, bound: np.float32, generator: np.random.Generator) -> None:
    """Draw uniformly from [-bound, bound), in exact float32: the same bits on any machine."""
    for start in range(0, out.shape[0], _DRAW_FLOATS):
        part = out[start : start + _DRAW_FLOATS]
        generator.random(dtype=np.float32, out=part)
        part *= np.float32(2.0)
        part -= np.float32(1.0)
        part *= bound


def check_rank(k: int, labels: int) -> None:
    """Refuse to rank no label, or far more than there are, which takes memory for nothing.

    Raises
    ------
    ConfigError
        If ``k`` is below 1, or more than `ALWAYS_RANKED` above the number of labels.

    Examples
    --------
    >>> check_rank(5, labels=2)
    >>> check_rank(10**9, labels=50)
    Traceback (most recent call last):
    daskxml.core.errors.ConfigError: k = 1000000000: there are 50 labels
    """
    if k < 1:
        raise ConfigError(f"k = {k}: must be at least 1")
    if k > labels + ALWAYS_RANKED:
        raise ConfigError(f"k = {k}: there are {labels:,} labels")
