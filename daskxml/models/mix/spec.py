"""The description of trained models whose probabilities are added up with weights."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar

from daskxml.core.errors import ConfigError
from daskxml.core.fields import bounded, check_ranges
from daskxml.models.protocol import Spec


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
    >>> from daskxml.models.network.spec import ModelSpec
    >>> from daskxml.models.trees.spec import TreeSpec
    >>> parts = ModelSpec(features=3, labels=2), TreeSpec(features=3, labels=2)
    >>> MixtureSpec(features=3, labels=2, parts=parts, weights=(0.4, 0.7))
    Traceback (most recent call last):
    daskxml.core.errors.ConfigError: weights = (0.4, 0.7): give 2 numbers, none of them negative,
    whose sum is 1
    """

    features: int = bounded(MISSING, low=1, high=2**31 - 1)
    labels: int = bounded(MISSING, low=1, high=2**31 - 1)
    kind: ClassVar[str] = "mixture"
    parameter_count: ClassVar[int] = 0  # it is not trained
    parts: tuple[Spec, ...]
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
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        parts = [part.as_dict() for part in self.parts]
        return {"kind": self.kind, **values, "parts": parts, "weights": list(self.weights)}
