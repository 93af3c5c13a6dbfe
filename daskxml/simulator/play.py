"""One session carried out in virtual time, from its first order to its last.

What happens next is whatever comes first: the end of something under way, a worker that is lost or
comes by the script, a newcomer that has the model, or the end of the time that the run may take. At
equal times reports come before losses, and losses before arrivals.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from daskxml.simulator.changes import Arrival, Change, Loss
from daskxml.simulator.cost import whole_ticks
from daskxml.simulator.executor import Executor
from daskxml.simulator.worker import VirtualWorker
from daskxml.strategies.protocol import WorkerJoined, WorkerLost
from daskxml.training import orders
from daskxml.training.session import Session

RESTART = "restart"
_ORDER = {Loss: 0, Arrival: 1}

OnEvent = Callable[[Mapping[str, Any]], None]


class Script:
    """Workers that are still to be lost or to come, the earliest first."""

    def __init__(self, changes: tuple[Change, ...]) -> None:
        self._numbered = 0
        self._heap: list[tuple[float, int, int, Change]] = []
        for change in changes:
            self.add(change, whole_ticks(change.at_s))

    @property
    def next_s(self) -> float:
        """When the next change is; infinite if there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def add(self, change: Change, at_s: float) -> None:
        """Let a change happen at a time."""
        self._numbered += 1
        heapq.heappush(self._heap, (at_s, _ORDER[type(change)], self._numbered, change))

    def pop(self) -> Change:
        """Return the next change."""
        return heapq.heappop(self._heap)[3]


@dataclass
class Newcomer:
    """A worker that gets ready: it has the model of a generation at ``ready_s``."""

    worker: VirtualWorker
    ready_s: float
    generation: int


class Play:
    """A session, and what carries it out.

    Parameters
    ----------
    session, executor
        Of one go from a checkpoint, or from the beginning.
    script
        Workers that come and go; what has happened is taken off it.
    enlist
        Makes a worker of a name and a speed.
    on_event
        Called with what is to be told.
    now_s
        When it begins.
    """

    def __init__(
        self,
        session: Session,
        executor: Executor,
        script: Script,
        enlist: Callable[[str, float], VirtualWorker],
        on_event: OnEvent,
        now_s: float,
    ) -> None:
        self.session, self.executor, self.script = session, executor, script
        self.now_s = now_s
        self._enlist, self._on_event = enlist, on_event
        self._newcomers: list[Newcomer] = []
        self._told = session.generation
        self._stop_reason = ""
        self._timed_out = -1  # the mega-batch in which the end of the time was noticed

    def stop(self, reason: str) -> None:
        """End the run at a merge, soon."""
        self._stop_reason = self._stop_reason or reason

    def speeds(self) -> dict[str, float]:
        """Return the speeds of all that are here, those that only get ready last."""
        workers = [*self.executor.workers.values(), *(new.worker for new in self._newcomers)]
        return {worker.name: worker.speed for worker in workers}

    def begin(self) -> list[orders.Order]:
        """Return the session's first orders."""
        workers = self.executor.workers
        devices = {name: worker.device for name, worker in workers.items()}
        pending = self.session.start(list(workers), self.now_s, devices)
        for worker in workers.values():
            self._note_budget(worker)
        return pending

    def carry_out(self, pending: list[orders.Order]) -> str:
        """Carry out orders; return why the session ended, or "" if it goes on."""
        for order in pending:
            if isinstance(order, orders.StopOrder):
                self._tell()
                return order.reason
            if isinstance(order, orders.RestartOrder):
                return RESTART
            self.executor.carry_out(order, self.now_s)
        self._tell()
        return ""

    def next_orders(self) -> list[orders.Order]:
        """Let the next thing happen; return what the session wants done about it."""
        if self._stop_reason:
            reason, self._stop_reason = self._stop_reason, ""
            return self.session.handle(orders.StopRequest(reason), self.now_s)
        times = [self.executor.next_s, self.script.next_s, self._ready_s(), self._deadline_s()]
        if min(times) == math.inf:
            raise RuntimeError(f"nothing is under way in stage {self.session.stage!r}")
        self.now_s = max(self.now_s, min(times))
        match times.index(min(times)):
            case 0:
                report = self.executor.finish_next()
                pending = [] if report is None else self.session.handle(report, self.now_s)
            case 1:
                pending = self._change(self.script.pop())
            case 2:
                pending = []
            case _:
                self._timed_out = self.session.generation
                pending = self.session.tick(self.now_s)
        return [*pending, *self._welcome()]

    def _ready_s(self) -> float:
        """When the next newcomer has its model; those that wait for a merge are past that."""
        times = (newcomer.ready_s for newcomer in self._newcomers)
        return min((ready_s for ready_s in times if ready_s > self.now_s), default=math.inf)

    def _deadline_s(self) -> float:
        """When the time of the run is up; infinite where that is no limit, or noticed already."""
        session = self.session
        limit_s = session.limits.train_s
        if not limit_s or session.stage != "train" or self._timed_out == session.generation:
            return math.inf
        done_s = sum(row["train_s"] + row["merge_s"] for row in session.history)
        due_s = session.log.untold_since_s + limit_s - done_s
        return math.ceil(due_s * 2**30) / 2**30  # a whole tick, not before it is up

    # ---------------------------------------------------------------- workers

    def _change(self, change: Change) -> list[orders.Order]:
        match change:
            case Arrival(_, name, speed):
                worker = self._enlist(name, speed)
                self._newcomers.append(Newcomer(worker, self.now_s, -1))
            case Loss(_, name) if name in self.executor.workers:
                return self._lose(change, name)
            case Loss(_, name):
                self._newcomers = [n for n in self._newcomers if n.worker.name != name]
        return []

    def _lose(self, loss: Loss, name: str) -> list[orders.Order]:
        """Tell the session of a loss, but first what cannot be undone any more."""
        settled_s = self.executor.settled_until(self.now_s)
        if settled_s > self.now_s:
            self.script.add(loss, settled_s)
            return []
        del self.executor.workers[name]
        self.executor.lose(name)
        self._on_event({"kind": "worker", "event": "lost", "worker": name, "at_s": self.now_s})
        if self.executor.is_model_lost:
            return [orders.RestartOrder()]
        return self.session.handle(WorkerLost(name), self.now_s)

    def _welcome(self) -> list[orders.Order]:
        """Let newcomers join that have the present model, unless a merge is under way."""
        pending: list[orders.Order] = []
        if self._newcomers:
            pending += self.session.handle(orders.Awaited(), self.now_s)
        for newcomer in list(self._newcomers):
            if newcomer.ready_s > self.now_s:
                continue
            if newcomer.generation != self.session.generation:
                self._send_for_model(newcomer)
            elif self.session.may_join:
                self._newcomers.remove(newcomer)
                pending += self._join(newcomer.worker)
        return pending

    def _send_for_model(self, newcomer: Newcomer) -> None:
        nbytes = 2 * newcomer.worker.member.current.nbytes
        network = self.executor.network
        newcomer.generation = self.session.generation
        takes_s = network.transfer_s(nbytes) + whole_ticks(network.latency_s + network.message_s)
        newcomer.ready_s = self.now_s + takes_s

    def _join(self, worker: VirtualWorker) -> list[orders.Order]:
        donor = next(iter(self.executor.workers.values())).member
        _, models = donor.host_models()
        worker.member.set_model(models["current"], models["previous"], donor.generation)
        self.executor.workers[worker.name] = worker
        event = {"kind": "worker", "event": "joined", "worker": worker.name, "at_s": self.now_s}
        self._on_event(event)
        pending = self.session.handle(WorkerJoined(worker.name, worker.device), self.now_s)
        self._note_budget(worker)
        return pending

    def _note_budget(self, worker: VirtualWorker) -> None:
        """Let the history tell what was found out on a GPU."""
        if worker.member.budget.step_s:
            self.session.note(worker.member.budget.event(worker.name))

    def _tell(self) -> None:
        """Tell what is new."""
        session = self.session
        for row in session.history[self._told : session.closed_rows]:
            self._on_event({"kind": "megabatch", "row": row})
        self._told = max(self._told, session.closed_rows)
