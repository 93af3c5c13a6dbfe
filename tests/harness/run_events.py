"""Made-up runs: rows of a history, event logs, and series that have read them."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from daskxml.cluster.event_log import EventLog
from daskxml.cluster.timeline import Timeline
from daskxml.config import load_run_config
from daskxml.observe.dashboard.plugin import RunSeries

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


def series_of(add_events: Callable[[EventLog], None], **sections: Any) -> RunSeries:
    """Return the series of a run whose events ``add_events`` adds to its log."""

    async def work() -> RunSeries:
        event_log = EventLog()
        config = load_run_config({"training": {"epochs": 10}} | sections)
        series = RunSeries("ab12cd34", config, event_log, Timeline())
        add_events(event_log)
        series.update()
        return series

    return asyncio.run(work())


def started(event_log: EventLog, workers: Iterable[str] = WORKERS, **more: Any) -> None:
    """Add the event that training begins; ``more`` goes into it."""
    event_log.event(
        "started", run="ab12cd34", strategy="adaptive-sgd", rows=2000, test_rows=200, features=300,
        labels=60, parameters=5000, workers=[*workers], pools={}, **more,
    )  # fmt: skip


def trained(event_log: EventLog, megabatches: int, workers: Iterable[str] = WORKERS) -> None:
    """Add the events of some mega-batches, from the first."""
    for number in range(1, megabatches + 1):
        event_log.event("megabatch", row=row(number, workers))
