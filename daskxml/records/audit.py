"""Every row of a history against what follows from its trace and from the rows before it.

The recorded events are given to the run's own strategy, a pure state machine, whose decisions are
compared with the recorded ones. Events and decisions are folded into rows by the function that the
session uses (`daskxml.session.history.MegabatchLog.take`), and compared with the stored rows: what
was leased, done, lost and merged. Where each row of each epoch went is counted here alone
(`Coverage`), so that a ledger which leases a row twice, or forgets one, is found. What the common
function itself gets wrong is not found here, but by the tests, which recount rows in other words.
What was measured (seconds, norms, losses, metrics) is taken as it stands.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from daskxml.records.disagreements import Findings, differences
from daskxml.session.history import MegabatchLog
from daskxml.session.trace import Entry, Setup, plain, read_entry
from daskxml.strategies import protocol
from daskxml.strategies.megabatch import Strategy

_OF_ROWS = ("perturbed", "regularized", "momentum", "late", "given_up")
_OF_WORKERS = (
    "updates", "rows", "batch_rows", "lr", "weight", "pool_threads", "busy_s", "batch_size",
    "counted", "norm",
)  # fmt: skip
# What a state machine raises for an event or a state that it has not written.
_UNFIT = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError)


@dataclass(frozen=True)
class HistoryRow:
    """A row of a history, and the entries of its trace."""

    values: Mapping[str, Any]
    trace: tuple[Entry, ...]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> HistoryRow:
        """Return a row whose trace is read.

        Raises
        ------
        ValueError
            If the trace is none of this version.
        """
        trace = values.get("trace")
        if not isinstance(trace, list):
            raise ValueError("trace is no list")
        return cls(values, tuple(read_entry(entry) for entry in trace))

    @property
    def workers(self) -> Mapping[str, Mapping[str, Any]]:
        """The values of each worker."""
        return self.values["workers"]


class Audit:
    """One run, row by row.

    Parameters
    ----------
    make_strategy
        Returns the strategy with such settings; empty ones stand for the run file's.

    Attributes
    ----------
    findings
        Where the record does not follow its rules.
    notes
        What could not be verified, and why.
    setups
        With what the run began, or continued.
    events, decisions
        How many events the strategy received, and how many decisions were compared.
    """

    def __init__(self, make_strategy: Callable[[Mapping[str, Any]], Strategy]) -> None:
        self.findings, self.notes, self.setups = Findings(), list[str](), list[Setup]()
        self.events = self.decisions = 0
        self._make_strategy, self._strategy, self._state = make_strategy, make_strategy({}), None
        self._coverage = Coverage(self.findings, ())
        self._log, self._closed = MegabatchLog(0, 0.0), None
        self._bounded: set[str] = set()  # workers whose memory cuts batches into parts
        self._rows = 0
        self._left = 0  # rows of lost workers that no later lease has taken, at most

    _state: Any
    _closed: MegabatchLog | None

    def run(self, rows: Sequence[HistoryRow]) -> None:
        """Verify all rows of a run."""
        events = (entry.event for row in rows for entry in row.trace)
        streams = (event.stream_rows for event in events if isinstance(event, Setup))
        self._coverage.stream_rows = next(streams, ())
        for row in rows:
            self.findings.megabatch, self._closed = row.values["megabatch"], None
            self._take_trace(row)
            self._check_spans(row)
            self._check_row(row)
        self._check_gaps()

    # ------------------------------------------------------------------ a trace

    def _take_trace(self, row: HistoryRow) -> None:
        """Follow a row's trace."""
        for number, entry in enumerate(row.trace, 1):
            if isinstance(entry.event, Setup):
                self._set_up(entry.event)
                continue
            self.events += 1
            self._left += self._rows_returned(entry.event)
            if self._state is not None:
                with self._finding(f"event {number}", entry.event):
                    self._step(number, entry)

    def _set_up(self, setup: Setup) -> None:
        self.setups.append(setup)
        self.findings.compare("", "rows of streams", setup.stream_rows, self._coverage.stream_rows)
        self._left += self._log.held_rows  # of late workers, which a checkpoint gives back
        self._log = MegabatchLog(0, 0.0)
        strategy = self._strategy = self._make_strategy(setup.strategy)
        strategy.quorum = setup.quorum
        if setup.state is None:
            self._state = strategy.initial_state()
            return
        if self._state is not None:
            expected = plain(strategy.plain(self._state))
            self.findings.compare("", "the checkpoint's state", setup.state, expected)
        with self._finding("the checkpoint's state", setup.state):
            self._state = strategy.restore(dict(setup.state))

    def _rows_returned(self, event: Any) -> int:
        """Return the rows that go back to the ledger with a lost worker, before it is counted."""
        if isinstance(event, protocol.WorkRolledBack):
            return self._log.rows_lost("", self._strategy)
        is_back_without = isinstance(event, protocol.WorkerJoined) and not event.keeps_change
        if is_back_without or isinstance(event, protocol.WorkerLost):
            return self._log.rows_lost(event.worker, self._strategy)
        return 0

    @contextmanager
    def _finding(self, what: str, written: Any) -> Iterator[None]:
        """Note what the strategy cannot take, and start again at the next `Setup`."""
        try:
            yield
        except _UNFIT as error:
            reason = f"{type(error).__name__}: {error}"
            what = f"{what}, which the strategy cannot take ({reason})"
            self.findings.add("", what, written, "another")
            self._state = None

    def _step(self, number: int, entry: Entry) -> None:
        event, before = entry.event, self._state
        assert not isinstance(event, Setup)
        if isinstance(event, protocol.WorkDone):
            self._check_work(event)
        self._state, commands = self._strategy.step(before, event)
        self.decisions += len(commands)
        if [type(c) for c in entry.commands] == [type(c) for c in commands]:
            for written, expected in zip(entry.commands, commands, strict=True):
                self._compare(f"event {number}, {type(event).__name__}", written, expected)
        else:
            what = f"what follows event {number}, {type(event).__name__},"
            self.findings.add("", what, entry.commands, commands)
        if isinstance(event, protocol.BatchLimited):
            self._bounded.add(event.worker)
        given_up = sum(self._log.given_up.values())
        self._log.take(self._strategy, (before, self._state), event, entry.commands)
        self._left += sum(self._log.given_up.values()) - given_up
        for command in entry.commands:
            if isinstance(command, protocol.Work):
                self._left -= min(self._left, command.rows)
        if isinstance(event, protocol.Measured):
            expected_count = self.setups[-1].parameters
            self.findings.compare("", "Measured.parameters", event.parameters, expected_count)
        if isinstance(event, protocol.Merged):
            self._closed = self._log if self._log.rows else self._closed
            for name in self._log.open.keys() - self._log.late:
                rows = [part.rows for part in self._log.open[name]]
                self.findings.compare(name, "rows of leases that are open at the merge", rows, [])
            self._log = self._log.following()

    def _check_work(self, done: protocol.WorkDone) -> None:
        """Compare work that is done with what was leased."""
        views = self._strategy.view(self._state)
        for name, rows in ((name, rows) for name, rows in done.rows.items() if rows):
            part, updates = self._log.open_part(name, rows), done.updates[name]
            if part is None:
                leased = [part.rows for part in self._log.open.get(name, ())]
                self.findings.add(name, "rows of a lease that is done", rows, f"one of {leased}")
                continue
            expected = updates_of(part, views[name].pool_threads)
            is_cut = name in self._bounded and updates > expected  # batches in parts
            if updates != expected and not is_cut:
                what = f"updates of a lease of {rows} rows by {part.batch_rows}"
                self.findings.add(name, what, updates, expected)

    def _compare(self, place: str, written: protocol.Command, expected: protocol.Command) -> None:
        worker = ""
        if isinstance(expected, protocol.Work) and expected.is_lease:
            (worker,) = expected.parts
        what = f"{type(expected).__name__} after {place}: "
        for name, *pair in differences("", written, expected):
            self.findings.add(worker, what + name.removeprefix("."), *pair)

    # ------------------------------------------------------------------ a row

    def _check_spans(self, row: HistoryRow) -> None:
        """Check the row's numbers against its spans, which need no strategy."""
        values, compare = row.values, self.findings.compare
        self._rows += sum(worker["rows"] for worker in row.workers.values())
        compare("", "rows", values["rows"], self._rows)
        self._rows = values["rows"]
        total = max(1, sum(self._coverage.stream_rows))
        compare("", "epoch", values["epoch"], values["rows"] / total)
        merged = [entry.event for entry in row.trace if isinstance(entry.event, protocol.Merged)]
        if merged and (took_s := merged[-1].took_s):  # older traces have none
            compare("", "train_s and merge_s", values["train_s"] + values["merge_s"], took_s)
        for name, worker in row.workers.items():
            compare(name, "rows of all spans", sum(_leased_rows(worker)), worker["rows"])
            idle_s = max(0.0, values["train_s"] - worker["busy_s"])
            compare(name, "idle_s", worker["idle_s"], idle_s)
            for span in (span for lease in worker["leases"] for span in lease):
                self._coverage.add(name, span)

    def _check_row(self, row: HistoryRow) -> None:
        """Check what the trace says of the merge and of what was done before it."""
        log, compare = self._closed, self.findings.compare
        if log is None:
            self.findings.add("", "a merge in the trace", "absent", "present")
            return
        with self._finding("the merge", log.decided):
            expected = log.counted()
            workers = expected["workers"]
            for name in sorted(workers.keys() ^ row.workers.keys()):
                written, other = ("present", "absent")[:: 1 if name in row.workers else -1]
                self.findings.add(name, "the worker", written, other)
            for name in sorted(workers.keys() & row.workers.keys()):
                for key in _OF_WORKERS:
                    written = row.workers[name].get(key, "absent")
                    compare(name, key, written, workers[name].get(key, "absent"))
                given = [part.rows for part in log.done.get(name, [])]
                compare(name, "rows of its leases", _leased_rows(row.workers[name]), given)
            for key in _OF_ROWS:
                compare("", key, row.values.get(key, "absent"), expected.get(key, "absent"))
            found = [{k: v for k, v in e.items() if k != "after_s"} for e in row.values["events"]]
            pairs = zip_longest(found, (event for _, event in log.events), fillvalue="absent")
            for number, pair in enumerate(pairs, 1):
                compare("", f"event {number}", *pair)

    # ------------------------------------------------------------------ the run

    def _check_gaps(self) -> None:
        """Compare the rows that were passed over with those of lost workers that are left."""
        gaps = self._coverage.gaps()
        missing = sum(stop - start for *_, start, stop in gaps)
        left = self._left + self._log.held_rows  # fewer where no later row has been merged
        if missing <= left:
            return
        places = [f"{start} to {stop} of epoch {e}, stream {s}" for e, s, start, stop in gaps[:4]]
        written = f"{missing} ({', '.join(places)}{', ...' * (len(gaps) > 4)})"
        self.findings.add("", "rows up to here in no mega-batch", written, left)


def _leased_rows(worker: Mapping[str, Any]) -> list[int]:
    return [sum(stop - start for *_, start, stop in lease) for lease in worker["leases"]]


def updates_of(part: protocol.Part, threads: int) -> int:
    """Return how often work changes a model: once a batch, or once a thread's part of it.

    Examples
    --------
    >>> part = protocol.Part(70, 32, 0.1)
    >>> updates_of(part, 0), updates_of(part, 4), updates_of(protocol.Part(2, 32, 0.1), 4)
    (3, 12, 2)
    """
    parts = max(1, threads)
    full, rest = divmod(part.rows, part.batch_rows)
    return full * min(parts, part.batch_rows) + min(parts, rest)


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
