"""The rows of a run, span by span: each leased as decided, and merged once.

Neither class uses the code that gave the rows away (`daskxml.session.ledger`) or counted them:
`LeasedRows` knows from the trace how many rows each worker was leased, and `Coverage` where each
row of each epoch went.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from daskxml.records.disagreements import Findings
from daskxml.session.trace import Entry, Setup
from daskxml.strategies.protocol import (
    BatchLimited,
    Command,
    Measure,
    Merge,
    Merged,
    Started,
    Strategy,
    Work,
    WorkDone,
    WorkerDevice,
    WorkerJoined,
    WorkerLost,
    WorkRolledBack,
)


@dataclass
class GivenLease:
    """A lease, or a worker's part in a gang.

    Attributes
    ----------
    may_be_held
        It was decided after a merge that has not taken place yet: where merges overlap with
        training it may have been held back.
    """

    rows: int
    batch_rows: int
    is_done: bool = False
    may_be_held: bool = False

    def updates(self, threads: int) -> int:
        """Return how often it changes a model: once a batch, or once a thread's part of it.

        Examples
        --------
        >>> [GivenLease(rows, 32).updates(threads) for rows, threads in ((70, 0), (70, 4), (2, 4))]
        [3, 12, 2]
        """
        parts = max(1, threads)
        full, rest = divmod(self.rows, self.batch_rows)
        return full * min(parts, self.batch_rows) + min(parts, rest)

    @property
    def batches(self) -> int:
        """Number of batches."""
        return -(-self.rows // self.batch_rows)


class LeasedRows:
    """What each worker was leased, by the commands of a trace, and what came back.

    Attributes
    ----------
    settled
        Leases of the last mega-batch that was merged, by worker.
    outstanding
        Rows of lost workers that no later lease has taken.
    is_exact
        Whether ``outstanding`` is known.
    sealed
        Rows of workers that were lost while a merge overlapped with training, until their loss.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self.outstanding, self.is_exact, self._overlaps = 0, True, False
        self.settled: Mapping[str, list[GivenLease]] = {}
        self._threads: dict[str, int] = {}
        self._bounded: set[str] = set()
        self._begin()

    def _begin(self) -> None:
        self._leases: dict[str, list[GivenLease]] = {}
        self._is_over = False
        self.sealed: dict[str, int] = {}

    def take(self, entry: Entry, strategy: Strategy) -> int | None:
        """Follow an event and the commands on it.

        Return the rows that return to the ledger with a lost worker; None where that depends on
        decisions that may have been held back.
        """
        returned: int | None = 0
        match entry.event:
            case Setup(overlaps=overlaps):
                self._overlaps = overlaps
                self._begin()
            case Started(names, devices):
                self._threads = {n: devices.get(n, WorkerDevice()).pool_threads for n in names}
            case WorkerJoined(name, device):
                self._threads[name] = device.pool_threads
            case BatchLimited(name):
                self._bounded.add(name)
            case WorkDone(_, rows, updates):
                for name in rows:
                    self._done(name, rows[name], updates[name])
            case WorkerLost(name):
                returned = self._lose(name, strategy)
            case WorkRolledBack():
                self._return([*self._leases])
            case Merged():
                self._settle()
        for command in entry.commands:
            self._give(command)
        return returned

    def _give(self, command: Command) -> None:
        match command:
            case Work(parts):
                for name, part in parts.items():
                    if part.rows:
                        self._lease(name, part.rows, part.batch_rows)
            case Measure() | Merge():
                self._is_over = True

    def _lease(self, worker: str, rows: int, batch_rows: int) -> None:
        if rows < 1 or batch_rows < 1:
            self._findings.add(worker, "a lease", f"{rows} rows by {batch_rows}", "1 at least")
            return
        lease = GivenLease(rows, batch_rows, may_be_held=self._is_over and self._overlaps)
        self._leases.setdefault(worker, []).append(lease)
        self.outstanding -= min(self.outstanding, rows)

    def _done(self, worker: str, rows: int, updates: int) -> None:
        if not rows:  # a gang's worker that had none
            return
        open_leases = [lease for lease in self._leases.get(worker, ()) if not lease.is_done]
        same = [lease for lease in open_leases if lease.rows == rows]
        if not same:
            leased = [lease.rows for lease in open_leases]
            self._findings.add(worker, "rows of a lease that is done", rows, f"one of {leased}")
        for lease in (same or open_leases)[:1]:
            lease.is_done = True
            expected = lease.updates(self._threads.get(worker, 0))
            is_cut = worker in self._bounded and updates > expected  # batches in parts
            if same and updates != expected and not is_cut:
                what = f"updates of a lease of {rows} rows by {lease.batch_rows}"
                self._findings.add(worker, what, updates, expected)

    def _lose(self, worker: str, strategy: Strategy) -> int | None:
        sealed = self.sealed.pop(worker, 0)
        self.outstanding += sealed
        if strategy.is_joint:
            return self._return([*self._leases])
        leases = self._leases.get(worker, [])
        if strategy.shares_model:  # what is done stays in the model
            self._leases[worker] = [lease for lease in leases if lease.is_done]
            leases = [lease for lease in leases if not lease.is_done]
            rows = sum(lease.rows for lease in leases)
            self.outstanding += rows
        else:
            rows = self._return([worker])
        if any(lease.may_be_held for lease in leases):
            self.is_exact = False
            return None
        return rows + sealed

    def _return(self, workers: Sequence[str]) -> int:
        """Take all leases of workers back; return their rows."""
        rows = sum(lease.rows for name in workers for lease in self._leases.pop(name, ()))
        self.outstanding += rows
        return rows

    def _settle(self) -> None:
        leases = self._leases
        for name, given in leases.items():
            if left := [lease.rows for lease in given if not lease.is_done]:
                self._findings.add(name, "rows of leases that are open at the merge", left, [])
        self._begin()
        if any(leases.values()):
            self.settled = leases

    def seal(self, worker: str) -> None:
        """Note that a worker was lost while the last merge overlapped with training."""
        self.sealed[worker] = sum(lease.rows for lease in self.settled.get(worker, ()))


class Coverage:
    """Which mega-batch and worker each row of each epoch went to.

    ``stream_rows`` has the rows of each stream; None while they are not known.

    Examples
    --------
    >>> coverage = Coverage(Findings(), (10,))
    >>> for start, stop in ((0, 4), (6, 10)):
    ...     coverage.add("a", (0, 0, start, stop))
    >>> coverage.add("a", (1, 0, 0, 1))
    >>> coverage.gaps()
    [(0, 0, 4, 6)]
    """

    def __init__(self, findings: Findings, stream_rows: Sequence[int]) -> None:
        self._findings, self.stream_rows = findings, stream_rows
        self._spans: dict[tuple[int, int], list[tuple[int, int, int, str]]] = {}

    def add(self, worker: str, span: Sequence[int]) -> None:
        """Add a span (epoch, stream, start, stop) of the present mega-batch."""
        epoch, stream, start, stop = span
        is_known = stream < len(self.stream_rows)
        last = self.stream_rows[stream] if is_known else math.inf
        if not (is_known and epoch >= 0 <= stream and 0 <= start < stop <= last):
            what = f"a span of epoch {epoch}, stream {stream}"
            self._findings.add(worker, what, f"{start} to {stop}", f"within 0 to {last}")
            return
        spans = self._spans.setdefault((epoch, stream), [])
        place = bisect_left(spans, (start, stop, 0, ""))
        for other in spans[max(0, place - 1) : place + 1]:
            first, end = max(start, other[0]), min(stop, other[1])
            if first < end:
                what = f"rows {first} to {end} of epoch {epoch}, stream {stream}: times counted"
                also = f"2, also by worker {other[3]} in mega-batch {other[2]}"
                self._findings.add(worker, what, also, 1)
        spans.insert(place, (start, stop, self._findings.megabatch, worker))

    def gaps(self) -> list[tuple[int, int, int, int]]:
        """Return the spans that were passed over."""
        last = max((epoch for epoch, _ in self._spans), default=-1)
        found = []
        for epoch in range(last + 1):
            for stream, rows in enumerate(self.stream_rows):
                done, end = 0, (rows, rows, 0, "")
                spans = self._spans.get((epoch, stream), [])
                for start, stop, *_ in [*spans, end] if epoch < last else spans:
                    if start > done:
                        found.append((epoch, stream, done, start))
                    done = max(done, stop)
        return found
