"""Runs that are made up: rows of a history, and records that have heard of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from daskxml.config import load_run_config
from daskxml.dashboard.record import Record
from daskxml.runtime.activity import Activity
from daskxml.runtime.journal import Journal

WORKERS = ("0", "1")


def row(number: int, workers: Iterable[str] = WORKERS, **other: Any) -> dict[str, Any]:
    """A mega-batch of two seconds; worker i does 100 rows of batches of 10 + i."""
    did = {
        "updates": 10, "rows": 100, "nonzeros": 1000, "lr": 0.5, "weight": 0.5, "pool_threads": 0,
        "busy_s": 0.9, "idle_s": 0.1, "leases": [],
    }  # fmt: skip
    named = {name: did | {"batch_rows": 10 + place} for place, name in enumerate(workers)}
    return {
        "megabatch": number, "rows": 200 * number, "epoch": number / 10, "wall_s": 2.0 * number,
        "train_s": 1.0, "merge_s": 0.5, "eval_s": 0.5, "loss": 10.0 / number,
        "metrics": {"P@1": number / 100, "P@3": number / 200, "rows": 200}, "workers": named,
        "perturbed": number % 2 == 0, "merged_bytes": 1000, "moved_bytes": 50, "notes": {},
        "events": [],
    } | other  # fmt: skip


def record_of(tell: Callable[[Journal], None], **sections: Any) -> Record:
    """Return a record that has read what was told to its journal."""

    async def work() -> Record:
        journal = Journal()
        config = load_run_config({"training": {"epochs": 10}} | sections)
        record = Record("ab12cd34", config, journal, Activity())
        tell(journal)
        record.update()
        return record

    return asyncio.run(work())


def started(journal: Journal, workers: Iterable[str] = WORKERS) -> None:
    """Tell that training begins."""
    journal.event(
        "started", run="ab12cd34", strategy="adaptive-sgd", rows=2000, test_rows=200, features=300,
        labels=60, workers=[*workers], pools={},
    )  # fmt: skip


def trained(journal: Journal, megabatches: int, workers: Iterable[str] = WORKERS) -> None:
    """Tell of some mega-batches, from the first."""
    for number in range(1, megabatches + 1):
        journal.event("megabatch", row=row(number, workers))
