"""A session's commands executed in this process, in real or in virtual time.

In real time a command is done in its turn, and takes as long as it takes. In virtual time it takes
a message to its worker, its work, and a message back. Leases of a worker follow one another, and
one may wait at the worker while another runs. A batch is computed when it ends, so a worker that is
lost before leaves nothing of it; a merge writes only scratch models until all workers have the
result, so it is undone by forgetting it; a gang that is undone begins again from the global model
(`RunWork.rewinds`).

A worker with a copy of a shared model computes a batch when it begins, from the model at that time,
and its change is pending until the batch ends: other workers cannot read it before, and a loss of
the worker drops it. At equal times batches end before others begin; otherwise earlier commands come
first.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from daskxml.collectives.messages import Worked
from daskxml.core.errors import ModelError
from daskxml.core.work_stats import WorkStats, merge_means, sum_stats
from daskxml.local.clock import Clock
from daskxml.local.cost import Network, whole_ticks
from daskxml.local.worker import LocalWorker
from daskxml.records import checkpoint
from daskxml.session import commands
from daskxml.session.session import Session
from daskxml.strategies.protocol import Measure, Measured
from daskxml.worker.evaluation import evaluate, training_loss
from daskxml.worker.gang_programs import gang_program, needs_server, rank_stats, server_program
from daskxml.worker.merge_program import merge_program


@dataclass(frozen=True)
class Task:
    """Work under way, a message included.

    Attributes
    ----------
    end_s
        When the session has the result, or a batch begins or ends.
    workers
        Who take part: the loss of one undoes it.
    finish
        Does the computation; returns the result, None where there is none yet.
    settled_s
        From then on a loss does not undo it.
    is_lease
        It is one worker's own, for which nobody waits.
    """

    end_s: float
    workers: Collection[str]
    finish: Callable[[], commands.Result | None]
    settled_s: float = math.inf
    is_lease: bool = False


class LocalExecutor:
    """Executes the commands of one session.

    Parameters
    ----------
    session
        The source of the commands, which is only read.
    workers
        By name; `daskxml.local.driver` adds those that join.
    clock
        Virtual, or real: then there is one worker.
    network
        Costs of messages.
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
        workers: dict[str, LocalWorker],
        clock: Clock,
        network: Network,
        row_bytes: float,
        store: tuple[Path, int] | None,
        warn: Callable[[str], None],
    ) -> None:
        self.session, self.workers, self.clock, self.network = session, workers, clock, network
        self.stored: tuple[dict[str, Any], Path] | None = None  # last session and checkpoint
        self._row_bytes, self._store, self._warn = row_bytes, store, warn
        self._message_s = whole_ticks(network.message_s)
        self._tasks: list[tuple[float, bool, int, Task]] = []
        self._started = 0

    # ------------------------------------------------------------------- tasks

    @property
    def next_s(self) -> float:
        """When the next task ends; infinite if none is under way."""
        return self._tasks[0][0] if self._tasks else math.inf

    def finish_next(self) -> commands.Result | None:
        """Finish the task that ends first; return its result, if it has one."""
        return heapq.heappop(self._tasks)[-1].finish()

    def settled_until(self, now_s: float) -> float:
        """Return the end of the tasks that a loss at ``now_s`` cannot undo any more."""
        ends = [task.end_s for *_, task in self._tasks if task.settled_s <= now_s]
        return max(ends, default=now_s)

    def freeze(self, worker: str, seconds: float) -> None:
        """Let a worker, and what it takes part in, stand still for so long."""
        if worker not in self.workers:
            return
        frozen, now_s = self.workers[worker], self.clock.now_s
        wakes_s = max(frozen.wakes_s, now_s + seconds)
        for place, (end_s, begins, number, task) in enumerate(self._tasks):
            if worker not in task.workers or task.settled_s <= now_s:
                continue
            # Those of them that are frozen have delayed it already.
            goes_on_s = max(now_s, *(self.workers[name].wakes_s for name in task.workers))
            delay_s = max(0.0, wakes_s - goes_on_s)
            later = replace(task, end_s=end_s + delay_s, settled_s=task.settled_s + delay_s)
            self._tasks[place] = later.end_s, begins, number, later
        heapq.heapify(self._tasks)
        frozen.free_s = max(frozen.free_s, now_s) + wakes_s - max(frozen.wakes_s, now_s)
        frozen.wakes_s = wakes_s

    def give_up(self, worker: str) -> None:
        """Undo what others wait for a silent worker with; its leases go on."""
        self._tasks = [
            entry for entry in self._tasks
            if worker not in (task := entry[-1]).workers or task.is_lease
        ]  # fmt: skip
        heapq.heapify(self._tasks)

    def remove(self, worker: str) -> None:
        """Forget a lost worker and its work."""
        del self.workers[worker]
        self._tasks = [entry for entry in self._tasks if worker not in entry[-1].workers]
        heapq.heapify(self._tasks)

    def _start(
        self,
        end_s: float,
        workers: Collection[str],
        finish: Callable[[], commands.Result | None],
        settled_s: float = math.inf,
        *,
        begins: bool = False,
        is_lease: bool = False,
    ) -> None:
        self._started += 1
        task = Task(end_s, workers, finish, settled_s, is_lease)
        heapq.heappush(self._tasks, (end_s, begins, self._started, task))

    # ---------------------------------------------------------------- commands

    def execute(self, command: commands.Command) -> None:
        """Start a command."""
        now_s = self.clock.now_s
        begins_s = now_s + self._message_s
        if isinstance(command, commands.MergeReplicas | Measure):
            names = (
                command.weights if isinstance(command, commands.MergeReplicas) else command.workers
            )
            begins_s = max(begins_s, *(self.workers[name].wakes_s for name in names))
        match command:
            case commands.RunWork() if command.is_lease:
                self._lease(command, begins_s)
            case commands.RunWork():
                self._gang(command, begins_s)
            case Measure():
                ends_s = begins_s + self._message_s
                self._start(ends_s, command.workers, lambda: self._measure(command))
            case commands.MergeReplicas():
                self._merge(command, begins_s)
            case commands.Evaluate():
                self._evaluate(command, begins_s)
            case commands.WriteCheckpoint():
                self._checkpoint(command, begins_s)
            case commands.KeepBest():
                ends_s = begins_s + self._message_s
                keep = partial(self._keep_best, command)
                self._start(ends_s, tuple(self.workers), keep, settled_s=now_s)

    def _lease(self, command: commands.RunWork, begins_s: float) -> None:
        (name,), generation = command.workers, self.session.generation
        worker, done = self.workers[name], list[WorkStats]()
        start = partial(self._start, workers=command.workers, is_lease=True)
        begun_s = end_s = max(worker.free_s, begins_s + self._fetch_s(command))
        pieces = [
            (*piece, lr)
            for batches, lr in command.rated
            for piece in worker.pieces(batches, generation)
        ]
        for together, takes_s, lr in pieces:
            work = partial(worker.work, together, lr, done)
            if worker.has_copy:
                takes_s += self.network.transfer_s(worker.training.model_bytes)
                start(end_s, finish=work, begins=True)
            end_s += takes_s
            start(end_s, finish=worker.release if worker.has_copy else work)
        worker.free_s, busy_s = end_s, end_s - begun_s

        def finish() -> commands.Result:
            work = sum_stats(done)
            work.busy_s = busy_s if worker.is_virtual else work.busy_s
            return commands.WorkResult(command.number, (work,))

        start(end_s + self._message_s, finish=finish)

    def _fetch_s(self, command: commands.RunWork) -> float:
        """Return the transfer time of rows that are resident on other workers."""
        placement = self.session.placement
        if placement.is_replicated:
            return 0.0
        own = set(placement.train_shards(command.workers[0]))
        spans = (span for batch in command.batches[0] for span in batch)
        rows = sum(span.rows for span in spans if span.stream not in own)
        return self.network.transfer_s(round(rows * self._row_bytes))

    def _measure(self, command: Measure) -> commands.Result:
        norms = {name: self.workers[name].training.squared_norm() for name in command.workers}
        return Measured(norms, self.session.parameters)

    def _hosts(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(self.workers[name].training.settings.slot.host for name in names)

    def _merge(self, command: commands.MergeReplicas, begins_s: float) -> None:
        workers = [self.workers[name] for name in command.weights]
        hosts = self._hosts(command.weights)
        programs = [
            merge_program(worker.training, command, rank, hosts)
            for rank, worker in enumerate(workers)
        ]
        ends = self.clock.run(programs, lambda rank, batch: 0.0, self.network, begins_s)
        means = merge_means(end.result for end in ends)
        result = commands.MergeResult(sum(end.sent_bytes for end in ends), means)
        reduced_s = max(end.end_s for end in ends) + self._message_s

        def finish() -> commands.Result:
            for worker in workers:
                worker.training.commit(command.generation)
            return result

        self._start(reduced_s + 2 * self._message_s, command.weights, finish, settled_s=reduced_s)

    def _gang(self, command: commands.RunWork, begins_s: float) -> None:
        workers = [self.workers[name] for name in command.workers]
        hosts, megabatch = self._hosts(command.workers), self.session.generation
        programs = [
            gang_program(worker.training, command, rank, hosts, {})
            for rank, worker in enumerate(workers)
        ]
        machines = list(range(len(workers)))
        if needs_server(command.pattern):
            programs.append(server_program(workers[0].training, command))
            machines.append(0)

        def work_s(rank: int, batch: Worked) -> float:
            return workers[rank].work_s(batch, megabatch)

        ends = self.clock.run(programs, work_s, self.network, begins_s, machines)
        ranks = [rank_stats([end]) for end in ends[: len(workers)]]
        ranks[0] = rank_stats([ends[0], *ends[len(workers) :]])  # its process runs the server
        result = commands.WorkResult(command.number, tuple(ranks))
        ends_s = max(end.end_s for end in ends) + self._message_s
        self._start(ends_s, command.workers, lambda: result)

    def _evaluate(self, command: commands.Evaluate, begins_s: float) -> None:
        worker = self.workers[command.worker]
        end_s = begins_s + worker.evaluate_s(command) + self._message_s

        def finish() -> commands.Result:
            sums = evaluate(worker.training, command.pieces, {})
            loss = training_loss(worker.training, command.train_pieces, {})
            return commands.EvaluationResult(command.number, sums, loss)

        self._start(end_s, (command.worker,), finish)

    def _checkpoint(self, command: commands.WriteCheckpoint, begins_s: float) -> None:
        session, worker = self.session.plain(), self.workers[command.worker]
        nbytes = worker.training.model_bytes
        nbytes += sum(int(array.nbytes) for array in worker.training.local_state().values())
        takes_s = worker.write_s(nbytes)

        def finish() -> commands.Result:
            self._write(command, session)
            return commands.CheckpointWritten()

        self._start(begins_s + takes_s + self._message_s, (command.worker,), finish)

    def current(self) -> list[LocalWorker]:
        """Return the workers that are not late."""
        return [self.workers[name] for name in self.session.present()]

    def _keep_best(self, command: commands.KeepBest) -> commands.Result:
        for worker in self.current():
            worker.training.keep_best(command.megabatch)
        return commands.BestKept()

    def _write(self, command: commands.WriteCheckpoint, session: dict[str, Any]) -> None:
        """Write a checkpoint, local states first; a full disk does not end the run."""
        assert self._store is not None
        run_dir, keep = self._store
        session["local"] = {}
        try:
            for number, worker in enumerate(self.current()):
                if state := worker.training.local_state():
                    checkpoint.write_local(run_dir, command.megabatch, number, state)
                    session["local"][worker.name] = number
            _, models = self.workers[command.worker].training.host_models()
            written = run_dir, command.megabatch, models, json.dumps(session), keep
            self.stored = session, checkpoint.write_checkpoint(*written)
        except ModelError as error:
            checkpoint.drop_local(run_dir, command.megabatch)
            self._warn(f"no checkpoint at mega-batch {command.megabatch}: {error.message}")
