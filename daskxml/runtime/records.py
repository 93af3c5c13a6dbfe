"""What a scheduler tells of its runs when it is asked for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from daskxml.runtime.journal import Journal, revive

if TYPE_CHECKING:
    from daskxml.runtime.driver import Driver


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """A run of a scheduler, as it stood when it was asked for.

    Attributes
    ----------
    run
        What `daskxml.attach` and `daskxml.stop` take.
    name, strategy
        Of the run file.
    state
        What it does; of a run that is over, what ended it, or the error.
    is_over, is_detached
        Whether it has ended; whether it goes on without a client.
    begun_at_s
        When it was started, in seconds since 1970 by the scheduler's clock.
    megabatches, rows, epoch
        What is merged so far.
    metrics
        The last that were measured; empty before.
    out
        Its directory, as the workers see it; "" if it has none.
    """

    run: str
    name: str
    strategy: str
    state: str
    is_over: bool
    is_detached: bool
    begun_at_s: float
    megabatches: int = 0
    rows: int = 0
    epoch: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    out: str = ""


def record_of(run: str, driver: Driver) -> RunRecord:
    """Return what there is to tell of a run."""
    config, journal = driver.config, driver.journal
    row = last_row(journal)
    return RunRecord(
        run=run,
        name=config.run.name,
        strategy=config.strategy_name,
        state=state_of(journal),
        is_over=journal.is_over,
        is_detached=driver.detached is not None,
        begun_at_s=journal.begun_at_s,
        megabatches=row.get("megabatch", 0),
        rows=row.get("rows", 0),
        epoch=row.get("epoch", 0.0),
        metrics=_last_metrics(journal),
        out=driver.run_dir or "",
    )


def last_row(journal: Journal) -> Mapping[str, Any]:
    """Return the row of the last mega-batch; empty before the first one."""
    rows = (event["row"] for event in reversed(journal.events) if event["kind"] == "megabatch")
    return next(rows, {})


def state_of(journal: Journal) -> str:
    """Return what a run does, or how it ended, in a few words.

    Examples
    --------
    >>> import asyncio
    >>> async def end():
    ...     journal = Journal()
    ...     journal.end_well("epochs")
    ...     return state_of(journal)
    >>> asyncio.run(end())
    'ended by epochs'
    """
    if not journal.is_over:
        return str(journal.status["state"])
    ended = journal.events[-1]
    if ended["reason"] != "error":
        return f"ended by {ended['reason']}"
    return "failed: " + " ".join(str(revive(ended["error"])).split())


def _last_metrics(journal: Journal) -> Mapping[str, float]:
    rows = (event["row"] for event in reversed(journal.events) if event["kind"] == "megabatch")
    return next((row["metrics"] for row in rows if row["metrics"]), {})
