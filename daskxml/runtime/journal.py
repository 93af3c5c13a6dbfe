"""What a run has to tell: a list of events that any number of clients read at their own pace."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker

from daskxml import errors
from daskxml.errors import ClusterError, DaskxmlError, InputError

Event = dict[str, Any]


class Journal:
    """The events of a run so far, and its state this moment.

    Events are dictionaries of plain values with ``"kind"``: ``started``, ``ready`` (workers hold
    the model to begin with), ``megabatch`` (with ``row``, see `daskxml.training.history`),
    ``worker``, ``equipment`` (with ``workers``, what each has, by name), ``memory``, ``rewound``,
    ``warning`` and ``ended``.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.status: Event = {"kind": "status", "state": "starting"}
        self.begun_at_s = time.time()
        self.is_over = self.has_failed = False
        self._version = 0
        self._news = asyncio.Condition()
        self._notifying: set[asyncio.Task[None]] = set()

    def event(self, kind: str, /, **values: Any) -> None:
        """Add an event."""
        self.events.append({"kind": kind, "at_s": time.time(), **values})
        self._tell()

    def state(self, state: str, **values: Any) -> None:
        """Say what the run is doing now; only the last word is kept."""
        self.status = {"kind": "status", "state": state, **values}
        self._tell()

    def end_well(self, reason: str, **values: Any) -> None:
        """Say that the run is over."""
        self.is_over = True
        self.event("ended", reason=reason, **values)

    def end_badly(self, error: Exception, details: str = "") -> None:
        """Say why the run failed."""
        self.is_over = self.has_failed = True
        self.event("ended", reason="error", error=_plain(error), details=details)

    async def read(self, since: int, version: int | None, patience_s: float) -> dict[str, Any]:
        """Return events from number ``since`` on, waiting a while for news.

        ``version`` is that of the last answer; where it is None only events are news.
        """
        async with self._news:
            with contextlib.suppress(asyncio.TimeoutError):
                news = self._news.wait_for(
                    lambda: len(self.events) > since or version not in (None, self._version)
                )
                await asyncio.wait_for(news, patience_s)
        return {"events": self.events[since:], "status": self.status, "version": self._version}

    def _tell(self) -> None:
        self._version += 1
        task = asyncio.ensure_future(self._notify())
        self._notifying.add(task)
        task.add_done_callback(self._notifying.discard)

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()


def explained(error: Exception) -> ClusterError | None:
    """Return what to tell where Dask's error means something that a user can mend."""
    if isinstance(error, MemoryError):
        problem = f"a worker's memory is exhausted ({error}); give it more or hold less on it"
        return ClusterError(problem)
    if isinstance(error, KilledWorker):
        return ClusterError(
            f"{error.allowed_failures + 1} workers died one after the other in {error.task}, most "
            "likely for want of memory; see their logs, give them more or hold less on each"
        )
    if isinstance(error, FutureCancelledError):
        return ClusterError(
            f"the run's tasks were cancelled ({error.reason}), as client.restart() does; start it "
            "again, or go on from its last checkpoint by --resume"
        )
    return None


def _plain(error: Exception) -> Event:
    if isinstance(error, InputError):
        return {"type": "InputError", "args": [error.problem, error.path, error.line]}
    if isinstance(error, DaskxmlError):
        return {"type": type(error).__name__, "args": [str(error)]}
    return {"type": "", "args": [f"{type(error).__name__}: {error}"]}


def revive(plain: Event) -> Exception:
    """Return the exception that a run ended with.

    >>> revive({"type": "ClusterError", "args": ["no worker"]})
    ClusterError('no worker')
    """
    kind = getattr(errors, plain["type"], None) if plain["type"] else None
    return kind(*plain["args"]) if kind else RuntimeError(*plain["args"])
