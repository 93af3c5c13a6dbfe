"""What a cell has measured: figures out of a run's history, or out of a script's rows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from daskxml.bench.execution import Ending
from daskxml.bench.parts import Script
from daskxml.bench.plan import RUN, Cell
from daskxml.errors import ModelError
from daskxml.training.history import read_history

Figures = dict[str, float]


def cell_figures(cell: Cell, folder: Path, ending: Ending) -> dict[str, Figures]:
    """Return the figures of a cell that is done, by the row of the table that they belong to.

    A run has one row, whose name is empty; a script has those of its JSON file.

    Raises
    ------
    ModelError
        If what the cell should have written is not there, or not as it should be.
    """
    if cell.script is not None:
        return script_figures(folder / f"{cell.script.result}.json", cell.script)
    history = read_history(folder / RUN / "history.jsonl")
    found = run_figures(history, *cell.target)
    is_real = cell.names[-1] == "cluster"
    taken = {"in all s": ending.seconds} if is_real else {}  # else it is the simulator's own speed
    if ending.peak_bytes:
        taken["memory MiB"] = ending.peak_bytes / 2**20
    return {"": found | taken}


def run_figures(history: Sequence[Mapping[str, Any]], metric: str, target: float) -> Figures:
    """Return a run's figures.

    Parameters
    ----------
    history
        Rows of ``history.jsonl``.
    metric, target
        The seconds until the metric was at least the target are among the figures unless it is 0 or
        was not reached.

    Returns
    -------
    The metrics of the last evaluation; the last ``training loss`` and the ``lowest loss``, where
    they were found; ``train s``, training and merging without evaluation; ``rows/s`` in that time;
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
    if target and (reached_s := _reached_s(history, spent_s, metric, target)) is not None:
        found[f"s to {metric} {target:g}"] = reached_s
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


def _reached_s(
    history: Sequence[Mapping[str, Any]], spent_s: Sequence[float], metric: str, target: float
) -> float | None:
    for number, row in enumerate(history, 1):
        if row["metrics"].get(metric, -1.0) >= target:
            return sum(spent_s[:number])
    return None


def script_figures(path: Path, script: Script) -> dict[str, Figures]:
    """Return the figures of a script's rows, by what names each row.

    Raises
    ------
    ModelError
        If the file is not there, or has not the columns that the suite names.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        found = {}
        for row in rows:
            name = ", ".join(str(row[column]) for column in script.rows)
            known = [column for column in script.columns if row.get(column) is not None]
            found[name] = {column: float(row[column]) for column in known}
    except OSError as error:
        raise ModelError(
            f"{path}: {script.file} has written no result ({error.strerror})"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: not the rows that the suite says: {error!r}") from error
    return found
