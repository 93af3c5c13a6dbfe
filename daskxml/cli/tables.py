"""What a run has come to: the table of its metrics, and where things are."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table


def metrics_table(metrics: Mapping[str, float]) -> Table:
    """Lay out ``{"P@1": 0.6, ...}`` with a row for each metric and a column for each k.

    Examples
    --------
    >>> table = metrics_table({"P@1": 0.5, "P@3": 0.25, "PSP@1": 0.125, "rows": 8})
    >>> [column.header for column in table.columns], table.row_count
    (['', '@1', '@3'], 2)
    """
    cells: dict[str, dict[int, float]] = {}
    for name, value in metrics.items():
        metric, at, rank = name.partition("@")
        if at:
            cells.setdefault(metric, {})[int(rank)] = value
    ranks = sorted({rank for row in cells.values() for rank in row})
    table = Table()
    table.add_column("")
    for k in ranks:
        table.add_column(f"@{k}", justify="right")
    for metric, values in cells.items():
        table.add_row(metric, *(f"{values[k]:.4f}" if k in values else "" for k in ranks))
    return table


def print_metrics(metrics: Mapping[str, float]) -> None:
    """Print metrics as a table, with the rows that they are of.

    Examples
    --------
    >>> print_metrics({"P@1": 0.5, "rows": 1024, "rows_without_labels": 3})
    ┏━━━┳━━━━━━━━┓
    ┃   ┃     @1 ┃
    ┡━━━╇━━━━━━━━┩
    │ P │ 0.5000 │
    └───┴────────┘
    1,024 rows, 3 of them without labels
    """
    Console(highlight=False).print(metrics_table(metrics))
    if "rows" in metrics:
        without = int(metrics.get("rows_without_labels", 0))
        print(f"{int(metrics['rows']):,} rows, {without:,} of them without labels")


def print_lines(lines: Mapping[str, str]) -> None:
    """Print names and values, aligned; long values are not broken.

    Examples
    --------
    >>> print_lines({"run": "runs/first", "dashboard": ""})
    run  runs/first
    """
    shown = {name: value for name, value in lines.items() if value}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        print(f"{name:<{width}}  {value}")
