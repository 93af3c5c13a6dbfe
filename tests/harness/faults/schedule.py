"""Schedules of faults: drawn from a seed, told in words, and shrunk to the faults that matter.

A fault happens at a numbered step of a run: the start of a task or of a batch, the arrival of a
message or of a report, or just before the disk is changed. So it falls into the smallest gaps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

STRATEGIES = (
    "adaptive-sgd", "elastic", "static",
    "mirrored", "central", "asynchronous", "crossbow", "adasum",
)  # fmt: skip
LEASING = ("adaptive-sgd", "elastic", "static")  # whose merges may overlap with training
STEPS = 500  # of a run without faults, about

KINDS = {  # how often, and in words
    "kill": (8, "worker #{pick} dies, noticed after {amount:.3g} s"),
    "kill here": (6, "the worker of this step dies, noticed after {amount:.3g} s"),
    "kill all": (1, "all workers die at once"),
    "freeze": (3, "worker #{pick} is frozen for {amount:.3g} s"),
    "slow": (3, "messages of worker #{pick} take {amount:.3g} s longer from now on"),
    "cut": (3, "the next answer of worker #{pick} to a message is lost"),
    "break": (3, "the connections of worker #{pick} to other workers break"),
    "join": (3, "another worker comes"),
    "full": (2, "the disk is full for {amount:.3g} s"),
    "clock": (1, "the wall clock goes back by an hour"),
    "suspend": (1, "the machines are suspended for {amount:.3g} s"),
    "power": (4, "power is lost; the run is resumed"),
    "stop": (1, "the run is stopped, and resumed"),
}


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes
    ----------
    at, when
        The step before which it happens; the first one from there on that has this name.
    kind
        Of `KINDS`.
    pick, amount
        Which worker, and how long.
    returns_s, same_address
        When a worker that died is back, -1 for never, and whether at its old address.
    """

    at: int
    kind: str
    pick: int
    amount: float
    returns_s: float
    same_address: bool
    when: str = ""

    def __str__(self) -> str:
        text = f"step {self.at}{self.when and f', {self.when}'}: " + KINDS[self.kind][1].format(
            pick=self.pick, amount=self.amount
        )
        if self.kind.startswith("kill"):
            where = "at its old address" if self.same_address else "at a new address"
            back = f"back after {self.returns_s:.3g} s {where}"
            text += f", {back if self.returns_s >= 0 else 'and stays away'}"
        return text


@dataclass(frozen=True)
class Case:
    """A run and its faults."""

    seed: int
    strategy: str
    overlap: bool
    is_replicated: bool
    workers: int
    epochs: int
    checkpoint_every: int
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        how = ", overlapping merges" if self.overlap else ""
        rows = "all rows on each worker" if self.is_replicated else "sharded rows"
        head = (
            f"{self.strategy}{how}, {self.workers} workers, {rows}, {self.epochs} epochs, a "
            f"checkpoint every {self.checkpoint_every} mega-batches"
        )
        return "\n".join([head, *(f"  {fault}" for fault in self.faults)])


def draw_case(seed: int) -> Case:
    """Return the case of a seed.

    Examples
    --------
    >>> draw_case(7) == draw_case(7)
    True
    """
    rng = random.Random(seed)
    strategy = rng.choice(LEASING if rng.random() < 0.6 else STRATEGIES)
    return Case(
        seed=seed,
        strategy=strategy,
        overlap=strategy in LEASING and rng.random() < 0.4,
        is_replicated=rng.random() < 0.7,
        workers=rng.choice([1, 2, 2, 2, 3, 3, 4]),
        epochs=rng.choice([1, 1, 2]),
        checkpoint_every=rng.randint(1, 3),
        faults=tuple(sorted(_faults(rng), key=lambda fault: fault.at)),
    )


def _faults(rng: random.Random) -> list[Fault]:
    kinds, weights = [*KINDS], [weight for weight, _ in KINDS.values()]
    return [
        Fault(
            at=rng.randint(1, STEPS),
            kind=rng.choices(kinds, weights)[0],
            pick=rng.randrange(4),
            amount=rng.choice([0.0, 0.001, 0.1, 1.0, 2.5, 10.0]) * rng.random(),
            returns_s=rng.choice([0.01, 0.1, 1.0, 5.0, -1.0]),
            same_address=rng.random() < 0.4,
        )
        for _ in range(rng.randint(0, 8))
    ]


def shrink(
    faults: Sequence[Fault], fails: Callable[[tuple[Fault, ...]], bool]
) -> tuple[Fault, ...]:
    """Return some of the faults with which it still fails, none of which can be left out.

    Examples
    --------
    >>> first, second, third = (Fault(n, "kill", 0, 0.0, 0.0, False) for n in range(3))
    >>> shrink([first, second, third], lambda faults: second in faults) == (second,)
    True
    """
    left, tried = tuple(faults), 0
    while tried < len(left):
        without = left[:tried] + left[tried + 1 :]
        if fails(without):
            left, tried = without, 0
        else:
            tried += 1
    return left
