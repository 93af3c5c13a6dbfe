"""The kinds of models that a run file's ``[model] kind`` names, by their descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daskxml.core.errors import ConfigError
from daskxml.model.spec import ModelSpec
from daskxml.model.tree.spec import TreeSpec

AnySpec = ModelSpec | TreeSpec
KINDS: dict[str, type[ModelSpec] | type[TreeSpec]] = {"mlp": ModelSpec, "tree": TreeSpec}


def kind_named(name: Any) -> type[ModelSpec] | type[TreeSpec]:
    """Return the description's class of a kind.

    Raises
    ------
    ConfigError
        If there is no such kind.

    Examples
    --------
    >>> kind_named("forest")
    Traceback (most recent call last):
    daskxml.core.errors.ConfigError: kind = 'forest': must be one of 'mlp', 'tree'
    """
    if not isinstance(name, str) or name not in KINDS:
        choices = ", ".join(map(repr, KINDS))
        raise ConfigError(f"kind = {name!r}: must be one of {choices}", "kind")
    return KINDS[name]


def spec_from_dict(values: Mapping[str, Any]) -> AnySpec:
    """Return the description that ``as_dict`` was made from.

    Raises
    ------
    ConfigError
        If a name is unknown or missing, or a value out of range.

    Examples
    --------
    >>> spec_from_dict({"kind": "tree", "features": 3, "labels": 2}).beam
    10
    """
    return kind_named(values.get("kind", "mlp")).from_dict(values)
