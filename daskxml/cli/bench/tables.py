"""The table of a bench, as Markdown for a reader and as CSV for a program."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from daskxml.cli.bench.execution import DONE
from daskxml.cli.bench.figures import RowNames, Samples, Summary, collect, summarize
from daskxml.cli.bench.regression import Comparison

RUN_COLUMNS = ("run", "data", "workers", "executor")
SHOWN = ("P@1", "P@3", "P@5", "PSP@5")  # of the metrics; the CSV file has all


def markdown(
    found: Mapping[str, Any], comparisons: Sequence[Comparison], notes: Sequence[str]
) -> str:
    """Return the tables of all rows, the environment, the cells without a result, and the changes.

    Parameters
    ----------
    found
        As in ``results.json``.
    comparisons
        With an earlier bench.
    notes
        Sentences about that comparison; empty if there is none.
    """
    samples = collect(found["cells"])
    heading = ": ".join(part for part in (found["suite"], found["title"]) if part)
    parts = [f"# {heading}", describe_environment(found["environment"])]
    runs = {names: row for names, row in samples.items() if len(names) == len(RUN_COLUMNS)}
    if runs:
        parts.append(_table(RUN_COLUMNS, runs))
    for script in dict.fromkeys(names[0] for names in samples if names not in runs):
        rows = {names[1:]: row for names, row in samples.items() if names[0] == script}
        parts += [f"## {script}", _table(("",), rows)]
    parts.append("Medians, with the range over seeds or calls where there are several.")
    undone = [cell for cell in found["cells"] if cell["status"] != DONE]
    if undone or found["open"]:
        parts.append(_undone(undone, found["open"]))
    if notes:
        parts += ["## Against an earlier bench", *notes, *_changed(comparisons)]
    return "\n\n".join(parts) + "\n"


def describe_environment(found: Mapping[str, Any]) -> str:
    """Return an environment as one line.

    Examples
    --------
    >>> describe_environment({
    ...     "cpu": "Z80", "cores": 1, "memory_gib": 0.1, "os": "CP/M", "python": "3.11.2",
    ...     "daskxml": "0.1.0", "packages": {"numpy": "2.0"}, "peers": {}, "commit": None,
    ...     "code": "12ab", "date": "1976-07-01T00:00:00+00:00"})
    'Z80, 1 core, 0.1 GiB; CP/M; Python 3.11.2; daskxml 0.1.0 (code 12ab), numpy 2.0; 1976-07-01'
    """
    cores = f"{found['cores']} core{'s' * (found['cores'] != 1)}"
    source = f"commit {found['commit']}" if found["commit"] else f"code {found['code']}"
    versions = {**found["packages"], **found["peers"]}
    software = [f"{name} {version}" for name, version in versions.items()]
    parts = [
        f"{found['cpu']}, {cores}, {found['memory_gib']} GiB",
        found["os"],
        f"Python {found['python']}",
        ", ".join([f"daskxml {found['daskxml']} ({source})", *software]),
        found["date"][:10],
    ]
    return "; ".join(parts)


def _table(columns: Sequence[str], samples: Samples) -> str:
    found = list(dict.fromkeys(name for row in samples.values() for name in row))
    shown = [name for name in found if "@" not in name or name in SHOWN]
    shown += [name for name in found if name.startswith("s to ")]
    lines = [[*names, *_cells(row, shown)] for names, row in samples.items()]
    return "\n".join(_aligned([[*columns, *shown, "cells"], *lines], len(columns)))


def _cells(row: Mapping[str, Sequence[float]], shown: Sequence[str]) -> Iterator[str]:
    for name in shown:
        yield spell(summarize(row[name])) if name in row else "-"
    yield str(max(len(values) for values in row.values()))


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


def spell(value: Summary) -> str:
    """Return a median and its range.

    Examples
    --------
    >>> spell(summarize([0.589, 0.586, 0.592])), spell(summarize([12345.6]))
    ('0.589 (0.586 to 0.592)', '12,346')
    """
    if value.count == 1:
        return number(value.median)
    return f"{number(value.median)} ({number(value.least)} to {number(value.greatest)})"


def number(value: float) -> str:
    """Return a number with four digits, a large one in whole units.

    Examples
    --------
    >>> number(0.58912), number(1234.5), number(0.0)
    ('0.5891', '1,234', '0')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _undone(cells: Iterable[Mapping[str, Any]], open_cells: int) -> str:
    lines = [f"- {cell['title']}: {cell['status']}: {cell['reason']}" for cell in cells]
    if open_cells:
        lines.append(f"- {open_cells} cells have not been begun")
    return "\n".join(["## Not done", "", *lines])


def _changed(comparisons: Sequence[Comparison]) -> list[str]:
    changes = [comparison for comparison in comparisons if comparison.verdict != "same"]
    if not changes:
        return []
    changes.sort(key=lambda change: change.verdict != "worse")
    header = ["what", "before", "now", "difference", "beyond chance from", "verdict"]
    return ["\n".join(_aligned([header, *(_change_row(change) for change in changes)], 1))]


def _change_row(change: Comparison) -> list[str]:
    return [
        f"{', '.join(name for name in change.names if name)}: {change.quantity}",
        spell(change.before),
        spell(change.now),
        _percent(change, change.difference, "+"),
        _percent(change, change.threshold, ""),
        change.verdict,
    ]


def _percent(change: Comparison, value: float, sign: str) -> str:
    """Return a relative difference in per cent, a plain one as it is."""
    return f"{value:{sign}.1%}" if change.is_ratio else f"{value:{sign}.4f}"


def csv_text(found: Mapping[str, Any], comparisons: Sequence[Comparison]) -> str:
    """Return a line for every quantity of every row of the table.

    Columns: ``run, data, workers, executor`` (for a script, its name and row in the first two),
    ``quantity``, ``median``, ``least``, ``greatest``, ``cells``, and of the comparison ``before``
    (a median), ``difference``, ``threshold`` and ``verdict``.
    """
    changed = {(change.names, change.quantity): change for change in comparisons}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    middle = ("quantity", "median", "least", "greatest", "cells")
    writer.writerow([*RUN_COLUMNS, *middle, "before", "difference", "threshold", "verdict"])
    for names, row in collect(found["cells"]).items():
        for quantity, values in row.items():
            change = changed.get((names, quantity))
            writer.writerow(_csv_row(names, quantity, summarize(values), change))
    return text.getvalue()


def _csv_row(names: RowNames, quantity: str, now: Summary, change: Comparison | None) -> list[Any]:
    padded = [*names, *[""] * (len(RUN_COLUMNS) - len(names))]
    row = [*padded, quantity, now.median, now.least, now.greatest, now.count]
    if change is None:
        return [*row, "", "", "", ""]
    return [*row, change.before.median, change.difference, change.threshold, change.verdict]
