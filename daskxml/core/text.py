"""Text from outside: shown without control characters, and JSON whose every defect is one error."""

from __future__ import annotations

import json
from typing import Any


def printable(text: str) -> str:
    """Return text that does nothing to a terminal: what cannot be printed is written as an escape.

    Examples
    --------
    >>> print(printable("red\\x1b[31m, zwei Tüten, \\udc80"))
    red\\x1b[31m, zwei Tüten, \\udc80
    """
    if text.isprintable():
        return text
    return "".join(part if part.isprintable() else ascii(part)[1:-1] for part in text)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON that somebody else may have written.

    Raises
    ------
    ValueError
        If it is no JSON, is nested too deeply, has a number with thousands of digits, or texts
        that no file can hold (lone surrogates).

    Examples
    --------
    >>> parse_json('{"rows": [1, 2]}')
    {'rows': [1, 2]}
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: nested too deeply
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if (b"\\u" if isinstance(text, bytes) else "\\u") in text:  # type: ignore[operator]
        json.dumps(value, ensure_ascii=False).encode()  # UnicodeEncodeError is a ValueError
    return value
