"""Cells that differ by their repeat alone become one line: median, range and count."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from daskxml.bench.execution import DONE

Names = tuple[str, ...]  # run, data, workers, executor; or a script and its row
Values = dict[Names, dict[str, list[float]]]


@dataclass(frozen=True, kw_only=True)
class Center:
    """The median of some values, the least and the greatest, and how many there are."""

    median: float
    least: float
    greatest: float
    count: int


def center(values: Iterable[float]) -> Center:
    """Return the median and the range of at least one value.

    Examples
    --------
    >>> center([3.0, 1.0, 4.0])
    Center(median=3.0, least=1.0, greatest=4.0, count=3)
    """
    ordered = sorted(values)
    return Center(
        median=statistics.median(ordered),
        least=ordered[0],
        greatest=ordered[-1],
        count=len(ordered),
    )


def collect(cells: Iterable[Mapping[str, Any]]) -> Values:
    """Return the values of every figure of the cells that are done, line by line.

    Parameters
    ----------
    cells
        As in ``results.json``.

    Examples
    --------
    >>> cell = {"status": "done", "names": ["a", "demo", "2", "cluster"]}
    >>> cells = [{**cell, "figures": {"": {"P@1": value}}} for value in (0.5, 0.25)]
    >>> collect(cells)
    {('a', 'demo', '2', 'cluster'): {'P@1': [0.5, 0.25]}}
    """
    found: Values = {}
    for cell in cells:
        found.setdefault(tuple(cell["names"]), {})  # lines are in the order of the first cells
        for row, figures in cell["figures"].items() if cell["status"] == DONE else ():
            line = found.setdefault((*cell["names"], *([row] if row else [])), {})
            for quantity, value in figures.items():
                line.setdefault(quantity, []).append(value)
    return {names: line for names, line in found.items() if line}


def quantities(values: Values) -> list[str]:
    """Return the names of all figures, in the order in which they come first.

    Examples
    --------
    >>> quantities({("a",): {"P@1": [0.5]}, ("b",): {"P@1": [0.5], "rows/s": [9.0]}})
    ['P@1', 'rows/s']
    """
    return list(dict.fromkeys(name for line in values.values() for name in line))
