"""Where each parameter lies in one flat float32 array, and its initial values.

Merging, checkpoints and the all-reduce see the flat array only; the model sees reshaped views of
it. Every parameter starts on a multiple of 64 bytes, and the padding between them is zero and
stays zero: it adds nothing to a norm or to a sum of models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from daskxml.model.spec import ModelSpec
from daskxml.types import Array

_ALIGNED_FLOATS = 16  # 64 bytes: a cache line, and the widest vector register
_DRAW_FLOATS = 1 << 20  # drawn at a time, so that no float64 copy of the model exists


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter's shape and the place of its first float."""

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
        """The parameters as views of ``flat`` ``(size,)``, of any array type.

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
    """A NumPy flat array of initial parameters, the same bits for the same seed on any machine.

    Weights are uniform in ±init_scale·sqrt(g / fan-in), with g = 6 between hidden layers of ReLU
    (He et al. 2015) and 3, a variance of 1 / fan-in, elsewhere. The first layer's fan-in counts as
    no more than its units: a sparse row of unit length is not as many inputs as there are
    features. Biases are zero but the output's, which are ``output_bias``.

    A sigmoid has the slope 1/4 and the mean 1/2 where its input is 0 (Glorot and Bengio 2010): from
    the second hidden layer on its weights have 16 times that variance, and biases that take the
    mean away, so that eight layers pass a signal on; the first layer's have the variance 1.

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
        bound = np.float32(spec.init_scale * math.sqrt(_spread(spec, name)))
        _draw_uniform(views[name].reshape(-1), bound, np.random.Generator(_bits(seed, place)))
    views["output.bias"][:] = spec.output_bias
    if spec.activation == "sigmoid":
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
    """The bound's square over ``init_scale``: three times the variance."""
    is_sigmoid = spec.activation == "sigmoid"
    if name == "hidden0.weight":
        return 3.0 if is_sigmoid else 3.0 / min(spec.features, spec.hidden[0])
    if name.startswith("hidden"):
        fan_in = spec.hidden[int(name.removeprefix("hidden").split(".")[0]) - 1]
        return (48.0 if is_sigmoid else 6.0) / fan_in
    return 3.0 / spec.widths[-2]


def _bits(seed: int, place: int) -> np.random.PCG64:
    return np.random.PCG64(np.random.SeedSequence(entropy=abs(seed), spawn_key=(place,)))


def _draw_uniform(out: Array, bound: np.float32, generator: np.random.Generator) -> None:
    """Uniform in [-bound, bound): only exact float32 arithmetic, so the same bits anywhere."""
    for start in range(0, out.shape[0], _DRAW_FLOATS):
        part = out[start : start + _DRAW_FLOATS]
        generator.random(dtype=np.float32, out=part)
        part *= np.float32(2.0)
        part -= np.float32(1.0)
        part *= bound
