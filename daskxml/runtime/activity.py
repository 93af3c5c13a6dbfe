"""What the workers of a run do and did lately, for whoever watches: in bounded memory.

Times are seconds since the epoch by the scheduler's clock. A lease is known by its end: it ends
when its report comes and began its ``busy_s`` before, so that no message is sent for it. Anything
else that a worker is asked goes by the name that its task has on Dask's dashboard, if it is one.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

KEPT = 6_000  # pieces of work
JOINED_S = 0.05  # the same again after so short a time is one piece


@dataclass(slots=True)
class Work:
    """A piece of work of one worker: what it is, when it began, and when it ended."""

    worker: str
    what: str
    begin_s: float
    end_s: float


class Activity:
    """What the workers of a run do.

    Attributes
    ----------
    done
        The latest pieces of work, in the order in which they began to end; leases that follow one
        another are one piece.
    sent_bytes
        By worker: what it has sent to others in merges and gangs.
    watchers
        Called with every piece of work that is over and was no task, of which Dask knows nothing.

    Examples
    --------
    >>> activity = Activity()
    >>> activity.lease_given("0", now_s=10.0)
    >>> activity.lease_done("0", busy_s=1.5, now_s=12.0)
    >>> activity.recent(0.0, now_s=12.0)
    [Work(worker='0', what='lease', begin_s=10.5, end_s=12.0)]
    """

    def __init__(self) -> None:
        self.done: deque[Work] = deque(maxlen=KEPT)
        self.sent_bytes: Counter[str] = Counter()
        self.watchers: list[Callable[[Work], None]] = []
        self._last: dict[str, Work] = {}  # of each worker
        self._leases: dict[str, tuple[int, float]] = {}  # given and not done; since when it works
        self._open: dict[tuple[str, str], float] = {}  # worker and what, to its beginning

    def lease_given(self, worker: str, now_s: float | None = None) -> None:
        """Hear that a worker has one more lease to do."""
        waiting, since_s = self._leases.get(worker, (0, _or_now(now_s)))
        self._leases[worker] = waiting + 1, since_s

    def lease_done(self, worker: str, busy_s: float, now_s: float | None = None) -> None:
        """Hear that a worker's next lease is done, or given up: then ``busy_s`` is 0."""
        end_s = _or_now(now_s)
        waiting, _ = self._leases.pop(worker, (0, 0.0))
        if waiting > 1:
            self._leases[worker] = waiting - 1, end_s
        if busy_s > 0.0:
            self._note(Work(worker, "lease", end_s - busy_s, end_s))

    @contextlib.contextmanager
    def doing(self, what: str, worker: str, is_task: bool = True) -> Iterator[None]:
        """Tell that a worker is at something while the block lasts."""
        begin_s = self._open[worker, what] = time.time()
        try:
            yield
        finally:
            self._open.pop((worker, what), None)
            end_s = time.time()
            self._note(Work(worker, what, begin_s, end_s))
            for watch in self.watchers if not is_task else ():
                watch(Work(worker, what, begin_s, end_s))

    def sent(self, workers: Iterable[str], sent_bytes: Iterable[int]) -> None:
        """Add up what each worker has sent to others."""
        self.sent_bytes.update(dict(zip(workers, sent_bytes, strict=True)))

    def recent(self, since_s: float, now_s: float | None = None) -> list[Work]:
        """Return the work that went on after ``since_s``; what goes on still ends now."""
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
