"""Schedules of faults: drawn from a seed, told in words, and shrunk to the faults that matter.

A fault happens at a numbered step of a run: the start of a task or of a batch, the arrival of a
message or of a report, or just before the disk is changed. So it falls into the smallest gaps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from daskxml import strategies

_MADE = {name: kind(kind.Config()) for name, kind in strategies.STRATEGIES.items()}
SHARING = tuple(name for name, made in _MADE.items() if made.shares_model)  # one model
TOGETHER = tuple(name for name, made in _MADE.items() if made.is_joint)
LEASING = tuple(  # whose merges may have a quorum
    name for name in _MADE if name not in (*SHARING, *TOGETHER)
)
ADDING = tuple(  # gradients, where the rule is not their mean
    name for name in TOGETHER if _MADE[name].rules[:2] == ("mean", "sum")
)
TREES = "label-trees"  # a kind of model without a strategy
WHOLE = (TREES,)  # which need all rows on every worker
STRATEGIES = (*LEASING, *SHARING, *TOGETHER, *WHOLE)
STEPS = 300  # of a run, about

KINDS = {  # how often, and in words
    "kill": (8, "worker #{pick} dies, noticed after {amount:.3g} s"),
    "kill here": (6, "the worker of this step dies, noticed after {amount:.3g} s"),
    "kill all": (2, "all workers die at once"),
    "freeze": (3, "worker #{pick} is frozen for {amount:.3g} s"),
    "freeze here": (2, "the worker of this step is frozen for {amount:.3g} s"),
    "slow": (3, "messages of worker #{pick} take {amount:.3g} s longer from now on"),
    "slow here": (2, "messages of the worker of this step take {amount:.3g} s longer from now on"),
    "cut": (3, "the next answer of worker #{pick} to a message is lost"),
    "cut here": (2, "the next answer of the worker of this step to a message is lost"),
    "early": (2, "the next message to worker #{pick} comes twice, the second while it is handled"),
    "break": (3, "the connections of worker #{pick} to other workers break"),
    "join": (3, "another worker comes"),
    "full": (2, "the disk is full for {amount:.3g} s"),
    "slow disk": (2, "to flush a file takes {amount:.3g} s from now on"),
    "clock": (1, "the wall clock jumps by an hour"),
    "suspend": (1, "the machines are suspended for {amount:.3g} s"),
    "power": (4, "power is lost; the run is resumed"),
    "scheduler": (2, "scheduler and workers die; the run is resumed"),
    "stop": (2, "a user stops the run, which is resumed"),
    "attach": (3, "another user attaches to the run"),
    "interrupt": (3, "the run's user presses Ctrl-C"),
    "client": (2, "the process of the run's user dies, noticed after {amount:.3g} s"),
    "freeze client": (2, "the process of the run's user is frozen for {amount:.3g} s"),
}
# Steps that are few among all, or begin what a fault may leave half done: the beginnings of names.
MOMENTS = (
    "create_worker", "copy_model", "fetch_rows", "load_checkpoint", "store_checkpoint",
    "store_local", "store_model", "remove_worker", "release_directory", "lock_directory",
    "begin_directory", "write_rows", "evaluate_pieces", "run_gang", "daskxml_lease", "report",
    "fit", "put_together", "rank", "store_member", "keep_model",
    "daskxml_merge", "daskxml_commit", "daskxml_norm", "daskxml_models",
    "daskxml_abort", "daskxml_close", "rename 00", "fsync 00", "open 00", "remove 00",
    "fsync folder", "rename model", "rename run.toml", "open history", "batch", "message",
    "daskxml_start", "daskxml_read", "daskxml_detach", "daskxml_forget",
)  # fmt: skip
# What strikes at each moment: with seeds in a row every pair of the two has its turn.
STRIKES = (
    "kill here", "power", "cut here", "kill all", "break", "freeze here", "stop", "full",
    "scheduler", "attach", "interrupt", "client",
)  # fmt: skip
NEAR = (0, 0, 1, 2, 4, 8, 16, 32)  # steps between two faults of a burst


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes
    ----------
    at, when, lag
        The step before which it happens: this one; or the first one from there on whose name begins
        so; and so many steps later.
    kind
        Of `KINDS`.
    pick, amount
        Which worker, and how long.
    returns_s, same_address
        When a worker that died is back, -1 for never, and whether at its old address (then with
        another name where ``pick`` is 3); whether the run of a client that died is resumed at once.
    """

    at: int
    kind: str
    pick: int
    amount: float
    returns_s: float
    same_address: bool
    when: str = ""
    lag: int = 0

    def __str__(self) -> str:
        what = KINDS[self.kind][1].format(pick=self.pick, amount=self.amount)
        later = f" + {self.lag}" if self.lag else ""
        text = f"step {self.at}{self.when and f', {self.when}'}{later}: {what}"
        if self.kind.startswith("kill"):
            where = "at its old address" if self.same_address else "at a new address"
            where += ", with another name" if self.same_address and self.pick == 3 else ""
            back = f"back after {self.returns_s:.3g} s {where}"
            text += f", {back if self.returns_s >= 0 else 'and stays away'}"
        elif self.kind == "client" and self.same_address:
            text += "; the run is resumed at once"
        return text


@dataclass(frozen=True)
class Case:
    """A run and its faults.

    Attributes
    ----------
    slots
        How many tasks a worker runs at a time.
    machines, transport
        How many the workers are on, and how these reach each other: ``tls``, by messages, or
        ``tcp``, by sockets, and by shared memory where they are on one machine.
    pools
        How many of the first workers are pools of two threads.
    follows
        Whether the run's user follows it, and writes its directory; else it is detached.
    rule
        How what workers exchange is combined.
    grace
        Seconds that a merge by a quorum waits.
    """

    seed: int
    strategy: str
    quorum: bool
    is_replicated: bool
    workers: int
    epochs: int
    checkpoint_every: int
    faults: tuple[Fault, ...]
    slots: int = 1
    machines: int = 1
    transport: str = "tls"
    pools: int = 0
    follows: bool = False
    rule: str = "auto"
    grace: float = 0.01

    def __str__(self) -> str:
        how = ", quorum" if self.quorum else ""
        how += ", gradients are added" if self.rule == "sum" else ""
        rows = "all rows on each worker" if self.is_replicated else "sharded rows"
        pools = f", the first {self.pools} of them pools" if self.pools else ""
        left = "followed by its user" if self.follows else "detached"
        head = (
            f"{self.strategy}{how}, {left}, {self.workers} workers of {self.slots} threads{pools}, "
            f"on {self.machines} machines by {self.transport}, {rows}, "
            f"{self.epochs} epochs, a checkpoint every {self.checkpoint_every} mega-batches"
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
    strategy = rng.choice(LEASING if rng.random() < 0.4 else STRATEGIES)
    takes_pools = strategy in (*LEASING, *SHARING)
    case = Case(
        seed=seed,
        strategy=strategy,
        quorum=strategy in LEASING and rng.random() < 0.4,
        is_replicated=strategy in WHOLE or rng.random() < 0.7,
        workers=rng.choice([1, 2, 2, 2, 3, 3, 4]),
        epochs=rng.choice([1, 1, 1, 2, 2, 3]),
        checkpoint_every=rng.randint(1, 3),
        faults=tuple(sorted([*_faults(rng), _next_pair(rng, seed)], key=lambda fault: fault.at)),
        slots=rng.choice([1, 1, 2, 3]),
        machines=rng.choice([1, 1, 2]),
        transport=rng.choice(["tls", "tcp"]),
        pools=rng.choice([0, 0, 1, 2]) if takes_pools else 0,
        follows=rng.random() < 0.5,
        rule=rng.choice(["auto", "sum"]) if strategy in ADDING else "auto",
    )
    return replace(case, machines=1) if strategy in SHARING else case


def _faults(rng: random.Random) -> list[Fault]:
    """Draw some kinds, and faults of these, some at a moment of their own, some in bursts."""
    kinds = [kind for kind in KINDS if rng.random() < 0.6] or [*KINDS]
    weights = [KINDS[kind][0] for kind in kinds]
    found: list[Fault] = []
    while len(found) < 8 and rng.random() < 0.85:
        when = rng.choice(MOMENTS) if rng.random() < 0.6 else ""
        at = rng.randint(1, STEPS // 2 if when else STEPS)
        for burst in range(rng.choice([1, 1, 1, 2, 2, 3])):
            kind, lag = rng.choices(kinds, weights)[0], rng.choice(NEAR) if burst else 0
            found.append(_fault(rng, at, kind, when, lag))
    return found


def _next_pair(rng: random.Random, seed: int) -> Fault:
    """Return the fault of this seed's pair of a moment and a kind."""
    turn, moment = divmod(seed, len(MOMENTS))
    kind = STRIKES[turn % len(STRIKES)]
    return _fault(rng, rng.choice([1, rng.randint(1, STEPS // 2)]), kind, MOMENTS[moment], 0)


def _fault(rng: random.Random, at: int, kind: str, when: str, lag: int) -> Fault:
    return Fault(
        at=at,
        kind=kind,
        pick=rng.randrange(4),
        amount=rng.choice([0.0, 0.001, 0.1, 1.0, 2.5, 10.0]) * rng.random(),
        returns_s=rng.choice([0.0, 0.01, 0.1, 1.0, 5.0, -1.0]),
        same_address=rng.random() < 0.4,
        when=when,
        lag=lag,
    )


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
