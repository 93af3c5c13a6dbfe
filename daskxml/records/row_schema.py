"""What a row of a history must look like: the kinds of its values, checked where it is read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from daskxml.session.trace import LARGEST_INTEGER

LARGEST_FLOAT = 1e12  # far above any time, rate or metric

_ROW = {
    "megabatch": int, "rows": int, "epoch": float, "train_s": float, "merge_s": float,
    "wall_s": float, "eval_s": float, "merged_bytes": int, "moved_bytes": int, "workers": dict,
    "metrics": dict, "perturbed": bool, "events": list,
}  # fmt: skip
_WORKER = {
    "updates": int, "rows": int, "batch_rows": int, "lr": float, "weight": float, "busy_s": float,
    "idle_s": float, "leases": list,
}  # fmt: skip
_MOST_AHEAD = 100  # epochs: rows of late workers are not in a row's count yet


def check_row(row: Any, *, complete: bool = True) -> None:
    """Refuse what is no row of a history; see `daskxml.session.history`.

    Parameters
    ----------
    complete
        Refuse a row that lacks a key as well; older versions did not write them all.

    Raises
    ------
    ValueError
        Naming the key and its value.

    Examples
    --------
    >>> check_row({"megabatch": "first"}, complete=False)
    Traceback (most recent call last):
    ValueError: megabatch = 'first'
    """
    check_kinds(row, _ROW, complete)
    if row.get("megabatch", 1) < 1:
        raise ValueError(f"megabatch = {row['megabatch']}")
    check_kinds(row, {"loss": float, "training_loss": float}, complete=False)  # trees have none
    check_kinds(row.get("metrics", {}), dict.fromkeys(row.get("metrics", {}), float), complete)
    for event in row.get("events", []):
        check_kinds(event, {"kind": str}, complete)
    for name, worker in row.get("workers", {}).items():
        try:
            check_kinds(worker, _WORKER, complete)
            _check_leases(worker.get("leases", []), row.get("epoch", 0.0))
        except ValueError as error:
            raise ValueError(f"worker {name}: {error}") from None


def check_kinds(values: Any, kinds: Mapping[str, Any], complete: bool = True) -> None:
    """Refuse what is no JSON object with values of these kinds; see `check_row`.

    Raises
    ------
    ValueError
        Naming the key and its value.
    """
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    for key, kind in kinds.items():
        if key in values:
            if not _is_kind(values[key], kind):
                raise ValueError(f"{key} = {values[key]!r:.60}")
        elif complete:
            raise ValueError(f"{key!r} is missing")


def _is_kind(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if isinstance(value, int) and kind in (int, float):
        return -LARGEST_INTEGER <= value <= LARGEST_INTEGER
    if isinstance(value, float):
        return kind is float and math.isfinite(value) and abs(value) <= LARGEST_FLOAT
    return isinstance(value, kind)


def _check_leases(leases: Sequence[Any], epoch: float) -> None:
    for lease in leases:
        spans: list[Any] = lease if isinstance(lease, list) else [lease]
        for span in spans:
            is_span = isinstance(span, list) and [type(part) for part in span] == [int] * 4
            is_span = is_span and all(0 <= part <= LARGEST_INTEGER for part in span)
            if not (is_span and span[0] <= epoch + _MOST_AHEAD):
                raise ValueError(f"leases have {span!r:.60}")
