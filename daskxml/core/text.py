"""Text from outside: how it is shown, and numbers and JSON, whose every defect is one error."""

from __future__ import annotations

import json
from typing import Any

_WORD_CHARACTERS, _LINE_CHARACTERS = 300, 2_000  # the longest that are told whole


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


def cleaned(value: Any) -> Any:
    """Return plain values with every text in them, and every key, as `printable` shows it.

    Examples
    --------
    >>> cleaned({"workers": {"\\x1b[31m": [1, "\\a"]}})
    {'workers': {'\\\\x1b[31m': [1, '\\\\x07']}}
    """
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {cleaned(key): cleaned(held) for key, held in value.items()}
    return [*map(cleaned, value)] if isinstance(value, list | tuple) else value


def one_line(text: str) -> str:
    """Return text, of which a stranger may have written parts, as a line of bounded length.

    Examples
    --------
    >>> one_line("id " + 5_000 * "9" + "\\n is unknown")
    'id 9999999999999999999999999999999999999999...9999999999 is unknown'
    """
    words = (f"{w[:40]}...{w[-10:]}" if len(w) > _WORD_CHARACTERS else w for w in text.split())
    line = printable(" ".join(words))
    return line if len(line) <= _LINE_CHARACTERS else line[:_LINE_CHARACTERS] + " ..."


def quoted(value: object) -> str:
    """Return a value between quotes, cut to 40 characters.

    Examples
    --------
    >>> quoted(b"red"), quoted("\\x1b" + 50 * "a"), quoted(0.5)
    ("'red'", "'\\\\x1baaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...'", '0.5')
    """
    if isinstance(value, bytes):
        value = value.decode("ascii", "backslashreplace")
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 42 else text[:38] + "..." + text[-1]


def counted(number: int, noun: str) -> str:
    """Return a number with what it counts.

    Examples
    --------
    >>> counted(1, "tree"), counted(2000, "mega-batch")
    ('1 tree', '2,000 mega-batches')
    """
    return f"{number:,} {noun}" + ("es" if noun.endswith("ch") else "s") * (number != 1)


def number_of(text: str) -> float:
    """Return the number that a text is, in the digits and the notation of every format.

    Raises
    ------
    ValueError
        If it is none, such as ``1_000`` or one in other digits, which Python would take.

    Examples
    --------
    >>> number_of("-2.5e3"), number_of("inf")
    (-2500.0, inf)
    >>> number_of("1_0")
    Traceback (most recent call last):
    ValueError: no number
    """
    if "_" in text or not text.isascii():
        raise ValueError("no number")
    return float(text)


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
