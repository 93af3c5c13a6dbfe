"""How long a merge by a quorum waits for workers that are not in (`daskxml.strategies.quorum`).

A worker is due when it would have done what it is leased, at its measured speed, since its last
report. One that is frozen is soon overdue, and when the others have nothing left to do, nobody
waits for it; one that is slow has as long as workers lately needed beyond their time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence

from daskxml.strategies.dispatch import LONGEST_LEASE_S
from daskxml.strategies.protocol import WorkDone

MERGES = 4  # whose delays are remembered; fewer are no measure
LEAST_S = 0.25  # so that no scheduler's hiccup makes a worker late


def allowance_s(since_begin_s: float, delays_s: deque[float]) -> float:
    """Return how long after its time a worker is overdue.

    Twice the longest of the last delays, at most a quarter of the mega-batch so far, and at
    least `LEAST_S`.

    Examples
    --------
    >>> allowance_s(8.0, deque([0.1, 0.5, 0.1, 0.1])), allowance_s(8.0, deque([0.1]))
    (1.0, 2.0)
    """
    spread_s = 2.0 * max(delays_s) if len(delays_s) == MERGES else math.inf
    return max(LEAST_S, min(since_begin_s / 4.0, spread_s))


class Grace:
    """The grace of one run.

    Parameters
    ----------
    given_s
        `[combine] grace`, from when a quorum is in; None: until all others are overdue, two leases
        or a quarter of the mega-batch at most.

    Attributes
    ----------
    until_s
        When it is over; infinite where nobody is waited for.
    """

    def __init__(self, given_s: float | None = None) -> None:
        self.until_s, self._given_s = math.inf, given_s
        self._reported_s: dict[str, float] = {}
        self._delay_s = 0.0  # the longest since the last merge
        self._delays_s: deque[float] = deque(maxlen=MERGES)
        self._missed: dict[str, float] = {}  # by late worker: a delay that is no slight one

    def report(
        self, done: WorkDone, speeds: Mapping[str, float], late: Collection[str], now_s: float
    ) -> None:
        """Note that workers of these speeds (rows a second; 0: unknown) have done some work."""
        for name, rows in done.rows.items():
            took_s = min(done.took_s, now_s - self._reported_s.get(name, -math.inf))
            self._reported_s[name] = now_s
            delay_s = took_s - rows / speeds[name] if speeds[name] else 0.0
            if name not in late:
                self._delay_s = max(self._delay_s, delay_s)
            elif rows and delay_s < self._missed.pop(name, 0.0):  # a little late, and not frozen
                self._delays_s.append(delay_s)

    def wait(
        self, waits_for: str, begun_s: float, now_s: float,
        leases: Mapping[str, Sequence[tuple[float, int]]], speeds: Mapping[str, float],
    ) -> None:  # fmt: skip
        """Begin to wait; the mega-batch has gone on since ``begun_s``.

        Parameters
        ----------
        waits_for
            Of `Wait`. Without a quorum the wait is four times as long; where those that are in have
            done nothing, it is as long again with each report, and a lease is at least twice over.
        leases
            By worker that is waited for: when it was given each of its leases, and their rows.
        speeds
            Of these workers, rows a second; 0: unknown.
        """
        since_s = now_s - begun_s
        allowed_s = allowance_s(since_s, self._delays_s)
        grace_s = allowed_s if self._given_s is None else self._given_s
        if waits_for != "others":
            grace_s = max(4.0 * grace_s, 2.0 * LONGEST_LEASE_S if waits_for == "work" else 0.0)
        elif self._given_s is None:
            due_s = max(self._due_s(name, own, speeds[name]) for name, own in leases.items())
            most_s = max(2.0 * LONGEST_LEASE_S, since_s / 4.0)
            grace_s = min(max(0.0, due_s + allowed_s - now_s), most_s)
        self.until_s = now_s + grace_s

    def _due_s(self, worker: str, leases: Sequence[tuple[float, int]], rows_per_s: float) -> float:
        due_s = self._reported_s.get(worker, -math.inf)
        for given_s, rows in leases:
            due_s = max(due_s, given_s) + (rows / rows_per_s if rows_per_s else math.inf)
        return due_s

    def end(self, missing: set[str], begun_s: float, now_s: float) -> None:
        """End the wait: the merge begins without those who are missing."""
        self.until_s = math.inf
        self._missed |= dict.fromkeys(missing, now_s - begun_s)
        self._delays_s.append(self._delay_s)
        self._delay_s = 0.0
