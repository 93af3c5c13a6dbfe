"""The programs of a gang's ranks, pattern by pattern, made of messages and batches.

The cluster runs each rank's program over its channels, the simulator all on virtual clocks.

A parameter server runs in the process of the first rank, beside that rank's own program, with a
model and an optimizer of its own. A synchronous one (`Central`) applies one combined gradient a
step. An asynchronous one applies each gradient when it arrives, and lets a worker continue while it
is at most so many batches ahead of the slowest (stale synchronous parallel: Ho et al., "More
Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daskxml.collectives.adasum import Vector
from daskxml.collectives.combine import combine_changes
from daskxml.collectives.messages import (
    Flush,
    Program,
    ProgramResult,
    Receive,
    ReceiveAny,
    Send,
    Worked,
)
from daskxml.collectives.ring import all_reduce
from daskxml.core.arrays import Array
from daskxml.core.work_stats import Means, WorkStats, merge_means, sum_stats
from daskxml.session.commands import RunWork
from daskxml.strategies.protocol import (
    Asynchronous,
    Averaging,
    Central,
    LocalSteps,
    Mirrored,
    SyncPattern,
)
from daskxml.worker.resident_rows import Batch, Fetched
from daskxml.worker.training_worker import TrainingWorker


@dataclass(frozen=True)
class Role:
    """One rank's part in a gang."""

    worker: TrainingWorker
    command: RunWork
    rank: int
    hosts: tuple[str, ...]
    fetched: Fetched

    @property
    def ranks(self) -> int:
        """Workers in the gang."""
        return len(self.command.workers)

    @property
    def lr(self) -> float:
        """This rank's learning rate, before the schedule."""
        return self.command.lrs[self.rank]

    def batch(self, step: int) -> Batch | None:
        """Return this rank's batch of a step; None where it has no more."""
        batches = self.command.batches[self.rank]
        return batches[step] if step < len(batches) else None


def _count(result: WorkStats, step: WorkStats) -> Worked:
    """Add a batch to a rank's result; return the work by which a virtual clock advances."""
    result += step
    return Worked(step.rows, step.nonzeros)


def needs_server(pattern: SyncPattern | None) -> bool:
    """Whether a pattern has a parameter server, which runs in the first rank's process."""
    return isinstance(pattern, Central | Asynchronous)


def gang_program(
    worker: TrainingWorker, command: RunWork, rank: int, hosts: tuple[str, ...], fetched: Fetched
) -> Program[WorkStats]:
    """Return one rank's part in a gang.

    Parameters
    ----------
    hosts
        The machine of every rank.
    fetched
        Rows that are not resident on this worker.
    """
    role = Role(worker, command, rank, hosts, fetched)
    if command.rewinds:
        worker.rewind()
    result = yield from _program_of(role)
    most_rows = worker.runner.new_memory_bound()
    if most_rows:
        result.observe("memory rows", most_rows)
    return result


def _program_of(role: Role) -> Program[WorkStats]:
    pattern = role.command.pattern
    assert pattern is not None, "a lease has no program"
    match pattern:
        case Mirrored():
            return (yield from _mirrored(role))
        case LocalSteps(steps):
            return (yield from _local_steps(role, steps))
        case Averaging() as pattern:
            return (yield from _averaging(role, pattern))
        case Central():
            return (yield from _central(role))
        case Asynchronous():
            return (yield from _asynchronous(role))


def rank_stats(parts: Sequence[ProgramResult[WorkStats]]) -> WorkStats:
    """Return the stats of a rank's program, and of the server where that ran beside it.

    The server adds the bytes that it sent, and its means.
    """
    stats = sum_stats(part.result for part in parts)
    stats.busy_s = parts[0].busy_s
    stats.sent_bytes = sum(part.sent_bytes for part in parts)
    return stats


def mean_weights(command: RunWork, step: int) -> list[float]:
    """Return each rank's share of the rows of a step."""
    rows = command.step_rows(step)
    return [count / sum(rows) for count in rows]


def step_rate(worker: TrainingWorker, command: RunWork, step: int) -> float:
    """Return the rate of a step that all ranks take together: the same on every rank."""
    rank = next(rank for rank, rows in enumerate(command.step_rows(step)) if rows)
    return worker.runner.scheduled(command.lrs[rank], command.batches[rank][step])


def _gradient(role: Role, step: int, result: WorkStats) -> Program[None]:
    """Put this rank's mean gradient into the worker's buffer; zero where it has no batch."""
    batch = role.batch(step)
    if batch is None:
        role.worker.gradient.clear()
        return
    buffer, runner = role.worker.gradient, role.worker.runner
    yield _count(result, runner.gradient(batch, buffer, role.lr, role.fetched))


def _mirrored(role: Role) -> Program[WorkStats]:
    """Gradient aggregation: combine the gradients of all ranks; every rank applies the result."""
    worker, result = role.worker, WorkStats()
    for step in range(role.command.steps):
        yield from _gradient(role, step, result)
        gradient = worker.gradient.flat
        yield from _combine(role, gradient, mean_weights(role.command, step), result)
        rate = step_rate(worker, role.command, step)
        worker.replica.apply(worker.layout.views(gradient), rate)
    return result


def combine_among_ranks(
    worker: TrainingWorker, rank: int, hosts: tuple[str, ...], change: Array,
    weights: Sequence[float],
) -> Program[Means]:  # fmt: skip
    """Replace every rank's ``change`` by what the run's rule makes of all of them, in place.

    Return the rule's means, on the first rank only.
    """
    config, slots = worker.settings.config, worker.layout.slots.items()
    spans = [(name, slot.offset, slot.offset + slot.size) for name, slot in slots]
    combine, kernels = config.combine, worker.kernels
    own = Vector(rank, change, spans, kernels, combine.transfer, worker.scratch)
    found = yield from combine_changes(own, hosts, weights, combine, config.rule)
    return {f"orthogonality/{layer}": (value, 1) for layer, value in found.items() if rank == 0}


def _combine(
    role: Role, change: Array, weights: Sequence[float], result: WorkStats
) -> Program[None]:
    means = yield from combine_among_ranks(role.worker, role.rank, role.hosts, change, weights)
    result.means = merge_means([result.means, means])


def _local_steps(role: Role, steps: int) -> Program[WorkStats]:
    """Step every replica on its own, then combine their changes (Adasum, section 5.2)."""
    worker, command, result = role.worker, role.command, WorkStats()
    kernels, flat = worker.kernels, worker.replica.flat
    base, change = worker.array("base"), worker.array("change")
    kernels.copy(base, flat)
    for step in range(command.steps):
        batch = role.batch(step)
        if batch is not None:
            yield _count(result, worker.runner.step(batch, role.lr, role.fetched))
        if (step + 1) % steps and step + 1 < command.steps:
            continue
        kernels.axpby(change, flat, 1.0, base, -1.0)
        first = step - step % steps
        rows = np.sum([command.step_rows(s) for s in range(first, step + 1)], axis=0)
        yield from _combine(role, change, [float(count / rows.sum()) for count in rows], result)
        kernels.axpby(flat, base, 1.0, change, 1.0)
        kernels.copy(base, flat)
    return result


def _averaging(role: Role, pattern: Averaging) -> Program[WorkStats]:
    """CROSSBOW's synchronous model averaging (Kolios et al. 2019, Algorithm 1).

    The corrections of a step are computed from the replicas before it. ``center`` is z, and
    ``center before`` that of the step before, which the correction overwrites after its last use.
    """
    worker, result, kernels = role.worker, WorkStats(), role.worker.kernels
    flat = worker.replica.flat
    if role.command.begins:
        kernels.copy(worker.array("center"), worker.current)
        kernels.copy(worker.array("center before"), worker.previous)
    for step in range(role.command.steps):
        batch = role.batch(step)
        center, before = worker.array("center"), worker.array("center before")
        yield from _move_center(role, pattern, center, before)
        kernels.axpby(before, flat, pattern.pull, center, -pattern.pull)
        if batch is not None:
            yield _count(result, worker.runner.step(batch, role.lr, role.fetched))
        kernels.add_scaled(flat, before, -1.0)
        kernels.copy(before, center)
        kernels.copy(center, worker.scratch)
    return result


def _move_center(role: Role, pattern: Averaging, center: Array, before: Array) -> Program[None]:
    """Write ``z + sum pull (w_i - z) + momentum (z - z before)`` into the scratch model."""
    out, kernels = role.worker.scratch, role.worker.kernels
    stays = 1.0 - pattern.pull * role.ranks + pattern.momentum

    def finish(piece: slice) -> None:
        kernels.add_two(out[piece], center[piece], stays, before[piece], -pattern.momentum)

    flat = role.worker.replica.flat
    yield from all_reduce(role.rank, role.ranks, out, flat, pattern.pull, kernels, finish)


def _central(role: Role) -> Program[WorkStats]:
    """Push a gradient to the server and pull the new model, step by step."""
    worker, result = role.worker, WorkStats()
    for step in range(role.command.steps):
        yield from _gradient(role, step, result)
        yield Send(role.ranks, worker.gradient.flat)
        yield Receive(role.ranks, worker.replica.flat)
        yield Flush()
    return result


def _asynchronous(role: Role) -> Program[WorkStats]:
    """Pull a model, push its gradient; the server answers when this worker may continue."""
    worker, result = role.worker, WorkStats()
    yield Send(role.ranks, np.zeros(1))  # the server considers only ranks that it has a message of
    for step, _ in enumerate(role.command.batches[role.rank]):
        yield Receive(role.ranks, worker.replica.flat)
        yield from _gradient(role, step, result)
        yield Send(role.ranks, worker.gradient.flat)
        yield Flush()
    return result


def server_program(worker: TrainingWorker, command: RunWork) -> Program[WorkStats]:
    """Return the server's part in a gang; its rank follows the last worker's.

    ``worker`` is that of the first rank, in whose process the server runs.
    """
    server = _Server(worker, command)
    if isinstance(command.pattern, Asynchronous):
        return (yield from server.serve_each(command.pattern.staleness))
    return (yield from server.serve_all())


class _Server:
    """The model that a gang's workers share, and the optimizer that changes it."""

    def __init__(self, worker: TrainingWorker, command: RunWork) -> None:
        self.worker, self.command, self.kernels = worker, command, worker.kernels
        self.ranks = len(command.workers)
        self.center, self.inbox = worker.array("center"), worker.array("inbox")
        self.optimizer = worker.server_optimizer
        if command.rewinds:
            self.optimizer.reset()
        if command.begins:
            self.kernels.copy(self.center, worker.current)

    def serve_all(self) -> Program[WorkStats]:
        """Answer every rank at every step, with all gradients applied, which are added by rank."""
        total = self.worker.array("total")
        for step in range(self.command.steps):
            self.kernels.fill(total, 0.0)
            for rank, weight in enumerate(self._weights(step)):
                yield Receive(rank, self.inbox)
                self.kernels.add_scaled(total, self.inbox, weight)
            self._apply(total, step_rate(self.worker, self.command, step))
            for rank in range(self.ranks):
                yield Send(rank, self.center)
            yield Flush()
        return WorkStats()

    def _weights(self, step: int) -> list[float]:
        is_sum = self.worker.settings.config.rule == "sum"
        return [1.0] * self.ranks if is_sum else mean_weights(self.command, step)

    def serve_each(self, staleness: int) -> Program[WorkStats]:
        """Apply each gradient as it arrives; answer ranks not too far ahead of the slowest."""
        result = WorkStats()
        left = [len(batches) for batches in self.command.batches]
        done, pulled = [0] * self.ranks, [0] * self.ranks  # batches; versions of the model
        version = 0
        for rank in range(self.ranks):
            yield Receive(rank, np.zeros(1))
        waiting = set(range(self.ranks))
        while True:
            slowest = min((done[r] for r in range(self.ranks) if left[r]), default=0)
            for rank in sorted(waiting):
                if left[rank] and (staleness < 0 or done[rank] - slowest <= staleness):
                    yield Send(rank, self.center)
                    pulled[rank] = version
                    waiting.remove(rank)
            yield Flush()
            if not any(left):
                return result
            rank = yield ReceiveAny(self.inbox)
            result.observe("staleness", version - pulled[rank])
            self._apply(self.inbox, self._rate(rank, done[rank]))
            version, done[rank], left[rank] = version + 1, done[rank] + 1, left[rank] - 1
            waiting.add(rank)

    def _rate(self, rank: int, batch: int) -> float:
        return self.worker.runner.scheduled(
            self.command.lrs[rank], self.command.batches[rank][batch]
        )

    def _apply(self, gradient: Array, rate: float) -> None:
        self.optimizer.begin_step()
        self.optimizer.apply(self.worker.layout.views(gradient), rate)
