"""The kinds of models, a line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daskxml.core.errors import ConfigError
from daskxml.models.mix.kind import Mix
from daskxml.models.network.kind import Network
from daskxml.models.protocol import NAMES_BEFORE, ModelKind, Spec, TrainedKind, stored_name
from daskxml.models.trees.kind import Trees

TRAINED: dict[str, TrainedKind[Any]] = {"network": Network(), "trees": Trees()}
KINDS: dict[str, ModelKind[Any]] = {**TRAINED, "mix": Mix(TRAINED)}


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
    daskxml.core.errors.ConfigError: kind = 'forest': must be one of 'network', 'trees'
    """
    if isinstance(name, str) and name in TRAINED:
        return TRAINED[name]
    now = NAMES_BEFORE.get(name, name) if isinstance(name, str) else ""
    if now in TRAINED:
        problem = f"is called {now!r} now"
    elif now in KINDS:
        problem = KINDS[now].made_by
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
    >>> spec_from_dict({"kind": "trees", "features": 3, "labels": 2}).labels
    2
    """
    return KINDS[stored_name(values, KINDS)].spec(values)
