"""A run's event log, which any number of clients read at their own pace, and its summary."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker

from daskxml.core import errors
from daskxml.core.errors import ClusterError, DaskxmlError, lacks_memory

Event = dict[str, Any]
GATHER_S = 0.05  # of changes for an answer: answers for each would take time from short merges


class EventLog:
    """The events of a run so far, and its current state.

    Events are dictionaries of plain values with ``"kind"``: ``started``, ``ready`` (workers hold
    the model to begin with; its ``history`` if the run is resumed), ``megabatch`` (with ``row``,
    see `daskxml.session.history`), ``worker``, ``equipment`` (with ``workers``, their hardware by
    name), ``stages`` (how the rows came to the workers: the fields of each
    `daskxml.core.work_stats.StageRecord`; and ``rows``, the checksums of the training partitions),
    ``memory``, ``rewound``, ``page`` (with the ``path`` of the dashboard's page), ``warning`` and
    ``ended``.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.status: Event = {"kind": "status", "state": "starting"}
        self.begun_at_s = time.time()
        self.is_over = self.has_failed = False
        self._version = 0
        self._changed = asyncio.Event()  # of this version

    def event(self, kind: str, /, **values: Any) -> None:
        """Add an event."""
        self.events.append({"kind": kind, "at_s": time.time(), **values})
        self._count_change()

    def state(self, state: str, **values: Any) -> None:
        """Replace the current state."""
        self.status = {"kind": "status", "state": state, **values}
        self._count_change()

    def end_well(self, reason: str, **values: Any) -> None:
        """Add the end of the run."""
        self.is_over = True
        self.event("ended", reason=reason, **values)

    def end_badly(self, error: Exception, details: str = "") -> None:
        """Add the error that ends the run."""
        self.is_over = self.has_failed = True
        self.event("ended", reason="error", error=_plain(error), details=details)

    async def read(self, since: int, version: int | None, timeout_s: float) -> dict[str, Any]:
        """Return events from number ``since`` on, waiting up to ``timeout_s`` for a change.

        Changes soon after the first one are in the same answer.
        ``version`` is that of the last answer; None waits for events only, not for a new state.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while len(self.events) <= since and version in (None, self._version):
                    await self._changed.wait()
                    await asyncio.sleep(0.0 if self.is_over else GATHER_S)
        return {"events": self.events[since:], "status": self.status, "version": self._version}

    def _count_change(self) -> None:
        self._version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def summary(self) -> dict[str, Any]:
        """Return the fields of a `daskxml.api.runs.RunHandle` that follow from events.

        Examples
        --------
        >>> async def end():
        ...     event_log = EventLog()
        ...     event_log.end_well("epochs")
        ...     return event_log.summary()["state"]
        >>> asyncio.run(end())
        'ended by epochs'
        """
        rows = [event["row"] for event in self.events if event["kind"] == "megabatch"]
        last = rows[-1] if rows else {}
        return {
            "state": self._summarize_state(),
            "is_over": self.is_over,
            "begun_at_s": self.begun_at_s,
            "megabatches": last.get("megabatch", 0),
            "rows": last.get("rows", 0),
            "epoch": last.get("epoch", 0.0),
            "metrics": next((row["metrics"] for row in reversed(rows) if row["metrics"]), {}),
        }

    def _summarize_state(self) -> str:
        if not self.is_over:
            return str(self.status["state"])
        ended = next(event for event in reversed(self.events) if event["kind"] == "ended")
        if ended["reason"] != "error":
            return f"ended by {ended['reason']}"
        return "failed: " + " ".join(str(revive(ended["error"])).split())


def explained(error: Exception) -> ClusterError | None:
    """Return a message for those of Dask's errors that a user can resolve; None for others."""
    if lacks_memory(error):
        problem = f"a worker's memory is exhausted{f' ({error})' * bool(str(error))}"
        problem += "; give it more or hold less on it"
        return ClusterError(problem)
    if isinstance(error, KilledWorker):
        return ClusterError(
            f"{error.allowed_failures + 1} workers died one after the other in {error.task}, most "
            "likely for want of memory; see their logs, give them more or hold less on each"
        )
    if isinstance(error, FutureCancelledError):
        return ClusterError(
            f"the run's tasks were cancelled ({error.reason}), as client.restart() does; start it "
            "again, or continue from its last checkpoint with --resume"
        )
    return None


def _plain(error: Exception) -> Event:
    if isinstance(error, DaskxmlError):
        return {"type": type(error).__name__, "args": [*error.args]}
    return {"type": "", "args": [f"{type(error).__name__}: {error}"]}


def revive(plain: Event) -> Exception:
    """Return the exception that a run ended with.

    >>> revive({"type": "ClusterError", "args": ["no worker"]})
    ClusterError('no worker')
    """
    kind = getattr(errors, plain["type"], None) if plain["type"] else None
    return kind(*plain["args"]) if kind else RuntimeError(*plain["args"])
