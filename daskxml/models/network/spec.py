"""The description of a model, the layout of its parameters, and their initial values.

The parameters are in one flat float32 array. Merging, checkpoints and the all-reduce use the flat
array; layers use reshaped views of it. Every parameter starts at a multiple of 64 bytes. The
padding between them is and stays zero, so norms and sums of models are unaffected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import numpy as np

from daskxml.core.arrays import Array
from daskxml.core.errors import ConfigError

ACTIVATIONS = ("relu", "sigmoid")
LOSSES = ("softmax", "sigmoid")
INITS = ("uniform", "normal")
ALWAYS_RANKED = 100  # places of a ranking that may stay empty
_ALIGNED_FLOATS = 16  # 64 bytes: a cache line, and the widest vector register
_DRAW_FLOATS = 1 << 20  # drawn at a time, so that no float64 copy of the model exists


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A multi-layer perceptron over sparse rows.

    Attributes
    ----------
    features, labels
        Columns of the input and of the output, at least 1.
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
    daskxml.core.errors.ConfigError: model.dropout = 1.0: must be in [0, 1)
    """

    features: int
    labels: int
    kind: ClassVar[str] = "network"
    hidden: tuple[int, ...] = (128,)
    activation: str = "relu"
    loss: str = "softmax"
    dropout: float = 0.0
    feature_dropout: float = 0.0
    output_bias: float = 0.0
    init: str = "uniform"
    init_scale: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))  # a list, from JSON or TOML
        for name, (holds, rule) in _RULES.items():
            value = getattr(self, name)
            try:
                is_valid = holds(value)
            except TypeError:  # a text compared with a number, say
                is_valid = False
            if not is_valid:
                raise ConfigError(f"model.{name} = {value!r}: {rule}", name)

    @property
    def widths(self) -> tuple[int, ...]:
        """Features, hidden units and labels in the order data passes them."""
        return (self.features, *self.hidden, self.labels)

    @property
    def parameter_count(self) -> int:
        """Weights and biases."""
        return Layout(self).count

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as in a JSON file.

        Examples
        --------
        >>> ModelSpec(features=2, labels=3).as_dict()["hidden"]
        [128]
        """
        return {**asdict(self), "hidden": list(self.hidden)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelSpec:
        """The inverse of :meth:`as_dict`.

        Raises
        ------
        ConfigError
            If a name is unknown or missing, or a value out of range.

        Examples
        --------
        >>> spec = ModelSpec(features=2, labels=3, hidden=())
        >>> ModelSpec.from_dict(spec.as_dict()) == spec
        True
        """
        check_names(values, {field.name for field in fields(cls)})
        return cls(**values)


def check_names(values: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse a model's description with an unknown name, or without the data's sizes.

    Examples
    --------
    >>> check_names({"features": 3, "depth": 2}, {"features", "labels"})
    Traceback (most recent call last):
    daskxml.core.errors.ConfigError: model: unknown ['depth'], missing ['labels'] among its values
    """
    unknown = sorted(set(values) - set(known))
    missing = sorted({"features", "labels"} - set(values))
    if unknown or missing:
        raise ConfigError(f"model: unknown {unknown}, missing {missing} among its values")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31


_COUNT = _is_count, "must be an integer of at least 1"
_SHARE = (lambda value: 0.0 <= value < 1.0), "must be in [0, 1)"
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "features": _COUNT,
    "labels": _COUNT,
    "hidden": (lambda value: all(map(_is_count, value)), "must be integers of at least 1"),
    "dropout": _SHARE,
    "feature_dropout": _SHARE,
    "activation": (ACTIVATIONS.__contains__, "must be one of " + ", ".join(ACTIVATIONS)),
    "init": (INITS.__contains__, "must be one of " + ", ".join(INITS)),
    "loss": (LOSSES.__contains__, "must be one of " + ", ".join(LOSSES)),
    "output_bias": (lambda value: -1000.0 <= value <= 1000.0, "must be in [-1000, 1000]"),
    "init_scale": (lambda value: 0.0 < value <= 1000.0, "must be in (0, 1000]"),
}


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
        generator = np.random.Generator(_bits(seed, place))
        _draw(views[name].reshape(-1), spec, name, generator)
    views["output.bias"][:] = spec.output_bias
    if spec.activation == "sigmoid" and spec.init == "uniform":
        for layer in range(1, len(spec.hidden)):
            sums = views[f"hidden{layer}.weight"].sum(axis=0, dtype=np.float64)
            views[f"hidden{layer}.bias"][:] = -0.5 * sums
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


def _bits(seed: int, place: int) -> np.random.PCG64:
    return np.random.PCG64(np.random.SeedSequence(entropy=abs(seed), spawn_key=(place,)))


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
