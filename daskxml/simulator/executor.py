"""Orders of a session, carried out in virtual time: what the Dask runtime does, in one process.

An order takes a message to its worker, its work, and a message back. Leases of a worker follow one
another, and one may wait at its door while another runs. The arithmetic of a batch is done when the
batch ends, so that a worker lost before has done none of it; a merge writes only scratch models
until all have the result, so that it is undone by forgetting it; a gang that is undone is begun
again from the global model (`GangOrder.rewinds`). A merge that overlaps with training takes the
replicas as they are when it is ordered, and corrects each as soon as its worker is at no batch.

Where all workers update one model, a batch of a worker with a copy of it is worked on when it
begins, from the model as it is then, and its change is held back until it ends: nobody sees it
before, and if the worker is lost nobody ever does. At equal times batches end before others begin,
and otherwise what was ordered first comes first.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from daskxml.combine.messages import Worked
from daskxml.errors import ModelError, TrainingError
from daskxml.simulator.clock import run_programs
from daskxml.simulator.cost import Network, whole_ticks
from daskxml.simulator.reports import gang_results, lease_report
from daskxml.simulator.saving import save
from daskxml.simulator.worker import VirtualWorker
from daskxml.strategies.protocol import Measured
from daskxml.training import orders
from daskxml.training.merging import merge_program
from daskxml.training.programs import gang_program, needs_server
from daskxml.training.results import LeaseResult
from daskxml.training.server import server_program
from daskxml.training.session import Session


@dataclass(frozen=True)
class Task:
    """Something under way.

    Attributes
    ----------
    end_s
        When its report is with the session, or a batch begins or ends.
    worker
        Who does it; None for what all do together.
    finish
        Does what is left to be done, and returns the report; None where there is none.
    settled_s
        From then on a loss does not undo it.
    """

    end_s: float
    worker: str | None
    finish: Callable[[], orders.Report | None]
    settled_s: float = math.inf


class Executor:
    """Carries out the orders of one session.

    Parameters
    ----------
    session
        Whose orders these are; read, never written to.
    workers
        Those that take part, by name; changed by whoever lets them come and go.
    network
        What messages cost.
    row_bytes
        Of a row that is fetched from another worker.
    store
        Run directory, and checkpoints to keep; None where nothing is written.
    warn
        Called with one line for the user.
    """

    def __init__(
        self,
        session: Session,
        workers: dict[str, VirtualWorker],
        network: Network,
        row_bytes: float,
        store: tuple[Path, int] | None,
        warn: Callable[[str], None],
    ) -> None:
        self.session, self.workers, self.network = session, workers, network
        self.stored: tuple[dict[str, Any], Path] | None = None  # last session and checkpoint
        self._row_bytes, self._store, self._warn = row_bytes, store, warn
        self._message_s = whole_ticks(network.message_s)
        self._tasks: list[tuple[float, bool, int, Task]] = []
        self._started = 0

    # ------------------------------------------------------------------- tasks

    @property
    def next_s(self) -> float:
        """When the next thing happens; infinite if nothing is under way."""
        return self._tasks[0][0] if self._tasks else math.inf

    @property
    def is_model_lost(self) -> bool:
        """Whether nobody is left on the machine of the model that all share."""
        members = [worker.member.settings for worker in self.workers.values()]
        return bool(members) and members[0].shares_model and not any(m.is_at_home for m in members)

    def finish_next(self) -> orders.Report | None:
        """Do what comes next, and return the report on it, if there is one."""
        return heapq.heappop(self._tasks)[-1].finish()

    def settled_until(self, now_s: float) -> float:
        """Return when what a loss at ``now_s`` must wait for is done."""
        ends = [task.end_s for *_, task in self._tasks if task.settled_s <= now_s]
        return max(ends, default=now_s)

    def lose(self, worker: str) -> None:
        """Forget what a worker was doing, and what all were doing together."""
        self._tasks = [entry for entry in self._tasks if entry[-1].worker not in (None, worker)]
        heapq.heapify(self._tasks)

    def _start(
        self,
        end_s: float,
        worker: str | None,
        finish: Callable[[], orders.Report | None],
        settled_s: float = math.inf,
        *,
        begins: bool = False,
    ) -> None:
        self._started += 1
        task = Task(end_s, worker, finish, settled_s)
        heapq.heappush(self._tasks, (end_s, begins, self._started, task))

    # ------------------------------------------------------------------ orders

    def carry_out(self, order: orders.Order, now_s: float) -> None:
        """Start what an order asks for."""
        begins_s = now_s + self._message_s
        match order:
            case orders.LeaseOrder():
                self._lease(order, begins_s)
            case orders.GangOrder():
                self._gang(order, begins_s)
            case orders.MeasureOrder():
                self._start(begins_s + self._message_s, None, lambda: self._measure(order))
            case orders.MergeOrder():
                self._merge(order, begins_s)
            case orders.EvaluateOrder():
                self._evaluate(order, begins_s)
            case orders.CheckpointOrder():
                self._checkpoint(order, begins_s)

    def _lease(self, order: orders.LeaseOrder, begins_s: float) -> None:
        worker, done = self.workers[order.worker], list[LeaseResult]()
        begun_s = end_s = max(worker.free_s, begins_s + self._fetch_s(order))
        ends_s = []
        for batch in order.batches:
            work = partial(worker.work, batch, order.lr, done)
            takes_s = worker.batch_s(batch, self.session.generation)
            if worker.has_copy:
                takes_s += 2 * self.network.transfer_s(worker.member.current.nbytes)
                self._start(end_s, worker.name, work, begins=True)
            end_s += takes_s
            ends_s.append(end_s)
            self._start(end_s, worker.name, worker.release if worker.has_copy else work)
        worker.free_s, busy_s = end_s, end_s - begun_s
        worker.book_lease(begun_s, ends_s)
        report = partial(lease_report, order.lease, busy_s, done)
        self._start(end_s + self._message_s, worker.name, report)

    def _fetch_s(self, order: orders.LeaseOrder) -> float:
        """Return how long the rows of shards that others hold are on their way."""
        placement = self.session.placement
        if placement.is_replicated:
            return 0.0
        own = set(placement.train_shards(order.worker))
        spans = (span for batch in order.batches for span in batch)
        rows = sum(span.rows for span in spans if span.stream not in own)
        return self.network.transfer_s(round(rows * self._row_bytes))

    def _measure(self, order: orders.MeasureOrder) -> orders.Report:
        norms = {name: self.workers[name].member.squared_norm() for name in order.workers}
        if not all(map(math.isfinite, norms.values())):
            raise TrainingError("the weights are not finite any more: lower strategy.lr")
        return Measured(norms, self.session.parameters)

    def _hosts(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(self.workers[name].member.settings.host for name in names)

    def _merge(self, order: orders.MergeOrder, begins_s: float) -> None:
        workers = [self.workers[name] for name in order.weights]
        if order.overlaps:
            for worker in workers:
                worker.take_snapshot(order)
        members, hosts = [worker.member for worker in workers], self._hosts(order.weights)
        programs = [
            merge_program(member, order, rank, hosts) for rank, member in enumerate(members)
        ]
        ends = run_programs(programs, lambda rank, batch: 0.0, self.network, begins_s)
        notes = orders.join_notes([end.result for end in ends])
        report = orders.MergeReport(sum(end.sent_bytes for end in ends), notes)
        reduced_s = max(end.end_s for end in ends) + self._message_s
        if order.overlaps:
            told_s = reduced_s + self._message_s
            correct = partial(self._correct, order, report, told_s)
            self._start(told_s, None, correct, settled_s=reduced_s)
            return

        def finish() -> orders.Report:
            for member in members:
                member.commit(order.generation)
            return report

        self._start(reduced_s + 2 * self._message_s, None, finish, settled_s=reduced_s)

    def _correct(self, order: orders.MergeOrder, report: orders.MergeReport, told_s: float) -> None:
        """Let each worker correct its replica as soon as it is at no batch; then tell."""
        workers = {name: self.workers[name] for name in order.weights}
        free_s = {name: worker.between_batches_s(told_s) for name, worker in workers.items()}
        for name, worker in workers.items():
            commit = partial(worker.member.commit, order.generation)
            self._start(free_s[name], None, commit, settled_s=told_s)
        done = {name: worker.batches_until(free_s[name]) for name, worker in workers.items()}
        end_s = max(free_s.values()) + self._message_s
        self._start(end_s, None, lambda: replace(report, corrected=done), settled_s=told_s)

    def _gang(self, order: orders.GangOrder, begins_s: float) -> None:
        workers = [self.workers[name] for name in order.workers]
        hosts, megabatch = self._hosts(order.workers), self.session.generation
        has_server = needs_server(order.scheme)
        programs = [
            gang_program(worker.member, order, rank, hosts, {})
            for rank, worker in enumerate(workers)
        ]
        if has_server:
            programs.append(server_program(workers[0].member, order))

        def work_s(rank: int, batch: Worked) -> float:
            return workers[rank].work_s(batch.rows, batch.nonzeros, megabatch)

        ends = run_programs(programs, work_s, self.network, begins_s, has_server=has_server)
        report = orders.GangReport(order.gang, gang_results(ends, len(workers)))
        self._start(max(end.end_s for end in ends) + self._message_s, None, lambda: report)

    def _evaluate(self, order: orders.EvaluateOrder, begins_s: float) -> None:
        worker = self.workers[order.worker]
        end_s = begins_s + worker.evaluate_s(order) + self._message_s

        def finish() -> orders.Report:
            sums = worker.member.evaluate(order.pieces, {})
            loss = worker.member.training_loss(order.train_pieces, {})
            return orders.EvaluationReport(order.order, sums, loss)

        self._start(end_s, order.worker, finish)

    def _checkpoint(self, order: orders.CheckpointOrder, begins_s: float) -> None:
        session, worker = self.session.plain(), self.workers[order.worker]
        member = worker.member
        nbytes = 2 * member.current.nbytes
        nbytes += sum(int(array.nbytes) for array in member.local_state().values())
        takes_s = whole_ticks(nbytes / worker.cost.storage_bytes_s)

        def finish() -> orders.Report:
            self._write(order, session)
            return orders.CheckpointReport()

        self._start(begins_s + takes_s + self._message_s, order.worker, finish)

    def _write(self, order: orders.CheckpointOrder, session: dict[str, Any]) -> None:
        """Write a checkpoint; a full disk is no end."""
        assert self._store is not None
        run_dir, keep = self._store
        members = {name: worker.member for name, worker in self.workers.items()}
        try:
            path = save(run_dir, order, session, members, keep)
            self.stored = session, path
        except ModelError as error:
            self._warn(f"no checkpoint at mega-batch {order.megabatch}: {error.message}")
