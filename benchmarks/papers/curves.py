"""Numbers read off histories: accuracy by time and by mega-batch, times to a target."""

from __future__ import annotations

import itertools
from typing import Any

History = list[dict[str, Any]]
NEAR_BEST = 0.95


def elapsed_s(history: History) -> list[float]:
    """Return the simulated seconds of training and merging until each merged model was there.

    A merge that overlaps with training ends in the next mega-batch's time.
    """
    spent_s = itertools.accumulate(row["train_s"] + row["merge_s"] for row in history)
    return [
        time_s + row.get("overlapped_s", 0.0) for time_s, row in zip(spent_s, history, strict=True)
    ]


def points(history: History, metric: str = "P@1") -> list[dict[str, float]]:
    """Return what was measured: seconds, mega-batches, rows, epochs and the metric."""
    return [
        {
            "time_s": round(time_s, 4),
            "megabatch": row["megabatch"],
            "rows": row["rows"],
            "epoch": round(row["epoch"], 4),
            metric: round(row["metrics"][metric], 5),
        }
        for time_s, row in zip(elapsed_s(history), history, strict=True)
        if metric in row["metrics"]
    ]


def best(history: History, metric: str = "P@1") -> float:
    """Return the best value of a metric, 0 where none was measured."""
    return max((point[metric] for point in points(history, metric)), default=0.0)


def at_best(history: History) -> dict[str, float]:
    """Return all metrics of the evaluation with the best P@1."""
    measured = [row["metrics"] for row in history if row["metrics"]]
    return max(measured, key=lambda metrics: metrics["P@1"], default={"P@1": 0.0, "P@5": 0.0})


def reaching(history: History, target: float) -> dict[str, float] | None:
    """Return the first of `points` whose P@1 is at least the target, None if there is none."""
    return next((point for point in points(history) if point["P@1"] >= target), None)


def time_to(history: History, target: float) -> float | None:
    """Return the simulated seconds until P@1 was at least the target, None if it never was."""
    point = reaching(history, target)
    return point["time_s"] if point else None


def idle_share(history: History) -> float:
    """Return the share of the workers' time in training that they waited."""
    workers = [worker for row in history for worker in row["workers"].values()]
    busy_s, idle_s = (sum(worker[key] for worker in workers) for key in ("busy_s", "idle_s"))
    return idle_s / max(busy_s + idle_s, 1e-12)
