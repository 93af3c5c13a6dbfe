"""Mixtures as a kind of model: trained models as one, their probabilities added up with weights.

Models of different kinds err on different rows: label trees follow single features, a network what
they have in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from daskxml.core.arrays import Array, Csr, Segment
from daskxml.core.errors import ConfigError
from daskxml.kernels import Kernels
from daskxml.models.protocol import (
    Arrays,
    ModelKind,
    Ranker,
    Spec,
    joined_arrays,
    part_arrays,
    stored_name,
)
from daskxml.models.rankings import candidates

Rankings = tuple[Array, Array]  # ids and probabilities, ``(parts, rows, candidates)`` each


@dataclass(frozen=True, kw_only=True)
class MixtureSpec(Spec):
    """Trained models, whose probabilities are added up with weights.

    Attributes
    ----------
    parts
        The descriptions of two or more, of the same features and labels.
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

    kind: ClassVar[str] = "mix"
    parts: tuple[Spec, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
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


Part = tuple[ModelKind[Any], Spec, dict[str, Any]]  # with the arrays by the part's own names


class Mix(ModelKind[MixtureSpec]):
    """See `daskxml.models.protocol.ModelKind`; ``kinds`` are those of parts."""

    title = "mixtures"
    made_by = "train two runs or more, then `daskxml mix RUN RUN --valid FILE`"
    Spec = MixtureSpec

    def __init__(self, kinds: Mapping[str, ModelKind[Any]]) -> None:
        self._kinds = kinds

    def spec(self, values: Mapping[str, Any]) -> MixtureSpec:
        """Return a stored mixture's description."""
        parts = list(map(self._described, values["parts"]))
        weights = list(map(float, values["weights"]))
        return MixtureSpec.from_dict({**values, "parts": parts, "weights": weights})

    def _described(self, values: Any) -> Any:
        if not isinstance(values, Mapping):
            raise ConfigError("parts of a mixture must be descriptions of models")
        return self._kinds[stored_name(values, self._kinds)].spec(values)

    def _parts(self, spec: MixtureSpec, arrays: Arrays) -> list[Part]:
        return [
            (self._kinds[part.kind], part, part_arrays(arrays, f"part{number}"))
            for number, part in enumerate(spec.parts)
        ]

    def problem(self, spec: MixtureSpec, arrays: Arrays) -> str | None:
        """Return the first problem of a part."""
        parts = self._parts(spec, arrays)
        if (found := sum(len(own) for _, _, own in parts)) != len(arrays):
            return f"it has {len(arrays)} arrays, of which {found} are of its parts"
        problems = (kind.problem(part, own) for kind, part, own in parts)
        return next((f"part {n}: {text}" for n, text in enumerate(problems) if text), None)

    def ranker(self, spec: MixtureSpec, arrays: Arrays, kernels: Kernels) -> Mixture:
        """Return the parts ready to rank together."""
        rankers = [kind.ranker(part, own, kernels) for kind, part, own in self._parts(spec, arrays)]
        return Mixture(rankers, spec.weights, spec.labels, kernels)

    def describe(self, spec: MixtureSpec, arrays: Arrays) -> str:
        """Return how many parts there are."""
        return f"{spec.features} -> {spec.labels}, mixture of {len(spec.parts)} models"

    def smaller(
        self, spec: MixtureSpec, arrays: Arrays, bits: int, drop: float
    ) -> tuple[MixtureSpec, dict[str, Any]]:
        """Make each part smaller in its own way."""
        made = [
            kind.smaller(part, own, bits, drop) for kind, part, own in self._parts(spec, arrays)
        ]
        parts = tuple(part for part, _ in made)
        return replace(spec, parts=parts), joined_arrays([own for _, own in made], "part")

    def explain(self, spec: MixtureSpec, arrays: Arrays, row: Csr, label: int) -> Array:
        """Add up what features add to the parts' probabilities."""
        parts = self._parts(spec, arrays)
        if any(kind.scores_all for kind, _, _ in parts):
            raise ConfigError(
                "a mixture with a network is not explained as a whole: explain its parts, the runs "
                "that it was made of"
            )
        added = [kind.explain(part, own, row, label) for kind, part, own in parts]
        return np.tensordot(spec.weights, added, axes=1)


class Mixture:
    """Models that rank labels together, on the CPU.

    Parameters
    ----------
    rankers
        The parts.
    weights
        Of each part's probabilities.
    labels
        How many there are.
    kernels
        Of the CPU.
    """

    def __init__(
        self, rankers: Sequence[Ranker], weights: Sequence[float], labels: int, kernels: Kernels
    ) -> None:
        self._rankers, self._labels, self._kernels = rankers, labels, kernels
        self._weights = np.array(weights, np.float32)

    def top_k(self, segments: Sequence[Segment], k: int) -> tuple[Array, Array]:
        """Rank labels of rows; see `Ranker.top_k`."""
        count = candidates(k, self._labels)
        rankings = stacked([ranker.top_k(segments, count) for ranker in self._rankers])
        return self._kernels.average_rankings(*rankings, self._weights, min(k, self._labels))

    def probabilities(self, segments: Sequence[Segment]) -> Array:
        """Return the probabilities of all labels; see `Ranker.probabilities`."""
        found = [ranker.probabilities(segments) for ranker in self._rankers]
        return np.tensordot(self._weights.astype(np.float64), found, axes=1)


def stacked(found: Sequence[tuple[Array, Array]]) -> Rankings:
    """Return the parts' ids and probabilities; a part that ranks fewer labels adds nothing."""
    ids, scores = (np.stack(arrays) for arrays in zip(*found, strict=True))
    return ids, np.where(ids >= 0, scores, np.float32(0))
