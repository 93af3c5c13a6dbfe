"""The figures that cells measure, collected into rows whose repeats are summarized.

Cells that differ only by their repeat share a row of the table.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daskxml.cli.bench.cells import RUN, Cell
from daskxml.cli.bench.execution import DONE, Execution
from daskxml.cli.bench.suite import BenchmarkScript
from daskxml.core.errors import ModelError
from daskxml.core.text import parse_json
from daskxml.records.run_dir import read_history

Figures = dict[str, float]
RowNames = tuple[str, ...]  # run, data, workers, executor; or a script and one of its rows
Samples = dict[RowNames, dict[str, list[float]]]  # the repeats of each quantity of each row


def cell_figures(cell: Cell, folder: Path, execution: Execution) -> dict[str, Figures]:
    """Return the figures of a cell that is done, by the row of the table that they belong to.

    A run has one row, named ""; a script has those of its JSON file.

    Raises
    ------
    ModelError
        If the output of the cell is missing or malformed.
    """
    if cell.script is not None:
        return script_figures(folder / f"{cell.script.result}.json", cell.script)
    history = read_history(folder / RUN / "history.jsonl")
    found = run_figures(history, *cell.target)
    if cell.names[-1] == "cluster":  # otherwise it is the speed of the simulator itself
        found["in all s"] = execution.seconds
    if execution.peak_bytes:
        found["memory MiB"] = execution.peak_bytes / 2**20
    return {"": found}


def run_figures(history: Sequence[Mapping[str, Any]], metric: str, target: float) -> Figures:
    """Return a run's figures.

    Parameters
    ----------
    history
        Rows of ``history.jsonl``.
    metric, target
        If the target is not 0 and was reached, the time until then is among the figures.

    Returns
    -------
    The metrics of the last evaluation; the last ``training loss`` and the ``lowest loss``, if
    recorded; ``train s``, training and merging without evaluation; ``rows/s`` in that time;
    ``idle %`` of the workers' training time.

    Examples
    --------
    >>> workers = {"0": {"busy_s": 3.0, "idle_s": 1.0}}
    >>> row = {"rows": 40, "train_s": 4.0, "merge_s": 1.0, "metrics": {"P@1": 0.5}}
    >>> run_figures([{**row, "workers": workers}], "P@1", 0.4)
    {'P@1': 0.5, 's to P@1 0.4': 5.0, 'train s': 5.0, 'rows/s': 8.0, 'idle %': 25.0}
    """
    spent_s = [row["train_s"] + row["merge_s"] for row in history]
    found = _quality(history)
    reached = (n for n, row in enumerate(history) if row["metrics"].get(metric, -1.0) >= target)
    if target and (first := next(reached, None)) is not None:
        found[f"s to {metric} {target:g}"] = sum(spent_s[: first + 1])
    found["train s"] = sum(spent_s)
    if sum(spent_s) > 0:
        found["rows/s"] = history[-1]["rows"] / sum(spent_s)
    workers = [worker for row in history for worker in row["workers"].values()]
    idle_s = sum(worker["idle_s"] for worker in workers)
    if total_s := idle_s + sum(worker["busy_s"] for worker in workers):
        found["idle %"] = 100.0 * idle_s / total_s
    return found


def _quality(history: Sequence[Mapping[str, Any]]) -> Figures:
    measured = [row["metrics"] for row in history if row["metrics"]]
    last = measured[-1] if measured else {}
    found = {name: float(value) for name, value in last.items() if "@" in name}
    losses = [row["training_loss"] for row in history if "training_loss" in row]
    if losses := [loss for loss in losses if loss is not None and math.isfinite(loss)]:
        found |= {"training loss": float(losses[-1]), "lowest loss": float(min(losses))}
    return found


def script_figures(path: Path, script: BenchmarkScript) -> dict[str, Figures]:
    """Return the figures of a script's rows by the name of the row.

    Raises
    ------
    ModelError
        If the file is missing, or lacks the columns that the suite names.
    """
    try:
        rows = parse_json(path.read_text(encoding="utf-8"))["rows"]
        found = {}
        for row in rows:
            name = ", ".join(str(row[column]) for column in script.rows)
            present = [column for column in script.columns if row.get(column) is not None]
            found[name] = {column: float(row[column]) for column in present}
    except OSError as error:
        raise ModelError(
            f"{path}: {script.file} has written no result ({error.strerror})"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: not the rows that the suite says: {error!r}") from error
    return found


def collect(cells: Iterable[Mapping[str, Any]]) -> Samples:
    """Return the values of all figures of the cells that are done, row by row.

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
    found: Samples = {}
    for cell in cells:
        found.setdefault(tuple(cell["names"]), {})  # rows are in the order of the first cells
        for name, figures in cell["figures"].items() if cell["status"] == DONE else ():
            row = found.setdefault((*cell["names"], *([name] if name else [])), {})
            for quantity, value in figures.items():
                row.setdefault(quantity, []).append(value)
    return {names: row for names, row in found.items() if row}


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The median, the range and the number of some values."""

    median: float
    least: float
    greatest: float
    count: int


def summarize(values: Sequence[float]) -> Summary:
    """Return the summary of at least one value.

    Examples
    --------
    >>> summarize([3.0, 1.0, 4.0])
    Summary(median=3.0, least=1.0, greatest=4.0, count=3)
    """
    return Summary(
        median=statistics.median(values), least=min(values), greatest=max(values), count=len(values)
    )
