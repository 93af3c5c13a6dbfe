"""The recent work of a run's workers, for the dashboard, in bounded memory.

Times are seconds since 1970 by the scheduler's clock. A lease ends when its report arrives, and
began ``busy_s`` earlier, so it needs no message of its own. Other work is a task, under its name on
Dask's dashboard, or a message.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

KEPT = 6_000  # pieces of work
JOINED_S = 0.05  # shorter gaps between equal pieces of work are ignored


@dataclass(slots=True)
class Work:
    """A piece of work of one worker: its name, its beginning and its end."""

    worker: str
    what: str
    begin_s: float
    end_s: float


class Timeline:
    """The work of a run's workers.

    Attributes
    ----------
    done
        The latest pieces of work, in the order in which they ended; consecutive leases are one
        piece.

    Examples
    --------
    >>> timeline = Timeline()
    >>> timeline.lease_given("0", now_s=10.0)
    >>> timeline.lease_done("0", busy_s=1.5, now_s=12.0)
    >>> timeline.recent(0.0, now_s=12.0)
    [Work(worker='0', what='lease', begin_s=10.5, end_s=12.0)]
    """

    def __init__(self) -> None:
        self.done: deque[Work] = deque(maxlen=KEPT)
        self._last: dict[str, Work] = {}  # of each worker
        self._leases: dict[str, tuple[int, float]] = {}  # leases under way; since when
        self._open: dict[tuple[str, str], float] = {}  # begin_s by worker and what

    def lease_given(self, worker: str, now_s: float | None = None) -> None:
        """Note one more lease of a worker."""
        waiting, since_s = self._leases.get(worker, (0, _or_now(now_s)))
        self._leases[worker] = waiting + 1, since_s

    def lease_done(self, worker: str, busy_s: float, now_s: float | None = None) -> None:
        """Note that a worker's next lease is done, or abandoned if ``busy_s`` is 0."""
        end_s = _or_now(now_s)
        waiting, _ = self._leases.pop(worker, (0, 0.0))
        if waiting > 1:
            self._leases[worker] = waiting - 1, end_s
        if busy_s > 0.0:
            self.did("lease", worker, busy_s, end_s)

    def did(self, what: str, worker: str, busy_s: float, now_s: float | None = None) -> None:
        """Note work of a worker that ends now."""
        end_s = _or_now(now_s)
        self._note(Work(worker, what, end_s - busy_s, end_s))

    @contextlib.contextmanager
    def doing(self, what: str, worker: str) -> Iterator[None]:
        """Note other work of a worker for the duration of the block."""
        begin_s = self._open[worker, what] = time.time()
        try:
            yield
        finally:
            self._open.pop((worker, what), None)
            self._note(Work(worker, what, begin_s, time.time()))

    def recent(self, since_s: float, now_s: float | None = None) -> list[Work]:
        """Return the work that ended after ``since_s``; work under way ends now."""
        end_s = _or_now(now_s)
        found = [work for work in self.done if work.end_s >= since_s]
        found += [Work(w, "lease", begin_s, end_s) for w, (_, begin_s) in self._leases.items()]
        found += [Work(*key, begin_s, end_s) for key, begin_s in self._open.items()]
        return found

    def _note(self, work: Work) -> None:
        last = self._last.get(work.worker)
        if last is not None and last.what == work.what and work.begin_s - last.end_s < JOINED_S:
            last.end_s = max(last.end_s, work.end_s)
        else:
            self._last[work.worker] = work
            self.done.append(work)


def _or_now(given_s: float | None) -> float:
    return time.time() if given_s is None else given_s
