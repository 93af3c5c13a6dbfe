"""Charts that would show no more than a number: which they are, and the numbers in their place.

A chart of a series with one point, or of values that have not changed, is folded: its numbers are
text until they change. Where all of them are 0, or there is none, there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskxml.observe.wording import rounded

Values = NDArray[np.floating[Any]]
_NAMED = 4  # workers whose values are shown one by one


def last_unchanged(values: Values) -> Values | None:
    """Return the last value of each row, NaN where it has none; None if one has changed.

    Parameters
    ----------
    values
        ``(rows, points)``; NaN is no value.

    Examples
    --------
    >>> last_unchanged(np.array([[2.0, 2.0], [np.nan, 3.0]])).tolist()
    [2.0, 3.0]
    >>> last_unchanged(np.array([[2.0, 2.5]])) is None
    True
    """
    known = [row[np.isfinite(row)] for row in values]
    if any(len(row) and np.ptp(row) > 0.0 for row in known):
        return None
    return np.array([row[-1] if len(row) else np.nan for row in known])


def in_words(values: Values, names: Sequence[str], write: Callable[[float], str] = rounded) -> str:
    """Return the last values of rows in few words; "" where there is none but 0.

    Examples
    --------
    >>> in_words(np.array([64.0, 64.0]), ["a", "b"]), in_words(np.array([64.0, 32.0]), ["a", "b"])
    ('64', '64 (a), 32 (b)')
    >>> in_words(np.array([0.0, np.nan]), ["a", "b"])
    ''
    """
    known = [(float(value), name) for value, name in zip(values, names, strict=True)
             if np.isfinite(value)]  # fmt: skip
    numbers = sorted({value for value, _ in known})
    if not any(numbers):
        return ""
    if len(numbers) == 1:
        return write(numbers[0])
    if len(known) <= _NAMED:
        return ", ".join(f"{write(value)} ({name})" for value, name in known)
    return f"{write(numbers[0])} to {write(numbers[-1])}"


def folded(
    columns: Mapping[str, Values],
    names: Sequence[str],
    writers: Mapping[str, Callable[[float], str]],
) -> dict[str, str]:
    """Return the columns that no chart is needed for, with their numbers in words.

    Parameters
    ----------
    columns
        ``(rows, points)`` each.
    names
        Of the rows.
    writers
        How numbers of a column are written, where not with a few digits.
    """
    found = {name: last_unchanged(values) for name, values in columns.items()}
    return {
        name: in_words(last, names, writers.get(name, rounded))
        for name, last in found.items()
        if last is not None
    }
