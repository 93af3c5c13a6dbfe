"""The kinds of models by their descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daskxml.core.errors import ConfigError
from daskxml.models.mix.spec import PARTS, MixtureSpec, PartSpec

AnySpec = PartSpec  # of what a run trains


def kind_named(name: Any) -> type[AnySpec]:
    """Return the class of what a run file says of a kind.

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
    if name == MixtureSpec.kind:
        problem = "train two runs or more, then `daskxml mix RUN RUN --valid FILE`"
        raise ConfigError(f"kind = {name!r}: {problem}", "kind")
    if not isinstance(name, str) or name not in PARTS:
        choices = ", ".join(map(repr, PARTS))
        raise ConfigError(f"kind = {name!r}: must be one of {choices}", "kind")
    return PARTS[name]


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
    if values.get("kind") == MixtureSpec.kind:
        return MixtureSpec.from_dict(values)
    return kind_named(values.get("kind", "mlp")).from_dict(values)
