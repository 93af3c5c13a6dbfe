"""Settings that state their own range: a default and its bounds, side by side in a dataclass.

The sections of a run file are such dataclasses, wherever in the package they stand.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from daskxml.errors import ConfigError


def bounded(
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """Give a dataclass field a default and a range, both checked by `check_ranges`.

    Parameters
    ----------
    default
        The value where the run file says nothing.
    low, high
        The least and the greatest allowed value; for a tuple, of each of its values.
    above, below
        Bounds that are themselves not allowed.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True, kw_only=True)
    ... class Oven:
    ...     shelves: int = bounded(2, low=1)
    ...     def __post_init__(self):
    ...         check_ranges(self)
    >>> Oven(shelves=0)
    Traceback (most recent call last):
    daskxml.errors.ConfigError: shelves = 0: must be at least 1
    """
    limits = {"low": low, "high": high, "above": above, "below": below}
    return dataclasses.field(default=default, metadata={**limits, "unit": ""})


def check_ranges(section: Any) -> None:
    """Refuse a dataclass whose fields lie outside the ranges of `bounded`, or are no `Literal`.

    Raises
    ------
    ConfigError
        Naming the field, the value and what is allowed.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True, kw_only=True)
    ... class Oven:
    ...     heat: Literal["air", "top"] = "air"
    >>> check_ranges(Oven(heat="gas"))
    Traceback (most recent call last):
    daskxml.errors.ConfigError: heat = 'gas': must be one of 'air', 'top'
    """
    hints = get_type_hints(type(section))
    for field in dataclasses.fields(section):
        value, hint = getattr(section, field.name), hints[field.name]
        if get_origin(hint) is Literal and value not in get_args(hint):
            choices = ", ".join(map(repr, get_args(hint)))
            raise ConfigError(f"{field.name} = {value!r}: must be one of {choices}")
        for number in value if isinstance(value, tuple) else (value,):
            if number in field.metadata.get("words", ()):
                continue
            if "low" in field.metadata and not _within(number, field.metadata):
                raise ConfigError(f"{field.name} = {value}: must be {_allowed(field.metadata)}")


def _within(number: float, limits: Mapping[str, Any]) -> bool:
    return (
        all(
            is_kept(number, limits[name])
            for name, (is_kept, _) in _BOUNDS.items()
            if limits.get(name) is not None
        )
        and abs(number) < float("inf")  # false for a NaN as well
    )


def _allowed(limits: Mapping[str, Any]) -> str:
    low, high = limits["low"], limits["high"]
    if low is not None and high is not None:
        return f"from {low} to {high}"
    given = [name for name in _BOUNDS if limits.get(name) is not None]
    return ", ".join(f"{_BOUNDS[name][1]} {limits[name]}" for name in given)


_BOUNDS = {
    "above": (operator.gt, "above"),
    "low": (operator.ge, "at least"),
    "high": (operator.le, "at most"),
    "below": (operator.lt, "below"),
}
