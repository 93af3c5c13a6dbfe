"""What a field of a run file may hold: its default, its range, and sizes written as text."""

from __future__ import annotations

import dataclasses
import re
from fractions import Fraction
from typing import Any

from daskxml.errors import ConfigError
from daskxml.fields import bounded, check_ranges

__all__ = ["bounded", "check_ranges", "parse_size", "size", "size_text"]

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)}
_UNITS |= {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", start=1)}


def size(default: str) -> Any:
    """Give a dataclass field of type int a default in bytes; a run file may write ``"1GiB"``.

    Where the default is ``"auto"`` a run file may write that, too.

    Examples
    --------
    >>> size("1KiB").default, size("auto").default
    (1024, 'auto')
    """
    words = ("auto",) if default == "auto" else ()
    metadata = {"low": 1, "high": None, "above": None, "unit": "bytes", "words": words}
    return dataclasses.field(default=default if words else parse_size(default), metadata=metadata)


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
    return round(Fraction(match[1]) * _UNITS[match[2].lower()])


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
