"""A mega-batch as numbers by name, the same for all loggers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

_PLAIN = {
    "loss": "loss/megabatch",
    "training_loss": "loss/training_rows",
    "rows": "progress/rows",
    "epoch": "progress/epoch",
    "train_s": "seconds/training",
    "merge_s": "seconds/merging",
    "eval_s": "seconds/evaluating",
    "wall_s": "seconds/since_start",
    "merged_bytes": "bytes/merging",
    "moved_bytes": "bytes/training",
}
_OF_WORKERS = ("batch_rows", "updates", "lr", "weight")


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """Return what there is to plot of a row of a history; what is no finite number is left out.

    Parameters
    ----------
    row
        See `daskxml.training.history`.

    Examples
    --------
    >>> worker = {"rows": 60, "busy_s": 1.5, "idle_s": 0.5, "batch_rows": 32}
    >>> found = scalars({"loss": 4.5, "train_s": 2.0, "merge_s": 1.0, "metrics": {"P@1": 0.5},
    ...                  "workers": {"0": worker}})
    >>> found["metrics/P@1"], found["speed/rows_per_s"], found["workers/busy_share/0"]
    (0.5, 20.0, 0.75)
    """
    return {name: float(value) for name, value in _pairs(row) if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _pairs(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, name in _PLAIN.items():
        yield name, row.get(key)
    for metric, value in row.get("metrics", {}).items():
        if "@" in metric:
            yield f"metrics/{metric}", value
    for note, value in row.get("notes", {}).items():
        yield f"notes/{note}", value
    workers = row.get("workers", {})
    spent_s = row.get("train_s", 0.0) + row.get("merge_s", 0.0)
    if spent_s > 0:
        yield "speed/rows_per_s", sum(w.get("rows", 0) for w in workers.values()) / spent_s
    for worker, told in workers.items():
        yield from ((f"workers/{key}/{worker}", told.get(key)) for key in _OF_WORKERS)
        there_s = told.get("busy_s", 0.0) + told.get("idle_s", 0.0)
        if there_s > 0:
            yield f"workers/busy_share/{worker}", told["busy_s"] / there_s
