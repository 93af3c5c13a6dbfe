"""Every row of a history against what follows from its trace and from the rows before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from daskxml.records.disagreements import Findings
from daskxml.records.recount import Closed, Coverage, Replay, WorkCounts, WorkerCount
from daskxml.session.overlapped import reweighed
from daskxml.session.trace import Entry, Setup, read_entry
from daskxml.strategies.protocol import (
    BatchLimited,
    Measured,
    Merge,
    Strategy,
    WorkerJoined,
    WorkerLost,
    WorkerView,
)

_KINDS = {WorkerJoined: "joined", WorkerLost: "lost", BatchLimited: "memory"}
_OLD = (
    "{} of {} mega-batches have no trace, as an older daskxml wrote them: their batch sizes, "
    "rates, updates, seconds and weights are not verified"
)


@dataclass(frozen=True)
class HistoryRow:
    """A row of a history, and the entries of its trace; None where it has none."""

    values: Mapping[str, Any]
    trace: tuple[Entry, ...] | None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> HistoryRow:
        """Return a row whose trace is read.

        Raises
        ------
        ValueError
            If the trace is none of this version.
        """
        trace = values.get("trace")
        if not isinstance(trace, list | None):
            raise ValueError("trace is no list")
        return cls(values, None if trace is None else tuple(read_entry(entry) for entry in trace))

    @property
    def workers(self) -> Mapping[str, Mapping[str, Any]]:
        """The values of each worker."""
        found: Mapping[str, Mapping[str, Any]] = self.values["workers"]
        return found

    def of_kind(self, kind: type) -> list[Any]:
        """Return the events of a kind."""
        return [entry.event for entry in self.trace or () if isinstance(entry.event, kind)]

    def spans(self) -> Iterator[tuple[str, list[int]]]:
        """Yield every span that was leased, with its worker."""
        for name, worker in self.workers.items():
            yield from ((name, span) for lease in worker["leases"] for span in lease)


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
    replay
        Has the number of decisions that were compared.
    setups, events
        With what the run began, or continued; how many events the strategy received.
    """

    def __init__(self, make_strategy: Callable[[Mapping[str, Any]], Strategy]) -> None:
        self.findings, self.notes = Findings(), list[str]()
        self.replay = Replay(make_strategy, self.findings)
        self.setups, self.events = list[Setup](), 0
        self._first_strategy = make_strategy({})
        self._counts = WorkCounts(self.findings)
        self._coverage = Coverage(self.findings)
        self._user_events = _UserEvents(self.findings)
        self._total = self._rows_before = 0

    @property
    def strategy(self) -> Strategy:
        """That of the last `Setup`; before the first, the run file's."""
        return self.replay.strategy or self._first_strategy

    def run(self, rows: Sequence[HistoryRow]) -> None:
        """Verify all rows of a run."""
        self._find_streams(rows)
        for row, following in zip(rows, [*rows[1:], None], strict=True):
            self.findings.megabatch = row.values["megabatch"]
            returned = self._take_trace(row)
            self._user_events.compare(row, returned, is_last=following is None)
            self._check_row(row)
            if row.trace is not None:
                self._check_merge(row, following)
        self._check_gaps()

    def _find_streams(self, rows: Sequence[HistoryRow]) -> None:
        """Find the sizes of the streams; without a trace only that of a single one is known."""
        first = rows[0].values
        self._total = round(first["rows"] / first["epoch"]) if first["epoch"] else 0
        setups = [setup for row in rows for setup in row.of_kind(Setup)]
        if setups:
            self._coverage.stream_rows = setups[0].stream_rows
            self._total = sum(setups[0].stream_rows)
        elif not any(span[1] for row in rows for _, span in row.spans()):
            self._coverage.stream_rows = (self._total,)
        without = sum(row.trace is None for row in rows)
        if without:
            self.notes.append(_OLD.format(without, len(rows)))
            self._counts.is_exact = False

    def _take_trace(self, row: HistoryRow) -> list[int | None]:
        """Follow a row's trace; return the rows that each of its losses returned."""
        self._counts.closed, returned = None, []
        if row.trace is None:
            self.replay.forget()
            self._counts.forget()
        for number, entry in enumerate(row.trace or (), 1):
            if isinstance(entry.event, Setup):
                self.setups.append(entry.event)
                streams = self._coverage.stream_rows
                self.findings.compare("", "rows of streams", entry.event.stream_rows, streams)
            else:
                self.events += 1
            rows = self._counts.take(entry, self.strategy)
            if isinstance(entry.event, WorkerLost):
                returned.append(rows)
            self.replay.take(number, entry)
        return returned

    # ------------------------------------------------------------------ a row

    def _check_row(self, row: HistoryRow) -> None:
        """Check what needs no trace."""
        values, compare = row.values, self.findings.compare
        done = sum(worker["rows"] for worker in row.workers.values())
        compare("", "rows", values["rows"], self._rows_before + done)
        compare("", "epoch", values["epoch"], values["rows"] / max(1, self._total))
        self._rows_before = values["rows"]
        for name, worker in row.workers.items():
            compare(name, "rows of all spans", sum(_leased_rows(worker)), worker["rows"])
            idle_s = max(0.0, values["train_s"] - worker["busy_s"])
            compare(name, "idle_s", worker["idle_s"], idle_s)
        for name, span in row.spans():
            self._coverage.add(name, span)
        if row.trace is None and self.strategy.shares_model:
            shares = _shares({name: worker["updates"] for name, worker in row.workers.items()})
            for name, worker in row.workers.items():
                compare(name, "weight", worker["weight"], shares[name])

    def _check_merge(self, row: HistoryRow, following: HistoryRow | None) -> None:
        """Check what the trace says of the merge and of what was done before it."""
        closed, compare = self._counts.closed, self.findings.compare
        if closed is None:
            self.findings.add("", "a merge in the trace", "absent", "present")
            return
        weights = self._weights(row, following, closed)
        for name in sorted(weights.keys() ^ row.workers.keys()):
            written, expected = ("present", "absent")[:: 1 if name in row.workers else -1]
            self.findings.add(name, "the worker", written, expected)
        for name in weights.keys() & row.workers.keys():
            compare(name, "weight", row.workers[name]["weight"], weights[name])
            self._check_worker(name, row.workers[name], closed.workers.get(name, WorkerCount()))
            for measured in row.of_kind(Measured)[-1:]:  # taken back ones come before
                if "norm" in row.workers[name] and name in measured.squared_norms:
                    squared = measured.squared_norms[name]
                    norm = math.sqrt(squared) if squared >= 0.0 else math.nan
                    compare(name, "norm", row.workers[name]["norm"], norm)
        for one in fields(Merge):
            if one.name in row.values:  # what the row says of the merge has the same name
                compare("", one.name, row.values[one.name], getattr(closed.merge, one.name))

    def _weights(
        self, row: HistoryRow, following: HistoryRow | None, closed: Closed
    ) -> dict[str, float]:
        """Return the weights of those that were merged."""
        if self.strategy.shares_model:
            names = [*closed.merge.weights, *closed.workers]
            counts = closed.workers
            return _shares({n: counts[n].updates if n in counts else 0 for n in names})
        weights = dict(closed.merge.weights)
        missing = [name for name in weights if name not in row.workers]
        if not (self._counts.overlaps and missing):
            return weights
        # They were lost while the merge was under way: the row that follows says when.
        done = {name: closed.workers.get(name, WorkerCount()) for name in missing}
        self._counts.sealed = {name: count.leased_rows for name, count in done.items()}
        losses = following.of_kind(WorkerLost) if following is not None else []
        known = [event.worker for event in losses if event.worker in missing]
        for name in dict.fromkeys(known if following is not None else missing):
            weights = reweighed(weights, name)
        return weights

    def _check_worker(self, name: str, worker: Mapping[str, Any], count: WorkerCount) -> None:
        given = [lease.rows for lease in count.leases]
        batches = sum(lease.batches for lease in count.leases)
        self.findings.compare(name, "rows of its leases", _leased_rows(worker), given)
        for key in ("updates", "rows", "busy_s"):
            self.findings.compare(name, key, worker[key], getattr(count, key))
        view = self.replay.views.get(name)
        for one in fields(WorkerView) if view is not None else ():
            if one.name in worker:
                self.findings.compare(name, one.name, worker[one.name], getattr(view, one.name))
        corrected = worker.get("corrected_after", 0)
        if not 0 <= corrected <= batches:
            self.findings.add(name, "corrected_after", corrected, f"0 to {batches}")

    # ------------------------------------------------------------------ the run

    def _check_gaps(self) -> None:
        """Compare the rows that were passed over with those of lost workers that are left."""
        gaps = self._coverage.gaps()
        missing = sum(stop - start for *_, start, stop in gaps)
        left = self._counts.outstanding + sum(self._counts.sealed.values())
        if not self._counts.is_exact:
            left = self._user_events.rows_returned
        if missing <= left:  # fewer where no later row has been merged
            return
        places = [f"{start} to {stop} of epoch {e}, stream {s}" for e, s, start, stop in gaps[:4]]
        written = f"{missing} ({', '.join(places)}{', ...' * (len(gaps) > 4)})"
        self.findings.add("", "rows up to here in no mega-batch", written, left)


def _leased_rows(worker: Mapping[str, Any]) -> list[int]:
    return [sum(stop - start for *_, start, stop in lease) for lease in worker["leases"]]


def _shares(updates: Mapping[str, int]) -> dict[str, float]:
    """Return each worker's share of all updates of a shared model."""
    total = max(1, math.fsum(updates.values()))
    return {name: count / total for name, count in updates.items()}


def _is_resumption(event: Any) -> bool:
    return isinstance(event, Setup) and event.state is not None


class _UserEvents:
    """The rows' ``events`` against those of the trace.

    A worker that is lost or joins after the merge is an event of the row that is closed then, and
    in the trace of the next one; none, if the run ends or goes back to a checkpoint before that.
    Events of a mega-batch in which nothing was done, before a run was resumed, are in no row.

    Attributes
    ----------
    rows_returned
        Rows of lost workers so far, as the events say.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._late: list[Mapping[str, Any]] = []  # of the row before
        self.rows_returned = 0

    def compare(self, row: HistoryRow, returned: Sequence[int | None], *, is_last: bool) -> None:
        """Compare a row's; ``returned`` has the rows that each loss of its trace returned."""
        own = [e for e in row.values["events"] if e["kind"] in _KINDS.values()]
        self.rows_returned += sum(event.get("rows_returned", 0) for event in own)
        if row.trace is None:
            self._late = []
            return
        left, losses = [*self._late, *own], iter(returned)
        resumed = max((n for n, e in enumerate(row.trace) if _is_resumption(e.event)), default=0)
        before = [*self._late] if resumed else left  # the same worker may join again afterwards
        left = [*own] if resumed else left
        for number, entry in enumerate(row.trace):
            if isinstance(entry.event, tuple(_KINDS)):
                rows = next(losses) if isinstance(entry.event, WorkerLost) else 0
                is_before = number < resumed
                self._match(entry.event, before if is_before else left, rows, may_lack=is_before)
        for event in left:
            if not any(event is other for other in own):
                worker = event.get("worker", "")
                self._findings.add(worker, f"the event {event['kind']!r}", "present", "absent")
        self._late = [] if is_last else [e for e in left if any(e is other for other in own)]

    def _match(
        self, event: Any, left: list[Mapping[str, Any]], rows: int | None, *, may_lack: bool
    ) -> None:
        """Compare an event of the trace with that for the user, and remove it from ``left``."""
        sought = _KINDS[type(event)], event.worker
        found = next((e for e in left if (e["kind"], e.get("worker")) == sought), None)
        if found is None:
            what = f"the event {sought[0]!r}"
            if not may_lack:
                self._findings.add(event.worker, what, "absent", "present")
            return
        left.remove(found)
        if isinstance(event, BatchLimited):
            written = found.get("batch_rows")
            self._findings.compare(event.worker, "batch_rows of the event", written, event.rows)
        elif rows is not None:
            self._findings.compare(event.worker, "rows_returned", found.get("rows_returned"), rows)
