"""Settings that state their own range: a default and its bounds, side by side in a dataclass.

The sections of a run file are such dataclasses, wherever in the package they stand. A size in bytes
may be written as text, such as ``"16MiB"``.
"""

from __future__ import annotations

import dataclasses
import numbers
import operator
import re
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from daskxml.core.errors import ConfigError

_BOUNDS = {
    "above": (operator.gt, "above"),
    "low": (operator.ge, "at least"),
    "high": (operator.le, "at most"),
    "below": (operator.lt, "below"),
}
_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)}
_UNITS |= {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", start=1)}


def bounded(
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    words: tuple[str, ...] = (),
) -> Any:
    """Give a field of a `Checked` dataclass a default and a range.

    Parameters
    ----------
    default
        The value if the run file does not set the field; `dataclasses.MISSING` if it must.
    low, high
        The smallest and the largest allowed value; for a tuple, of each of its elements.
    above, below
        Exclusive bounds.
    words
        Texts that are valid instead of a number.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True, kw_only=True)
    ... class Oven(Checked):
    ...     shelves: int = bounded(2, low=1)
    >>> Oven(shelves=0)
    Traceback (most recent call last):
    daskxml.core.errors.ConfigError: shelves = 0: must be at least 1
    """
    limits = {"low": low, "high": high, "above": above, "below": below, "words": words}
    return dataclasses.field(default=default, metadata=limits)


class Checked:
    """The base of dataclasses that refuse a value out of the range that its field states.

    A field has the range of `bounded`, or the values of its `Literal`. One of type int takes whole
    numbers only, and none a truth value for a number.

    Raises
    ------
    ConfigError
        Naming the field, the value and what is allowed.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True, kw_only=True)
    ... class Oven(Checked):
    ...     heat: Literal["air", "top"] = "air"
    >>> Oven(heat="gas")
    Traceback (most recent call last):
    daskxml.core.errors.ConfigError: heat = 'gas': must be one of 'air', 'top'
    """

    def __post_init__(self) -> None:
        kind: Any = type(self)
        hints = type_hints(kind)
        for field in dataclasses.fields(kind):
            value, hint = getattr(self, field.name), hints[field.name]
            if get_origin(hint) is Literal and value not in get_args(hint):
                choices = ", ".join(map(repr, get_args(hint)))
                raise self.refusal(field.name, f"must be one of {choices}")
            if "low" not in field.metadata:
                continue
            is_list = get_origin(hint) is tuple and isinstance(value, tuple)
            for number in value if is_list else (value,):
                if problem := _problem(number, hint, field.metadata):
                    raise self.refusal(field.name, f"must be {problem}")

    def refusal(self, name: str, problem: str) -> ConfigError:
        """Return the error of a field's value, and what is wrong with it."""
        value = getattr(self, name)
        shown = list(value) if isinstance(value, tuple) else value
        return ConfigError(f"{name} = {shown!r:.60}: {problem}", name)


@cache
def type_hints(kind: Any) -> dict[str, Any]:
    """Return `typing.get_type_hints` of a class, which takes a while, from a cache."""
    return get_type_hints(kind)


def _problem(number: Any, hint: Any, limits: Mapping[str, Any]) -> str:
    """Say what a number of a field must be; "" if it is that."""
    words, takes_fractions = limits.get("words", ()), float in (hint, *get_args(hint))
    if number in words:
        return ""
    allowed = range_text(limits) + "".join(f", or {word!r}" for word in words)
    if isinstance(number, str):
        return allowed
    kind: Any = numbers.Real if takes_fractions else numbers.Integral
    if isinstance(number, bool) or not isinstance(number, kind):
        return f"a {'' if takes_fractions else 'whole '}number, {allowed}"
    if not abs(number) < float("inf"):  # or a NaN
        return f"a finite number, {allowed}"
    given = [name for name in _BOUNDS if limits.get(name) is not None]
    is_kept = all(_BOUNDS[name][0](number, limits[name]) for name in given)
    return "" if is_kept else allowed


def range_text(limits: Mapping[str, Any]) -> str:
    """Return the range of a number in words, from the metadata of `bounded` or `size`.

    Examples
    --------
    >>> range_text(bounded(1, low=0, below=2).metadata)
    'at least 0, below 2'
    """
    low, high = limits["low"], limits["high"]
    if low is not None and high is not None:
        return f"from {low} to {high}"
    given = [name for name in _BOUNDS if limits.get(name) is not None]
    return ", ".join(f"{_BOUNDS[name][1]} {limits[name]}" for name in given)


def size(default: str) -> Any:
    """Give a dataclass field of type int a default in bytes; a run file may also say ``"1GiB"``.

    If the default is ``"auto"``, a run file may also say that.

    Examples
    --------
    >>> size("1KiB").default, size("auto").default
    (1024, 'auto')
    """
    words = ("auto",) if default == "auto" else ()
    metadata = {"low": 1, "high": None, "above": None, "unit": "bytes", "words": words}
    return dataclasses.field(default=default if words else parse_size(default), metadata=metadata)


def parse_size(text: str) -> int:
    """Parse a size such as ``"256MiB"``, ``"1.5 GB"`` or ``"4096"``; return the number of bytes.

    Raises
    ------
    ConfigError
        If it is not a number with a unit of bytes.

    Examples
    --------
    >>> parse_size("16MiB"), parse_size("1.5 kB"), parse_size("7")
    (16777216, 1500, 7)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].lower() not in _UNITS:
        raise ConfigError(f"{text!r} is not a size: write it like 256MiB, 1.5GB or 4096")
    return round(Fraction(match[1]) * _UNITS[match[2].lower()])


def size_text(count: int) -> int | str:
    """Write a number of bytes in the largest binary unit that divides it, else return it as is.

    Examples
    --------
    >>> size_text(2**30), size_text(1000)
    ('1GiB', 1000)
    """
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if count and count % _UNITS[unit.lower()] == 0:
            return f"{count // _UNITS[unit.lower()]}{unit}"
    return count
