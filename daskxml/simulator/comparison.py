"""Runs side by side: what each reached, when, and how busy its workers were."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

NEAR_BEST = 0.95
History = Sequence[Mapping[str, Any]]


def compare(histories: Mapping[str, History], metric: str = "P@1") -> list[dict[str, Any]]:
    """Return a row for every run.

    Parameters
    ----------
    histories
        By the name of the run.
    metric
        What is compared.

    Returns
    -------
    list of dict
        ``run``; the ``best`` metric; ``near_best_s`` and ``near_best_rows``, when 95 % of it was
        reached; ``near_top_s``, when 95 % of the best of all runs was, None if never;
        ``megabatches``; ``train_s``, the time of the whole run; ``idle_share`` of the workers'
        time in training. Seconds are of training and merging, without evaluation.

    Examples
    --------
    >>> workers = {"0": {"busy_s": 1.5, "idle_s": 0.0}, "1": {"busy_s": 0.5, "idle_s": 2.0}}
    >>> row = {"rows": 10, "train_s": 2.5, "merge_s": 0.5, "metrics": {"P@1": 0.5}}
    >>> compare({"first": [{**row, "workers": workers}]})[0]["idle_share"]
    0.5
    """
    best = {name: _best(history, metric) for name, history in histories.items()}
    top = max((value for value in best.values() if value is not None), default=None)
    table = []
    for name, history in histories.items():
        near_s, near_rows = _reached(history, metric, best[name])
        table.append(
            {
                "run": name,
                "best": best[name],
                "near_best_s": near_s,
                "near_best_rows": near_rows,
                "near_top_s": _reached(history, metric, top)[0],
                "megabatches": len(history),
                "train_s": sum(row["train_s"] + row["merge_s"] for row in history),
                "idle_share": _idle_share(history),
            }
        )
    return table


def _best(history: History, metric: str) -> float | None:
    measured = [row["metrics"][metric] for row in history if metric in row["metrics"]]
    return max(measured, default=None)


def _reached(history: History, metric: str, best: float | None) -> tuple[float | None, int | None]:
    """Return the seconds and the rows at which the metric came near ``best``."""
    spent_s = 0.0
    for row in history:
        spent_s += row["train_s"] + row["merge_s"]
        if best is not None and row["metrics"].get(metric, -1.0) >= NEAR_BEST * best:
            return spent_s + row.get("overlapped_s", 0.0), row["rows"]  # when the model was there
    return None, None


def _idle_share(history: History) -> float:
    workers = [worker for row in history for worker in row["workers"].values()]
    busy_s = sum(worker["busy_s"] for worker in workers)
    idle_s = sum(worker["idle_s"] for worker in workers)
    return float(idle_s / (busy_s + idle_s)) if busy_s + idle_s else 0.0


def write_table(path: Path, table: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows of `compare` as CSV; what is unknown is an empty field."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(table[0]))
        writer.writeheader()
        writer.writerows(table)
