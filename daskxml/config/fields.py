"""What a field of a run file may hold: its default, its range, and sizes written as text."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from daskxml.errors import ConfigError

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)}
_UNITS |= {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", start=1)}


def bounded(
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
) -> Any:
    """Give a dataclass field a default and a range, both checked by `check_ranges`.

    Parameters
    ----------
    default
        The value where the run file says nothing.
    low, high
        The least and the greatest allowed value; for a tuple, of each of its values.
    above
        A bound that is itself not allowed.

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
    return dataclasses.field(
        default=default, metadata={"low": low, "high": high, "above": above, "unit": ""}
    )


def size(default: str) -> Any:
    """Give a dataclass field of type int a default in bytes; a run file may write ``"1GiB"``.

    Examples
    --------
    >>> size("1KiB").default
    1024
    """
    metadata = {"low": 1, "high": None, "above": None, "unit": "bytes"}
    return dataclasses.field(default=parse_size(default), metadata=metadata)


def parse_size(text: str) -> int:
    """Return the bytes that a text such as ``"256MiB"``, ``"1.5 GB"`` or ``"4096"`` stands for.

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
    return round(float(match[1]) * _UNITS[match[2].lower()])


def size_text(count: int) -> int | str:
    """Return bytes as the largest binary unit that holds them exactly, else as they are.

    Examples
    --------
    >>> size_text(2**30), size_text(1000)
    ('1GiB', 1000)
    """
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if count and count % _UNITS[unit.lower()] == 0:
            return f"{count // _UNITS[unit.lower()]}{unit}"
    return count


def check_ranges(section: Any) -> None:
    """Refuse a dataclass whose fields lie outside the ranges given by `bounded` and `size`.

    Raises
    ------
    ConfigError
        Naming the field, the value and the allowed range.
    """
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        for number in value if isinstance(value, tuple) else (value,):
            if "low" in field.metadata and not _within(number, field.metadata):
                allowed = _allowed(field.metadata)
                raise ConfigError(f"{field.name} = {value}: must be {allowed}")


def _within(number: float, limits: Any) -> bool:
    low, high, above = limits["low"], limits["high"], limits["above"]
    return (
        (low is None or number >= low)
        and (high is None or number <= high)
        and (above is None or number > above)
        and abs(number) < float("inf")  # false for a NaN as well
    )


def _allowed(limits: Any) -> str:
    low, high, above = limits["low"], limits["high"], limits["above"]
    if low is not None and high is not None:
        return f"from {low} to {high}"
    if above is not None:
        return f"above {above}" + (f", at most {high}" if high is not None else "")
    return f"at least {low}" if low is not None else f"at most {high}"
