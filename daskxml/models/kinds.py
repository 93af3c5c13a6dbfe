"""The kinds of models, a line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daskxml.core.errors import ConfigError
from daskxml.models.mix.kind import Mix
from daskxml.models.network.kind import Network
from daskxml.models.protocol import ModelKind, Spec, TrainedKind
from daskxml.models.trees.kind import Trees

DEFAULT_KIND = "mlp"
TRAINED: dict[str, TrainedKind[Any]] = {"mlp": Network(), "tree": Trees()}
KINDS: dict[str, ModelKind[Any]] = {**TRAINED, "mixture": Mix(TRAINED)}


def kind_of(spec: Spec) -> ModelKind[Any]:
    """Return the kind of a model."""
    return KINDS[spec.kind]


def trained_kind(name: Any) -> TrainedKind[Any]:
    """Return a kind that a run file names.

    Raises
    ------
    ConfigError
        If there is no such kind, or it is not trained.

    Examples
    --------
    >>> trained_kind("forest")
    Traceback (most recent call last):
    daskxml.core.errors.ConfigError: kind = 'forest': must be one of 'mlp', 'tree'
    """
    if isinstance(name, str) and name in TRAINED:
        return TRAINED[name]
    if isinstance(name, str) and name in KINDS:
        problem = KINDS[name].made_by
    else:
        problem = f"must be one of {', '.join(map(repr, TRAINED))}"
    raise ConfigError(f"kind = {name!r}: {problem}", "kind")


def spec_from_dict(values: Mapping[str, Any]) -> Spec:
    """Return the description of any model that ``as_dict`` was made from.

    Raises
    ------
    ConfigError
        If the kind or a name is unknown, one is missing, or a value out of range.

    Examples
    --------
    >>> spec_from_dict({"kind": "tree", "features": 3, "labels": 2}).labels
    2
    """
    name = values.get("kind", DEFAULT_KIND)
    if not isinstance(name, str) or name not in KINDS:
        raise ConfigError(f"kind = {name!r}: must be one of {', '.join(map(repr, KINDS))}")
    described: Spec = KINDS[name].spec(values)
    return described
