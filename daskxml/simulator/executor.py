"""Orders of a session, carried out in virtual time: what the Dask runtime does, in one process.

An order takes a message to its worker, its work, and a message back. Leases of a worker follow one
another, and one may wait at its door while another runs. The arithmetic of a lease is done when the
lease ends, so that a worker lost before has done none of it; a merge writes only scratch models
until all have the result, so that it is undone by forgetting it; a gang that is undone is begun
again from the global model (`GangOrder.rewinds`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daskxml.combine.messages import Worked
from daskxml.errors import ModelError, TrainingError
from daskxml.simulator.clock import Finished, run_programs
from daskxml.simulator.cost import Network, whole_ticks
from daskxml.simulator.worker import VirtualWorker
from daskxml.strategies.protocol import Measured
from daskxml.training import checkpoint, orders
from daskxml.training.member import Member
from daskxml.training.merging import merge_program
from daskxml.training.programs import PartResult, gang_program, needs_server
from daskxml.training.server import server_program
from daskxml.training.session import Session


@dataclass(frozen=True)
class Task:
    """Something under way.

    Attributes
    ----------
    end_s
        When its report is with the session.
    worker
        Who does it; None for what all do together.
    finish
        Does what is left to be done, and returns the report.
    settled_s
        From then on a loss does not undo it.
    """

    end_s: float
    worker: str | None
    finish: Callable[[], orders.Report]
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
        self._tasks: list[tuple[float, int, Task]] = []
        self._started = 0

    # ------------------------------------------------------------------- tasks

    @property
    def next_s(self) -> float:
        """When the next report comes; infinite if nothing is under way."""
        return self._tasks[0][0] if self._tasks else math.inf

    def finish_next(self) -> orders.Report:
        """Do what ends next, and return its report."""
        return heapq.heappop(self._tasks)[2].finish()

    def settled_until(self, now_s: float) -> float:
        """Return when what a loss at ``now_s`` must wait for is done."""
        ends = [task.end_s for _, _, task in self._tasks if task.settled_s <= now_s]
        return max(ends, default=now_s)

    def lose(self, worker: str) -> None:
        """Forget what a worker was doing, and what all were doing together."""
        self._tasks = [entry for entry in self._tasks if entry[2].worker not in (None, worker)]
        heapq.heapify(self._tasks)

    def _start(
        self,
        end_s: float,
        worker: str | None,
        finish: Callable[[], orders.Report],
        settled_s: float = math.inf,
    ) -> None:
        self._started += 1
        task = Task(end_s, worker, finish, settled_s)
        heapq.heappush(self._tasks, (end_s, self._started, task))

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
        worker = self.workers[order.worker]
        busy_s = worker.lease_s(order.batches, self.session.generation)
        worker.free_s = max(worker.free_s, begins_s + self._fetch_s(order)) + busy_s

        def finish() -> orders.Report:
            done = worker.member.lease(order.batches, order.lr, {})
            return orders.LeaseReport(order.lease, done.loss_sum, busy_s, done.nonzeros)

        self._start(worker.free_s + self._message_s, order.worker, finish)

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

    def _hosts(self, names: Mapping[str, Any] | tuple[str, ...]) -> tuple[str, ...]:
        return tuple(self.network.machine_of(rank) for rank in range(len(names)))

    def _merge(self, order: orders.MergeOrder, begins_s: float) -> None:
        members = [self.workers[name].member for name in order.weights]
        hosts = self._hosts(order.weights)
        programs = [
            merge_program(member, order, rank, hosts) for rank, member in enumerate(members)
        ]
        ends = run_programs(programs, lambda rank, batch: 0.0, self.network, begins_s)
        reduced_s = max(end.end_s for end in ends) + self._message_s

        def finish() -> orders.Report:
            for member in members:
                member.commit(order.generation)
            notes = orders.join_notes([end.result for end in ends])
            return orders.MergeReport(sum(end.sent_bytes for end in ends), notes)

        self._start(reduced_s + 2 * self._message_s, None, finish, settled_s=reduced_s)

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
        end_s = begins_s + worker.evaluate_s(order.pieces) + self._message_s

        def finish() -> orders.Report:
            sums = worker.member.evaluate(order.pieces, {})
            return orders.EvaluationReport(order.order, sums)

        self._start(end_s, order.worker, finish)

    def _checkpoint(self, order: orders.CheckpointOrder, begins_s: float) -> None:
        session, worker = self.session.plain(), self.workers[order.worker]
        member = worker.member
        nbytes = 2 * member.current.nbytes
        nbytes += sum(int(array.nbytes) for array in member.local_state().values())
        takes_s = whole_ticks(nbytes / worker.cost.storage_bytes_s)

        def finish() -> orders.Report:
            self._write(order, session, member)
            return orders.CheckpointReport()

        self._start(begins_s + takes_s + self._message_s, order.worker, finish)

    def _write(
        self, order: orders.CheckpointOrder, session: dict[str, Any], member: Member
    ) -> None:
        """Write a checkpoint, what each worker alone knows first; a full disk is no end."""
        assert self._store is not None
        run_dir, keep = self._store
        try:
            session["local"] = self._write_local(run_dir, order.megabatch)
            _, models = member.host_models()
            path = checkpoint.write_checkpoint(run_dir, order.megabatch, models, session, keep)
            self.stored = session, path
        except ModelError as error:
            self._warn(f"no checkpoint at mega-batch {order.megabatch}: {error.message}")
            checkpoint.drop_local(run_dir, order.megabatch)

    def _write_local(self, run_dir: Path, megabatch: int) -> dict[str, int]:
        """Return the number of every worker that has something to keep."""
        numbers = {}
        for number, worker in enumerate(self.workers.values()):
            state = worker.member.local_state()
            if state:
                checkpoint.write_local(run_dir, megabatch, number, state)
                numbers[worker.name] = number
        return numbers


def gang_results(ends: list[Finished], ranks: int) -> tuple[orders.GangResult, ...]:
    """Return what each rank did; a server's part is the first rank's, whose process runs it."""
    results = []
    for rank in range(ranks):
        parts = [ends[rank], *(ends[ranks:] if rank == 0 else [])]
        done: list[PartResult] = [part.result for part in parts]
        results.append(
            orders.GangResult(
                loss_sum=sum(part.loss_sum for part in done),
                nonzeros=sum(part.nonzeros for part in done),
                busy_s=ends[rank].busy_s,
                sent_bytes=sum(part.sent_bytes for part in parts),
                notes=orders.join_notes([part.notes for part in done]),
            )
        )
    return tuple(results)
