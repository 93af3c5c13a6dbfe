"""What may stand behind an option of the command line: texts to values."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def number(text: str) -> float:
    """A number of at least 0."""
    value = _float(text)
    if not 0.0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def level(text: str) -> float:
    """A level of a metric, all of which lie between 0 and 1."""
    value = _float(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return value


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def speeds(text: str) -> dict[str, float]:
    """Return speeds by name; who has none is called by its place."""
    parts = (part.rpartition("=") for part in text.split(","))
    named = [(name.strip() or str(i), number(s.strip())) for i, (name, _, s) in enumerate(parts)]
    if len(dict(named)) < len(named):
        raise argparse.ArgumentTypeError(f"{text!r} has a name twice")
    return dict(named)


def pool(text: str) -> tuple[str, int]:
    """A worker's name and threads: ``cpu=4``."""
    name, _, threads = text.rpartition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not a worker's name and threads, as cpu=4")
    return name.strip(), positive(threads.strip())


def three_numbers(text: str) -> tuple[float, ...]:
    """What a batch costs: fixed, for each row, for each non-zero."""
    numbers = tuple(number(part.strip()) for part in text.split(","))
    if len(numbers) != 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not three numbers: fixed, row, non-zero")
    return numbers


def ranks(text: str) -> tuple[int, ...]:
    """Ranks, ascending: ``1,3,5``."""
    return tuple(sorted({positive(part.strip()) for part in text.split(",")}))
