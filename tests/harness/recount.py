"""What each worker did and what was merged, recounted from a trace in other words than the session.

The session and `daskxml verify` fold rows by one function; this is the slow obvious count beside
it. It asks the strategy what it says of its workers, adds up leases and gangs by worker, and
derives weights anew.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from daskxml.records.audit import HistoryRow
from daskxml.records.disagreements import Findings
from daskxml.session.trace import Setup
from daskxml.strategies.megabatch import Strategy
from daskxml.strategies.protocol import (
    GiveUp,
    Measure,
    Measured,
    Merge,
    Merged,
    WorkDone,
    WorkerJoined,
    WorkerLost,
    WorkerView,
    WorkRolledBack,
)

Make = Callable[[Mapping[str, Any]], Strategy]


@dataclass
class Count:
    """What a worker has done since the last merge."""

    rows: int = 0
    updates: int = 0
    busy_s: float = 0.0


class Recount:
    """A run's traces, entry by entry; `counts`, `merge` and `norms` are of the last merge."""

    def __init__(self, make_strategy: Make) -> None:
        self._make = make_strategy
        self.strategy = make_strategy({})
        self.views: dict[str, WorkerView] = {}
        self._begin()

    def _begin(self) -> None:
        self._counts: dict[str, Count] = {}
        self._departed: dict[str, WorkerView] = {}

    def follow(self, row: HistoryRow) -> None:
        """Follow a row's trace to its end."""
        self.counts, self.merge = None, Merge({}, 0.0, perturbed=False)
        merge, norms = self.merge, dict[str, float]()
        for entry in row.trace:
            event = entry.event
            if isinstance(event, Setup):
                self._set_up(event)
                continue
            before = self._state
            self._state, _ = self.strategy.step(before, event)
            match event:
                case WorkDone(_, rows, updates, busy_s):
                    for name in rows:
                        self._add(name, rows[name], updates[name], busy_s[name])
                case WorkRolledBack():
                    self._counts = {}
                case WorkerLost(name):
                    self._lose(name, before)
                case WorkerJoined(name, keeps_change=False):
                    self._counts.pop(name, None)
                case Measured(squares):
                    norms = {name: math.sqrt(square) for name, square in squares.items()}
            for command in entry.commands:
                if isinstance(command, GiveUp):
                    self._counts.pop(command.worker, None)
                merge = command if isinstance(command, Merge) else merge
                if isinstance(command, Measure | Merge):
                    self.views = self._departed | self.strategy.view(self._state)
            if isinstance(event, Merged) and any(count.rows for count in self._counts.values()):
                self.counts, self.merge, self.norms = self._counts, merge, norms
            if isinstance(event, Merged):
                late = self.views.keys() - merge.weights.keys() - self._departed.keys()
                kept = {name: count for name, count in self._counts.items() if name in late}
                self._begin()
                self._counts = kept

    def _set_up(self, setup: Setup) -> None:
        self._begin()
        self.strategy = self._make(setup.strategy)
        self.strategy.quorum = setup.quorum
        self._state: Any = self.strategy.initial_state()
        if setup.state is not None:
            self._state = self.strategy.restore(dict(setup.state))

    def _add(self, name: str, rows: int, updates: int, busy_s: float) -> None:
        count = self._counts.setdefault(name, Count())
        count.rows, count.updates = count.rows + rows, count.updates + updates
        count.busy_s += busy_s

    def _lose(self, name: str, before: Any) -> None:
        if self.strategy.is_joint:
            self._counts = {}
        elif self.strategy.shares_model:
            self._departed[name] = self.strategy.view(before)[name]
        else:
            self._counts.pop(name, None)

    def weights(self) -> dict[str, float]:
        """Return the weight of each worker in the last merge."""
        counts = self.counts or {}
        if self.strategy.shares_model:
            names = dict.fromkeys([*self.merge.weights, *counts])
            updates = {name: counts[name].updates if name in counts else 0 for name in names}
            total = max(1, math.fsum(updates.values()))
            return {name: count / total for name, count in updates.items()}
        return dict(self.merge.weights)


def recounted(rows: Sequence[HistoryRow], make_strategy: Make) -> list[str]:
    """Return where rows are not what their traces come to."""
    recount, findings = Recount(make_strategy), Findings()
    for row in rows:
        findings.megabatch = row.values["megabatch"]
        recount.follow(row)
        if recount.counts is None:
            findings.add("", "a merge", "absent", "present")
            continue
        weights = recount.weights()
        findings.compare("", "workers", sorted(row.workers), sorted(weights))
        for name in sorted(weights.keys() & row.workers.keys()):
            expected = {"weight": weights[name]}
            count, view = recount.counts.get(name, Count()), recount.views[name]
            for values in (count, view):
                expected |= {one.name: getattr(values, one.name) for one in fields(values)}
            expected |= {"norm": recount.norms[name]} if name in recount.norms else {}
            expected = {key: value for key, value in expected.items() if key in row.workers[name]}
            for key, value in expected.items():
                written = row.workers[name][key]
                if key != "rows_per_s":
                    findings.compare(name, key, written, value)
        for key in ("perturbed", "regularized"):
            if key in row.values:
                findings.compare("", key, row.values[key], getattr(recount.merge, key))
    return [str(found) for found in findings.disagreements]
