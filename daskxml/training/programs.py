"""What a worker does in a gang, scheme by scheme, as a program of messages and batches.

Each program is one rank's; the cluster drives it over its connections, the simulator on a virtual
clock. The parameter server of the schemes that have one is in `daskxml.training.server`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from daskxml.combine import combine_changes, ring_all_reduce
from daskxml.combine.messages import Flush, Program, Receive, Send, Worked
from daskxml.strategies.schemes import (
    Asynchronous,
    Averaging,
    Central,
    LocalSteps,
    Mirrored,
    Scheme,
)
from daskxml.training.holdings import Fetched
from daskxml.training.ledger import Span
from daskxml.training.member import Member
from daskxml.training.orders import GangOrder
from daskxml.training.results import StepResult
from daskxml.types import Array

Batch = Sequence[Span]


@dataclass
class PartResult:
    """What one rank did in a gang: sums over its rows, and what is worth telling.

    ``notes`` go by name and are (sum, count).
    """

    loss_sum: float = 0.0
    nonzeros: int = 0
    notes: dict[str, tuple[float, int]] = field(default_factory=dict)

    def book(self, step: StepResult) -> Worked:
        """Add a batch; return what there is to tell of it."""
        self.loss_sum += step.loss_sum
        self.nonzeros += step.nonzeros
        return Worked(step.rows, step.nonzeros)

    def note(self, name: str, value: float) -> None:
        """Add one value."""
        total, count = self.notes.get(name, (0.0, 0))
        self.notes[name] = total + value, count + 1


@dataclass(frozen=True)
class Part:
    """One rank's part in a gang."""

    member: Member
    order: GangOrder
    rank: int
    hosts: tuple[str, ...]
    fetched: Fetched

    @property
    def ranks(self) -> int:
        """Workers in the gang."""
        return len(self.order.workers)

    @property
    def lr(self) -> float:
        """This rank's learning rate, before the schedule."""
        return self.order.lrs[self.rank]

    def batch(self, step: int) -> Batch | None:
        """Return this rank's batch of a step; None where it is through."""
        batches = self.order.batches[self.rank]
        return batches[step] if step < len(batches) else None


def needs_server(scheme: Scheme) -> bool:
    """Whether a scheme has a parameter server, which the first rank's process runs beside it."""
    return isinstance(scheme, Central | Asynchronous)


def gang_program(
    member: Member, order: GangOrder, rank: int, hosts: tuple[str, ...], fetched: Fetched
) -> Program[PartResult]:
    """Return one rank's part in a gang.

    Parameters
    ----------
    member
        Whose replica it is.
    hosts
        The machine of every rank.
    fetched
        Rows that this worker does not hold.
    """
    part = Part(member, order, rank, hosts, fetched)
    if order.rewinds:
        member.rewind()
    result = yield from _program_of(part)
    most_rows = member.stepper.news_of_memory()
    if most_rows:
        result.note("memory rows", most_rows)
    return result


def _program_of(part: Part) -> Program[PartResult]:
    match part.order.scheme:
        case Mirrored():
            return (yield from _mirrored(part))
        case LocalSteps(steps):
            return (yield from _local_steps(part, steps))
        case Averaging() as scheme:
            return (yield from _averaging(part, scheme))
        case Central():
            return (yield from _central(part))
        case Asynchronous():
            return (yield from _asynchronous(part))


def mean_weights(order: GangOrder, step: int) -> list[float]:
    """Return each rank's share of the rows of a step."""
    rows = order.step_rows(step)
    return [count / sum(rows) for count in rows]


def step_rate(member: Member, order: GangOrder, step: int) -> float:
    """Return the rate of a step that all ranks take together: the same on every rank."""
    rank = next(rank for rank, rows in enumerate(order.step_rows(step)) if rows)
    return member.scheduled(order.lrs[rank], order.batches[rank][step])


def _gradient(part: Part, step: int, result: PartResult) -> Program[None]:
    """Put this rank's mean gradient into the member's buffer; zero where it has no batch."""
    batch = part.batch(step)
    if batch is None:
        part.member.gradient.clear()
        return
    yield result.book(part.member.find_gradient(batch, part.lr, part.fetched))


def _mirrored(part: Part) -> Program[PartResult]:
    """Gradient aggregation: combine the gradients of all, and let everyone apply the result."""
    member, result = part.member, PartResult()
    for step in range(part.order.steps):
        yield from _gradient(part, step, result)
        gradient = member.gradient.flat
        yield from _combine(part, gradient, mean_weights(part.order, step), result)
        rate = step_rate(member, part.order, step)
        member.replica.apply(member.layout.views(gradient), rate)
    return result


def _combine(
    part: Part, change: Array, weights: Sequence[float], result: PartResult
) -> Program[None]:
    """Turn ``change`` into what the run's rule makes of every rank's, in place."""
    member = part.member
    found = yield from combine_changes(
        part.rank,
        part.hosts,
        change,
        weights,
        segments_of(member),
        member.kernels,
        member.settings.combine,
        member.settings.rule,
        member.scratch,
    )
    if part.rank == 0:
        for layer, value in found.items():
            result.note(f"orthogonality/{layer}", value)


def segments_of(member: Member) -> list[tuple[str, int, int]]:
    """Return every parameter's place in the flat array: name, start, stop."""
    slots = member.layout.slots.items()
    return [(name, slot.offset, slot.offset + slot.size) for name, slot in slots]


def _local_steps(part: Part, steps: int) -> Program[PartResult]:
    """Let replicas step on their own, then combine how they changed (Adasum, section 5.2)."""
    member, order, result = part.member, part.order, PartResult()
    kernels, flat = member.kernels, member.replica.flat
    base, change = member.array("base"), member.array("change")
    kernels.copy(base, flat)
    for step in range(order.steps):
        batch = part.batch(step)
        if batch is not None:
            yield result.book(member.step(batch, part.lr, part.fetched))
        if (step + 1) % steps and step + 1 < order.steps:
            continue
        kernels.weigh_two(change, flat, 1.0, base, -1.0)
        first = step - step % steps
        rows = np.sum([order.step_rows(s) for s in range(first, step + 1)], axis=0)
        yield from _combine(part, change, [float(count / rows.sum()) for count in rows], result)
        kernels.weigh_two(flat, base, 1.0, change, 1.0)
        kernels.copy(base, flat)
    return result


def _averaging(part: Part, scheme: Averaging) -> Program[PartResult]:
    """CROSSBOW's synchronous model averaging (Kolios et al. 2019, Algorithm 1).

    The corrections of a step are taken from the replicas before it. ``center`` is z, and
    ``center before`` the one of the step before, whose place the correction takes once it has
    served.
    """
    member, result, kernels = part.member, PartResult(), part.member.kernels
    flat = member.replica.flat
    if part.order.begins:
        kernels.copy(member.array("center"), member.current)
        kernels.copy(member.array("center before"), member.previous)
    if scheme.restarts:
        kernels.copy(flat, member.array("center"))
    for step in range(part.order.steps):
        batch = part.batch(step)
        center, before = member.array("center"), member.array("center before")
        yield from _move_center(part, scheme, center, before)
        kernels.weigh_two(before, flat, scheme.pull, center, -scheme.pull)
        if batch is not None:
            yield result.book(member.step(batch, part.lr, part.fetched))
        kernels.add_scaled(flat, before, -1.0)
        kernels.copy(before, center)
        kernels.copy(center, member.scratch)
    return result


def _move_center(part: Part, scheme: Averaging, center: Array, before: Array) -> Program[None]:
    """Write ``z + sum pull (w_i - z) + momentum (z - z before)`` into the scratch model."""
    out, kernels = part.member.scratch, part.member.kernels
    stays = 1.0 - scheme.pull * part.ranks + scheme.momentum

    def finish(piece: slice) -> None:
        kernels.add_two(out[piece], center[piece], stays, before[piece], -scheme.momentum)

    flat = part.member.replica.flat
    yield from ring_all_reduce(part.rank, part.ranks, out, flat, scheme.pull, kernels, finish)


def _central(part: Part) -> Program[PartResult]:
    """Push a gradient to the server and pull the new model, step by step."""
    member, result = part.member, PartResult()
    for step in range(part.order.steps):
        yield from _gradient(part, step, result)
        yield Send(part.ranks, member.gradient.flat)
        yield Receive(part.ranks, member.replica.flat)
        yield Flush()
    return result


def _asynchronous(part: Part) -> Program[PartResult]:
    """Pull a model, push its gradient; the server answers when this worker may go on."""
    member, result = part.member, PartResult()
    yield Send(part.ranks, np.zeros(1))  # so that the server listens to this rank
    for step, _ in enumerate(part.order.batches[part.rank]):
        yield Receive(part.ranks, member.replica.flat)
        yield from _gradient(part, step, result)
        yield Send(part.ranks, member.gradient.flat)
        yield Flush()
    return result
