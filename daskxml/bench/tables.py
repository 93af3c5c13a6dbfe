"""The table of a bench, as Markdown for a reader and as CSV for a program."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from daskxml.bench.environment import describe
from daskxml.bench.execution import DONE
from daskxml.bench.noise import Change
from daskxml.bench.summary import Center, Names, Values, center, collect, quantities

RUN_COLUMNS = ("run", "data", "workers", "executor")
SHOWN = ("P@1", "P@3", "P@5", "PSP@5", "training loss")  # of the metrics; the CSV file has all
_WHOLE_FROM = 1000  # numbers are shown whole from here on


def markdown(found: Mapping[str, Any], changes: Sequence[Change], notes: Sequence[str]) -> str:
    """Return the whole table with the environment, what was not done, and what changed.

    Parameters
    ----------
    found
        As in ``results.json``.
    changes
        Against an earlier bench.
    notes
        What is to be said of that comparison; empty where there is none.
    """
    values = collect(found["cells"])
    heading = ": ".join(part for part in (found["suite"], found["title"]) if part)
    parts = [f"# {heading}", describe(found["environment"])]
    runs = {names: line for names, line in values.items() if len(names) == len(RUN_COLUMNS)}
    if runs:
        parts.append(_table(RUN_COLUMNS, runs))
    for script in dict.fromkeys(names[0] for names in values if names not in runs):
        rows = {names[1:]: line for names, line in values.items() if names[0] == script}
        parts += [f"## {script}", _table(("",), rows)]
    parts.append("Medians, with the range over seeds or calls where there are several.")
    undone = [cell for cell in found["cells"] if cell["status"] != DONE]
    if undone or found["open"]:
        parts.append(_undone(undone, found["open"]))
    if notes:
        parts += ["## Against an earlier bench", *notes, *_changed(changes)]
    return "\n\n".join(parts) + "\n"


def _table(columns: Sequence[str], lines: Values) -> str:
    names = [name for name in quantities(lines) if "@" not in name or name in SHOWN]
    names += [name for name in quantities(lines) if name.startswith("s to ")]
    header = [*columns, *names, "cells"]
    rows = [[*line_names, *_cells(line, names)] for line_names, line in lines.items()]
    return "\n".join(_aligned([header, *rows], len(columns)))


def _cells(line: Mapping[str, Sequence[float]], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        yield spell(center(line[name])) if name in line else "-"
    yield str(max(len(values) for values in line.values()))


def _aligned(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Return the lines of a Markdown table, the first ``left`` columns to the left."""
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    rule = ["-" * w if n < left else "-" * (w - 1) + ":" for n, w in enumerate(widths)]
    return [line(rows[0]), line(rule), *map(line, rows[1:])]


def spell(value: Center) -> str:
    """Return a median and its range.

    Examples
    --------
    >>> spell(center([0.589, 0.586, 0.592])), spell(center([12345.6]))
    ('0.589 (0.586 to 0.592)', '12,346')
    """
    if value.count == 1:
        return number(value.median)
    return f"{number(value.median)} ({number(value.least)} to {number(value.greatest)})"


def number(value: float) -> str:
    """Return a number of four digits, without an exponent where it is large.

    Examples
    --------
    >>> number(0.58912), number(1234.5), number(0.0)
    ('0.5891', '1,234', '0')
    """
    return f"{value:,.0f}" if abs(value) >= _WHOLE_FROM else f"{value:.4g}"


def _undone(cells: Iterable[Mapping[str, Any]], open_cells: int) -> str:
    lines = [f"- {cell['title']}: {cell['status']}: {cell['reason']}" for cell in cells]
    if open_cells:
        lines.append(f"- {open_cells} cells have not been begun")
    return "\n".join(["## Not done", "", *lines])


def _changed(changes: Sequence[Change]) -> list[str]:
    told = [change for change in changes if change.verdict != "same"]
    if not told:
        return []
    order = sorted(told, key=lambda change: change.verdict != "worse")
    header = ["what", "before", "now", "difference", "beyond chance from", "verdict"]
    return ["\n".join(_aligned([header, *(_change_row(change) for change in order)], 1))]


def _change_row(change: Change) -> list[str]:
    return [
        f"{', '.join(name for name in change.names if name)}: {change.quantity}",
        spell(change.before),
        spell(change.now),
        _percent(change, change.difference, "+"),
        _percent(change, change.threshold, ""),
        change.verdict,
    ]


def _percent(change: Change, value: float, sign: str) -> str:
    """Return a share in per cent of the value, or a difference of metrics as it is."""
    return f"{value:{sign}.1%}" if change.is_ratio else f"{value:{sign}.4f}"


def csv_text(found: Mapping[str, Any], changes: Sequence[Change]) -> str:
    """Return a line for every quantity of every line of the table.

    Columns: ``run, data, workers, executor`` (or the script and its row in the first two),
    ``quantity``, ``median``, ``least``, ``greatest``, ``cells``, and of the comparison ``before``
    (a median), ``difference``, ``threshold`` and ``verdict``.
    """
    told = {(change.names, change.quantity): change for change in changes}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    middle = ("quantity", "median", "least", "greatest", "cells")
    writer.writerow([*RUN_COLUMNS, *middle, "before", "difference", "threshold", "verdict"])
    for names, line in collect(found["cells"]).items():
        for quantity, values in line.items():
            writer.writerow(_csv_row(names, quantity, center(values), told.get((names, quantity))))
    return text.getvalue()


def _csv_row(names: Names, quantity: str, now: Center, change: Change | None) -> list[Any]:
    padded = [*names, *[""] * (len(RUN_COLUMNS) - len(names))]
    row = [*padded, quantity, now.median, now.least, now.greatest, now.count]
    if change is None:
        return [*row, "", "", "", ""]
    return [*row, change.before.median, change.difference, change.threshold, change.verdict]
