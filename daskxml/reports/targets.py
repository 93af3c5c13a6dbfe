"""When a run reached a level of a metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daskxml.errors import ConfigError
from daskxml.reports.runs import RunRecord

History = Sequence[Mapping[str, Any]]
NEAR_BEST = 0.95


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The first evaluation at or over a level; where none was, the best one.

    Attributes
    ----------
    is_reached
        Whether the level was reached; else all that follows is of the best evaluation.
    value
        Of the metric.
    train_s
        Seconds of training and merging until then, without evaluation.
    wall_s
        Seconds since the run began training, with evaluation.
    rows, epoch, megabatch
        Of training until then.
    """

    is_reached: bool
    value: float
    train_s: float
    wall_s: float
    rows: int
    epoch: float
    megabatch: int


def elapsed(history: History) -> list[float]:
    """Return the seconds of training and merging until the end of every mega-batch.

    Examples
    --------
    >>> elapsed([{"train_s": 1.0, "merge_s": 0.5}, {"train_s": 2.0, "merge_s": 0.0}])
    [1.5, 3.5]
    """
    spent_s, until = 0.0, []
    for row in history:
        spent_s += row["train_s"] + row["merge_s"]
        until.append(spent_s)
    return until


def reach(history: History, metric: str, level: float) -> Reached | None:
    """Return when a metric reached a level, or its best; None if it was never measured.

    Examples
    --------
    >>> row = {"train_s": 1.0, "merge_s": 0.5, "wall_s": 2.0, "epoch": 0.5}
    >>> history = [{**row, "megabatch": i, "rows": 10 * i, "metrics": {"P@1": 0.2 * i}}
    ...            for i in (1, 2, 3)]
    >>> found = reach(history, "P@1", 0.4)
    >>> found.is_reached, found.megabatch, found.rows, found.train_s
    (True, 2, 20, 3.0)
    >>> reach(history, "P@1", 0.9).is_reached, reach(history, "P@9", 0.9)
    (False, None)
    """
    measured = [
        (row, spent_s)
        for row, spent_s in zip(history, elapsed(history), strict=True)
        if metric in row["metrics"]
    ]
    if not measured:
        return None
    first = next((found for found in measured if found[0]["metrics"][metric] >= level), None)
    row, spent_s = first or max(measured, key=lambda found: found[0]["metrics"][metric])
    return Reached(
        is_reached=first is not None,
        value=row["metrics"][metric],
        train_s=spent_s,
        wall_s=row.get("wall_s", 0.0),
        rows=row["rows"],
        epoch=row.get("epoch", 0.0),
        megabatch=row["megabatch"],
    )


def best(runs: Sequence[RunRecord], metric: str) -> float | None:
    """Return the best value of a metric in any run, or None if none measured it."""
    rows = (row for run in runs for row in run.history)
    return max((r["metrics"][metric] for r in rows if metric in r["metrics"]), default=None)


def check_metric(runs: Sequence[RunRecord], metric: str) -> None:
    """Refuse a metric that no run has measured.

    Raises
    ------
    ConfigError
        Naming those that were.
    """
    names = dict.fromkeys(n for run in runs for row in run.history for n in row["metrics"])
    known = [name for name in names if "@" in name]
    if not known:
        where = str(runs[0].directory) if len(runs) == 1 else f"any of the {len(runs)} runs"
        raise ConfigError(f"no metric was measured in {where}: train with --test FILE")
    if metric not in known:
        raise ConfigError(f"--metric {metric}: no run measured it; there are {', '.join(known)}")
