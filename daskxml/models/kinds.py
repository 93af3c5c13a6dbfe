"""The kinds of models by their descriptions: what a run trains, and mixtures of trained models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, TypeVar

from daskxml.core.errors import ConfigError
from daskxml.core.fields import bounded, check_ranges
from daskxml.models.network.spec import ModelSpec, check_names
from daskxml.models.trees.spec import TreeSpec

AnySpec = ModelSpec | TreeSpec
Kind = TypeVar("Kind")
TRAINED: dict[str, type[AnySpec]] = {"mlp": ModelSpec, "tree": TreeSpec}


@dataclass(frozen=True, kw_only=True)
class MixtureParts:
    """What a run file says of a mixture: ``[model] kind = "mixture"``.

    Attributes
    ----------
    features, labels
        As of any model.
    parts
        Run files, or the names of those that come with daskxml: each trains one part, on the rows,
        the cluster and with the seed of this run file.
    weights
        Of the parts' probabilities; none: they are chosen on the rows that `data.validation` holds
        out.

    Raises
    ------
    ConfigError
        If there are fewer than two parts, or other weights than parts.
    """

    features: int = bounded(MISSING, low=1, high=2**31 - 1)
    labels: int = bounded(MISSING, low=1, high=2**31 - 1)
    kind: ClassVar[str] = "mixture"
    parts: tuple[str, ...] = ("trees", "best")
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("parts", "weights"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if len(self.parts) < 2:
            raise ConfigError(f"parts = {list(self.parts)}: give two run files or more", "parts")
        if self.weights and len(self.weights) != len(self.parts):
            problem = f"give one for each of the {len(self.parts)} parts, or none"
            raise ConfigError(f"weights = {list(self.weights)}: {problem}", "weights")


KINDS: dict[str, type[AnySpec] | type[MixtureParts]] = {**TRAINED, "mixture": MixtureParts}


@dataclass(frozen=True, kw_only=True)
class MixtureSpec:
    """Trained models, whose probabilities are added up with weights.

    Attributes
    ----------
    features, labels
        Columns of the input and of the output, the same for all parts.
    parts
        Their descriptions, two or more.
    weights
        What each one's probabilities are multiplied by: not negative, and their sum is 1.

    Raises
    ------
    ConfigError
        If the parts differ in their columns, or the weights are none.

    Examples
    --------
    >>> parts = ModelSpec(features=3, labels=2), TreeSpec(features=3, labels=2)
    >>> MixtureSpec(features=3, labels=2, parts=parts, weights=(0.4, 0.7))
    Traceback (most recent call last):
    daskxml.core.errors.ConfigError: weights = (0.4, 0.7): give 2 numbers, none of them negative,
    whose sum is 1
    """

    features: int = bounded(MISSING, low=1, high=2**31 - 1)
    labels: int = bounded(MISSING, low=1, high=2**31 - 1)
    kind: ClassVar[str] = "mixture"
    parts: tuple[AnySpec, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        check_ranges(self)
        for number, part in enumerate(self.parts):
            if (part.features, part.labels) != (self.features, self.labels):
                raise ConfigError(
                    f"part {number} of the mixture has {part.features:,} features and "
                    f"{part.labels:,} labels, not {self.features:,} and {self.labels:,}: mix "
                    "models of the same rows"
                )
        is_share = all(weight >= 0 for weight in self.weights) and abs(sum(self.weights) - 1) < 1e-6
        if len(self.weights) != len(self.parts) or not is_share:
            raise ConfigError(
                f"weights = {self.weights}: give {len(self.parts)} numbers, none of them negative, "
                "whose sum is 1"
            )
        if len(self.parts) < 2:
            raise ConfigError("a mixture of one model: give two or more")

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as in a JSON file."""
        return {
            "kind": self.kind,
            "features": self.features,
            "labels": self.labels,
            "parts": [part.as_dict() for part in self.parts],
            "weights": list(self.weights),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MixtureSpec:
        """The inverse of :meth:`as_dict`.

        Raises
        ------
        ConfigError
            If a name is unknown or missing, or a value out of range.
        """
        values = {name: value for name, value in values.items() if name != "kind"}
        check_names(values, {field.name for field in fields(cls)})
        parts, weights = values["parts"], values["weights"]
        if not all(isinstance(part, Mapping) for part in parts):
            raise ConfigError("parts of a mixture must be descriptions of models")
        described = tuple(part_from_dict(part) for part in parts)
        return cls(**values | {"parts": described, "weights": tuple(map(float, weights))})


def kind_named(name: Any) -> type[AnySpec] | type[MixtureParts]:
    """Return the class of what a run file says of a kind.

    Raises
    ------
    ConfigError
        If there is no such kind.

    Examples
    --------
    >>> kind_named("forest")
    Traceback (most recent call last):
    daskxml.core.errors.ConfigError: kind = 'forest': must be one of 'mlp', 'tree', 'mixture'
    """
    return _named(name, KINDS)


def _named(name: Any, kinds: Mapping[str, type[Kind]]) -> type[Kind]:
    if not isinstance(name, str) or name not in kinds:
        choices = ", ".join(map(repr, kinds))
        raise ConfigError(f"kind = {name!r}: must be one of {choices}", "kind")
    return kinds[name]


def part_from_dict(values: Mapping[str, Any]) -> AnySpec:
    """Return the description of a network or of trees that ``as_dict`` was made from.

    Raises
    ------
    ConfigError
        If a name is unknown or missing, or a value out of range.
    """
    return _named(values.get("kind", "mlp"), TRAINED).from_dict(values)


def spec_from_dict(values: Mapping[str, Any]) -> AnySpec | MixtureSpec:
    """Return the description of any model that ``as_dict`` was made from.

    Raises
    ------
    ConfigError
        If a name is unknown or missing, or a value out of range.

    Examples
    --------
    >>> spec_from_dict({"kind": "tree", "features": 3, "labels": 2}).beam
    10
    """
    return (
        MixtureSpec.from_dict(values) if values.get("kind") == "mixture" else part_from_dict(values)
    )
