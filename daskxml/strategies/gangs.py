"""The bookkeeping that strategies share whose workers exchange arrays at every step.

One gang after the other: all workers go through so many batches together, by themselves, and one
report comes back. The first gang of a run has two steps, to learn how long a step takes; those that
follow last about a second, so that a stop is prompt and little is lost with a worker. Where fewer
rows than a full step are left of a mega-batch, the last step is smaller for everybody.

Between two merges the workers change one common model. So a worker that is lost undoes the work of
all: the whole mega-batch begins again with those that are there, from the last merged model. A
worker that joins waits until the next merge, or for such a beginning. The merge only hands the
common model, the first worker's, to everybody. All functions return a new state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from daskxml.strategies.batches import BatchConfig, deal_rows
from daskxml.strategies.members import natural_order
from daskxml.strategies.protocol import (
    REPLICA,
    Begin,
    Command,
    Device,
    Drain,
    Event,
    Gang,
    GangDone,
    Merge,
    Merged,
    Share,
    Started,
    Undone,
    WorkerJoined,
    WorkerLost,
    WorkerView,
)
from daskxml.strategies.schemes import Scheme

FIRST_STEPS = 2  # of a run's first gang
GANG_S = 1.0  # keeps losses small, and stops prompt
_SMOOTHING = 0.5  # share of the newest gang in the measured throughput


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A worker, as its strategy knows it.

    Attributes
    ----------
    rows_per_s
        Its measured throughput, without waiting for others; 0 while nothing is measured.
    speed
        The throughput by which its batches are sized, where they are; 0 before.
    waits
        It came in the middle of a mega-batch, and takes no part before the next one.
    """

    rows_per_s: float = 0.0
    speed: float = 0.0
    waits: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Where the run stands.

    Attributes
    ----------
    remaining_rows
        Rows of this mega-batch that no gang has had.
    phase
        ``"idle"``, ``"train"`` or ``"merge"``.
    gang_rows
        Rows of the gang that is under way; 0 without one.
    step_s
        Seconds of a step, measured; 0 before.
    is_draining
        No gang follows in this mega-batch.
    merges
        Since the run began.
    members
        Every worker, by name.
    """

    remaining_rows: int
    phase: str = "idle"
    gang_rows: int = 0
    step_s: float = 0.0
    is_draining: bool = False
    merges: int = 0
    members: Mapping[str, Member] = field(default_factory=dict)

    @property
    def active(self) -> dict[str, Member]:
        """The workers of the next gang, in the order of their ranks."""
        there = {name: m for name, m in self.members.items() if not m.waits}
        return {name: there[name] for name in sorted(there, key=natural_order)}


def hear(state: State, event: Event, megabatch_rows: int) -> State:
    """Book an event that means the same to every strategy of gangs."""
    match event:
        case Started(workers):
            return replace(state, members={n: state.members.get(n, Member()) for n in workers})
        case Begin():
            return replace(state, phase="train")
        case WorkerJoined(worker):
            member = Member(waits=state.phase != "idle" and bool(state.active))
            return replace(state, members={**state.members, worker: member})
        case WorkerLost(worker) if worker in state.members:
            members = {name: m for name, m in state.members.items() if name != worker}
            return begin_again(replace(state, members=members), megabatch_rows)
        case Undone():
            return begin_again(state, megabatch_rows)
        case GangDone():
            return count(state, event)
        case Drain() if state.phase != "idle":
            return replace(state, is_draining=True)
        case Merged():
            members = {name: replace(m, waits=False) for name, m in state.members.items()}
            return State(
                remaining_rows=megabatch_rows,
                step_s=state.step_s,
                merges=state.merges + 1,
                members=members,
            )
    return state


def begin_again(state: State, megabatch_rows: int) -> State:
    """Take back the whole mega-batch: everybody starts from the global model, who waited as well.

    Between two mega-batches there is nothing to take back.
    """
    if state.phase == "idle":
        return state
    members = {name: replace(m, waits=False) for name, m in state.members.items()}
    return replace(
        state, phase="train", remaining_rows=megabatch_rows, gang_rows=0, members=members
    )


def count(state: State, done: GangDone) -> State:
    """Book a finished gang."""
    members = dict(state.members)
    for name, rows in done.rows.items():
        if rows and done.busy_s[name] > 0.0:
            measured = rows / done.busy_s[name]
            known = members[name].rows_per_s or measured
            rows_per_s = known + _SMOOTHING * (measured - known)
            members[name] = replace(members[name], rows_per_s=rows_per_s)
    steps = sum(done.updates.values()) / len(done.updates)
    return replace(state, gang_rows=0, step_s=done.took_s / steps, members=members)


def next_steps(state: State, step_rows: int, round_steps: int = 1) -> int:
    """Return how many steps the next gang takes: what is left, in equal gangs of about a second.

    Parameters
    ----------
    state
        Of the run.
    step_rows
        Rows of one step of all workers.
    round_steps
        Steps that belong together; a gang has a multiple of them.

    Examples
    --------
    >>> next_steps(State(remaining_rows=6400), 64)
    2
    >>> next_steps(State(remaining_rows=6400, step_s=0.025), 64)  # 2.5 s in two gangs
    50
    """
    steps_left = -(-state.remaining_rows // step_rows)
    gangs = max(1, round(steps_left * state.step_s / GANG_S))
    steps = -(-steps_left // gangs) if state.step_s > 0.0 else FIRST_STEPS
    return -(-steps // round_steps) * round_steps


class GangStrategy:
    """A strategy of gangs but for its rules, which a subclass adds.

    Parameters
    ----------
    config
        Batches and rate.
    round_steps
        Steps that belong together.
    """

    is_joint = True
    keeps_replicas = False
    averages = False
    shares_optimizer = False
    shares_model = False
    rules: tuple[str, ...] = ("mean",)

    def __init__(self, config: BatchConfig, round_steps: int = 1) -> None:
        self._batch_max, self._rows, self._lr = config.batch_max, config.megabatch_rows, config.lr
        self._round_steps = round_steps

    def scheme(self, state: State) -> Scheme:
        """Return what the workers exchange in the next gang."""
        raise NotImplementedError

    def batch_sizes(self, members: Mapping[str, Member]) -> dict[str, int]:
        """Return the rows of each worker's batch in a step."""
        return dict.fromkeys(members, self._batch_max)

    def rate(self, sizes: Mapping[str, int]) -> float:
        """Return the learning rate, which is everybody's."""
        return self._lr

    def deal(self, state: State, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the rows of each worker in the next gang."""
        step_rows = sum(sizes.values())
        rows = next_steps(state, step_rows, self._round_steps) * step_rows
        return deal_rows(min(rows, state.remaining_rows), sizes)

    def initial_state(self) -> State:
        """Return the state before any worker is known."""
        return State(remaining_rows=self._rows)

    def max_batch_rows(self, device: Device = REPLICA) -> int:
        """Return the largest batch that a worker ever steps through."""
        return self._batch_max

    def step(self, state: State, event: Event) -> tuple[State, tuple[Command, ...]]:
        """Return the state after ``event``, and what is to be done."""
        state = hear(state, event, self._rows)
        if state.phase != "train" or state.gang_rows or not state.active:
            return state, ()
        if state.is_draining or not state.remaining_rows:
            return replace(state, phase="merge"), (_hand_over(state),)
        return self._gather(state)

    def _gather(self, state: State) -> tuple[State, tuple[Command, ...]]:
        sizes = self.batch_sizes(state.active)
        rate = self.rate(sizes)
        dealt = self.deal(state, sizes)
        gang = Gang(
            {name: Share(rows, max(1, sizes[name]), rate) for name, rows in dealt.items()},
            self.scheme(state),
        )
        rows = sum(dealt.values())
        left = state.remaining_rows - rows
        return replace(state, remaining_rows=left, gang_rows=rows), (gang,)

    def view(self, state: State) -> dict[str, WorkerView]:
        """Return batch size, rate and throughput of every worker, also of who waits."""
        sizes = self.batch_sizes(state.members) | self.batch_sizes(state.active)
        rate = self.rate(self.batch_sizes(state.active))
        return {
            name: WorkerView(sizes[name], rate, m.rows_per_s) for name, m in state.members.items()
        }

    def plain(self, state: State) -> dict[str, Any]:
        """Return the state as JSON values."""
        return asdict(state)

    def restore(self, plain: dict[str, Any]) -> State:
        """Return the state that ``plain`` was made from."""
        members = {name: Member(**member) for name, member in plain["members"].items()}
        return State(**{**plain, "members": members})


def _hand_over(state: State) -> Merge:
    """Merge to the common model, which is the first worker's."""
    first = next(iter(state.active))
    return Merge({name: float(name == first) for name in state.members}, 0.0, perturbed=False)
