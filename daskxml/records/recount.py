"""A run's history recomputed: decisions by the strategy, counts from events, rows span by span.

`Replay` gives the recorded events to the run's own strategy, a pure state machine, and compares
what it decides. `WorkCounts` adds up what the events say that each worker was leased and has done,
and `Coverage` where each row of each epoch went; neither uses the code that wrote the record. What
was measured (seconds, norms, losses, metrics) is taken as it stands.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from daskxml.records.disagreements import Findings, differences
from daskxml.session.trace import Entry, Setup, plain
from daskxml.strategies.protocol import (
    BatchLimited,
    Begin,
    Command,
    Gang,
    GangDone,
    GangRolledBack,
    Lease,
    LeaseDone,
    Measure,
    Measured,
    Merge,
    Merged,
    Started,
    Strategy,
    WorkerDevice,
    WorkerJoined,
    WorkerLost,
    WorkerView,
)

# ------------------------------------------------------------------------- decisions

# What a state machine raises for an event or a state that it has not written.
_UNFIT = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError)


class Replay:
    """The run's strategy, which receives the recorded events.

    Parameters
    ----------
    make_strategy
        Returns the strategy for the settings of a `Setup`.

    Attributes
    ----------
    strategy
        That of the last `Setup`; None before.
    views
        What the strategy said of each worker when the training of the mega-batch had ended, and of
        lost ones whose work stays in a shared model; empty where it is not known.
    decisions
        Commands that were compared.
    """

    def __init__(
        self, make_strategy: Callable[[Mapping[str, Any]], Strategy], findings: Findings
    ) -> None:
        self._make_strategy, self._findings = make_strategy, findings
        self.strategy: Strategy | None = None
        self.views: dict[str, WorkerView] = {}
        self.decisions = 0
        self._departed: dict[str, WorkerView] = {}
        self._state: Any = None

    def forget(self) -> None:
        """Begin anew at the next `Setup`: events are missing from the record."""
        self._state, self.views = None, {}

    def take(self, number: int, entry: Entry) -> None:
        """Let the strategy decide on an event, the ``number``-th of the row."""
        if isinstance(entry.event, Setup):
            self._set_up(entry.event)
        elif self.strategy is not None and self._state is not None:
            with self._finding(f"event {number}", entry.event):
                self._step(self.strategy, number, entry)

    def _set_up(self, setup: Setup) -> None:
        strategy = self.strategy = self._make_strategy(setup.strategy)
        if setup.state is None:
            self._state = strategy.initial_state()
            return
        if self._state is not None:
            expected = plain(strategy.plain(self._state))
            self._findings.compare("", "the checkpoint's state", setup.state, expected)
        with self._finding("the checkpoint's state", setup.state):
            self._state = strategy.restore(dict(setup.state))

    @contextmanager
    def _finding(self, what: str, written: Any) -> Iterator[None]:
        """Note what the strategy cannot take, and begin anew at the next `Setup`."""
        try:
            yield
        except _UNFIT as error:
            reason = f"{type(error).__name__}: {error}"
            what = f"{what}, which the strategy cannot take ({reason})"
            self._findings.add("", what, written, "another")
            self.forget()

    def _step(self, strategy: Strategy, number: int, entry: Entry) -> None:
        event, before = entry.event, self._state
        assert not isinstance(event, Setup)
        if isinstance(event, Begin):
            self._departed = {}
        elif isinstance(event, WorkerLost) and strategy.shares_model:
            self._departed[event.worker] = strategy.view(before)[event.worker]
        self._state, commands = strategy.step(before, event)
        self.decisions += len(commands)
        if [type(c) for c in entry.commands] == [type(c) for c in commands]:
            for written, expected in zip(entry.commands, commands, strict=True):
                self._compare(f"event {number}, {type(event).__name__}", written, expected)
        else:
            what = f"what follows event {number}, {type(event).__name__},"
            self._findings.add("", what, entry.commands, commands)
        if any(isinstance(command, Measure | Merge) for command in commands):
            self.views = self._departed | strategy.view(self._state)

    def _compare(self, place: str, written: Command, expected: Command) -> None:
        worker = expected.worker if isinstance(expected, Lease) else ""
        what = f"{type(expected).__name__} after {place}: "
        for name, *pair in differences("", written, expected):
            self._findings.add(worker, what + name.removeprefix("."), *pair)


# ------------------------------------------------------------------------- counts


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


@dataclass
class WorkerCount:
    """What a worker was leased and has done since the last merge."""

    leases: list[GivenLease] = field(default_factory=list)
    updates: int = 0
    rows: int = 0
    busy_s: float = 0.0

    @property
    def leased_rows(self) -> int:
        """Rows of all leases, done or not."""
        return sum(lease.rows for lease in self.leases)


@dataclass(frozen=True)
class Closed:
    """A mega-batch that was merged: what was done, and the merge that was decided."""

    workers: Mapping[str, WorkerCount]
    merge: Merge


class WorkCounts:
    """What each worker was given and has done, by the events and commands of a trace.

    Attributes
    ----------
    closed
        The last mega-batch that was merged with any work.
    outstanding
        Rows of lost workers that no later lease has taken.
    is_exact
        Whether ``outstanding`` is known.
    parameters, overlaps
        Of the last `Setup`.
    sealed
        Rows of workers that were lost while a merge overlapped with training, until their loss.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self.closed: Closed | None = None
        self.outstanding, self.is_exact = 0, True
        self.parameters, self.overlaps = 0, False
        self._threads: dict[str, int] = {}
        self._bounded: set[str] = set()
        self.forget()

    def forget(self) -> None:
        """Begin anew at a merge."""
        self._workers: dict[str, WorkerCount] = {}
        self._merge: Merge | None = None
        self._ends = False
        self.sealed: dict[str, int] = {}

    def take(self, entry: Entry, strategy: Strategy) -> int | None:
        """Count an event and the commands on it.

        Return the rows that return to the ledger with a lost worker; None where that depends on
        decisions that may have been held back.
        """
        event = entry.event
        returned: int | None = 0
        match event:
            case Setup():
                self.parameters, self.overlaps = event.parameters, event.overlaps
                self.forget()
            case Started(names, devices):
                self._threads = {n: devices.get(n, WorkerDevice()).pool_threads for n in names}
            case WorkerJoined(name, device):
                self._threads[name] = device.pool_threads
            case BatchLimited(name):
                self._bounded.add(name)
            case LeaseDone(name, rows, updates, busy_s):
                self._done(name, rows, updates, busy_s)
            case GangDone(_, rows, updates, busy_s):
                for name in rows:
                    self._done(name, rows[name], updates[name], busy_s[name])
            case Measured(_, parameters):
                self._findings.compare("", "Measured.parameters", parameters, self.parameters)
            case WorkerLost(name):
                returned = self._lose(name, strategy)
            case GangRolledBack():
                self._roll_back()
            case Merged():
                self._close()
        for command in entry.commands:
            self._give(command)
        return returned

    def _count(self, worker: str) -> WorkerCount:
        return self._workers.setdefault(worker, WorkerCount())

    def _give(self, command: Command) -> None:
        match command:
            case Lease(name, rows, batch_rows):
                self._lease(name, rows, batch_rows)
            case Gang(parts):
                for name, part in parts.items():
                    if part.rows:
                        self._lease(name, part.rows, part.batch_rows)
            case Measure():
                self._ends = True
            case Merge():
                self._ends, self._merge = True, command

    def _lease(self, worker: str, rows: int, batch_rows: int) -> None:
        if rows < 1 or batch_rows < 1:
            self._findings.add(worker, "a lease", f"{rows} rows by {batch_rows}", "1 at least")
            return
        lease = GivenLease(rows, batch_rows, may_be_held=self._ends and self.overlaps)
        self._count(worker).leases.append(lease)
        self.outstanding -= min(self.outstanding, rows)

    def _done(self, worker: str, rows: int, updates: int, busy_s: float) -> None:
        count = self._count(worker)
        count.rows, count.updates = count.rows + rows, count.updates + updates
        count.busy_s += busy_s
        if not rows:  # a gang's worker that had none
            return
        open_leases = [lease for lease in count.leases if not lease.is_done]
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
        if strategy.is_joint:
            return self._roll_back()
        count = self._workers.get(worker, WorkerCount())
        lost = count.leases
        if strategy.shares_model:
            lost = [lease for lease in count.leases if not lease.is_done]
            count.leases = [lease for lease in count.leases if lease.is_done]
        if not (strategy.shares_model and count.leases):
            self._workers.pop(worker, None)
        rows = sum(lease.rows for lease in lost) + sealed
        self.outstanding += rows
        if any(lease.may_be_held for lease in lost):
            self.is_exact = False
            return None
        return rows

    def _roll_back(self) -> int:
        rows = sum(count.leased_rows for count in self._workers.values())
        self._workers = {}
        self.outstanding += rows
        return rows

    def _close(self) -> None:
        workers, merge = self._workers, self._merge
        for name, count in workers.items():
            if not all(lease.is_done for lease in count.leases):
                left = [lease.rows for lease in count.leases if not lease.is_done]
                self._findings.add(name, "rows of leases that are open at the merge", left, [])
        self.forget()
        if any(count.rows for count in workers.values()):
            self.closed = Closed(workers, merge or Merge({}, 0.0, perturbed=False))


# ------------------------------------------------------------------------- rows


class Coverage:
    """Which mega-batch and worker each row of each epoch went to.

    Attributes
    ----------
    stream_rows
        Rows of each stream; None while it is not known.

    Examples
    --------
    >>> coverage = Coverage(Findings())
    >>> coverage.stream_rows = (10,)
    >>> for start, stop in ((0, 4), (6, 10)):
    ...     coverage.add("a", (0, 0, start, stop))
    >>> coverage.add("a", (1, 0, 0, 1))
    >>> coverage.gaps()
    [(0, 0, 4, 6)]
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self.stream_rows: tuple[int, ...] | None = None
        self._spans: dict[tuple[int, int], list[tuple[int, int, int, str]]] = {}

    def add(self, worker: str, span: Sequence[int]) -> None:
        """Add a span (epoch, stream, start, stop) of the present mega-batch."""
        epoch, stream, start, stop = span
        sizes = self.stream_rows
        is_known = sizes is None or stream < len(sizes)
        last = math.inf if sizes is None or not is_known else sizes[stream]
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
        streams = range(len(self.stream_rows or ())) or {stream for _, stream in self._spans}
        found = []
        for epoch in range(last + 1):
            for stream in streams:
                spans = self._spans.get((epoch, stream), [])
                is_whole = epoch < last and self.stream_rows is not None
                done = 0
                for start, stop, *_ in spans:
                    if start > done:
                        found.append((epoch, stream, done, start))
                    done = max(done, stop)
                if is_whole and self.stream_rows is not None and done < self.stream_rows[stream]:
                    found.append((epoch, stream, done, self.stream_rows[stream]))
        return found
