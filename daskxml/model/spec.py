"""What a model looks like, without its parameters: the values that a model file stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from daskxml.errors import ConfigError

ACTIVATIONS = ("relu", "sigmoid")
LOSSES = ("softmax", "sigmoid")


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
        ``softmax``: cross-entropy against y/|y| (a row without labels has neither loss nor
        gradient); ``sigmoid``: cross-entropy of each label on its own, summed over labels.
    dropout, feature_dropout
        Share of hidden units, and of stored input entries, dropped in training; in [0, 1).
    output_bias
        The output biases' initial value (about -5 helps the sigmoid loss on many labels).
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
    daskxml.errors.ConfigError: model.dropout = 1.0: must be in [0, 1)
    """

    features: int
    labels: int
    hidden: tuple[int, ...] = (128,)
    activation: str = "relu"
    loss: str = "softmax"
    dropout: float = 0.0
    feature_dropout: float = 0.0
    output_bias: float = 0.0
    init_scale: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))  # a list, from JSON or TOML
        for name in ("features", "labels"):
            _require(name, getattr(self, name), _is_count, "must be an integer of at least 1")
        _require("hidden", self.hidden, _are_counts, "must be integers of at least 1")
        for name in ("dropout", "feature_dropout"):
            _require(name, getattr(self, name), _is_share, "must be in [0, 1)")
        _require("activation", self.activation, ACTIVATIONS.__contains__, _one_of(ACTIVATIONS))
        _require("loss", self.loss, LOSSES.__contains__, _one_of(LOSSES))
        _require("output_bias", self.output_bias, _is_moderate, "must be in [-1000, 1000]")
        _require("init_scale", self.init_scale, _is_scale, "must be in (0, 1000]")

    @property
    def widths(self) -> tuple[int, ...]:
        """Features, hidden units and labels in the order data passes them."""
        return (self.features, *self.hidden, self.labels)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as a JSON file holds them.

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
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        missing = sorted({"features", "labels"} - set(values))
        if unknown or missing:
            raise ConfigError(f"model: unknown {unknown}, missing {missing} among its values")
        return cls(**values)


def _require(name: str, value: Any, holds: Any, rule: str) -> None:
    try:
        right = holds(value)
    except TypeError:  # a text compared with a number, say
        right = False
    if not right:
        raise ConfigError(f"model.{name} = {value!r}: {rule}")


def _one_of(names: tuple[str, ...]) -> str:
    return "must be one of " + ", ".join(names)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31


def _are_counts(values: tuple[Any, ...]) -> bool:
    return all(_is_count(value) for value in values)


def _is_share(value: float) -> bool:
    return 0.0 <= value < 1.0


def _is_moderate(value: float) -> bool:
    return -1000.0 <= value <= 1000.0


def _is_scale(value: float) -> bool:
    return 0.0 < value <= 1000.0
