"""Where a record and its rules disagree: two values, what they are of, and where that is."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from daskxml.session.trace import plain

_TOLERANCE = 1e-9  # of floats, relative: another machine's square root may end differently


@dataclass(frozen=True)
class Disagreement:
    """Where a record does not follow its rules.

    Attributes
    ----------
    megabatch, worker
        Of the row; the worker is empty where it is about all.
    what
        What is wrong.
    written, expected
        What the record has, and what follows from the rest of it.

    Examples
    --------
    >>> print(Disagreement(3, "0", "lr", 0.5, 0.25))
    mega-batch 3, worker 0: lr is 0.5 in the record, by the rules 0.25
    """

    megabatch: int
    worker: str
    what: str
    written: Any
    expected: Any

    def __str__(self) -> str:
        who = f", worker {self.worker}" if self.worker else ""
        texts = shown(self.written), shown(self.expected)
        return (
            f"mega-batch {self.megabatch}{who}: {self.what} is {texts[0]} in the record, by the "
            f"rules {texts[1]}"
        )


def shown(value: Any) -> str:
    """Return a value in at most about 100 characters, without a line break."""
    text = " ".join(str(plain(value)).split())
    return text if len(text) <= 100 else text[:97] + "..."


def differences(what: str, written: Any, expected: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield where two values differ: the place, and both values there.

    Examples
    --------
    >>> list(differences("weight", {"a": 1.0, "b": 0.5}, {"a": 1.0, "b": 0.25}))
    [('weight of b', 0.5, 0.25)]
    """
    if is_dataclass(expected) and type(written) is type(expected):
        for one in fields(expected):
            pair = getattr(written, one.name), getattr(expected, one.name)
            yield from differences(f"{what}.{one.name}", *pair)
    elif isinstance(expected, Mapping) and isinstance(written, Mapping):
        for key in [*expected, *(key for key in written if key not in expected)]:
            pair = written.get(key, "absent"), expected.get(key, "absent")
            yield from differences(f"{what} of {key}", *pair)
    elif not _are_equal(written, expected):
        yield what, written, expected


def _are_equal(written: Any, expected: Any) -> bool:
    if isinstance(expected, list | tuple) and isinstance(written, list | tuple):
        pairs = zip(written, expected, strict=False)
        return len(written) == len(expected) and all(_are_equal(*pair) for pair in pairs)
    numbers = (int, float)
    if isinstance(written, numbers) and isinstance(expected, numbers):
        with contextlib.suppress(OverflowError):  # an integer that is beyond all floats
            return math.isclose(written, expected, rel_tol=_TOLERANCE, abs_tol=1e-12)
    return type(written) is type(expected) and bool(written == expected)


class Findings:
    """The disagreements of a run, and where the audit is."""

    def __init__(self) -> None:
        self.megabatch = 0
        self.disagreements: list[Disagreement] = []

    def add(self, worker: str, what: str, written: Any, expected: Any) -> None:
        """Add a disagreement in the present mega-batch."""
        found = Disagreement(self.megabatch, worker, what, plain(written), plain(expected))
        self.disagreements.append(found)

    def compare(self, worker: str, what: str, written: Any, expected: Any) -> None:
        """Add where two values differ."""
        for difference in differences(what, written, expected):
            self.add(worker, *difference)
