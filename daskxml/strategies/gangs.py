"""The bookkeeping that strategies share whose workers exchange arrays at every step.

The rows of a mega-batch go to one gang after the other: all workers step through a number of
batches together, and one report comes back. The first gang of a run has two steps, to measure how
long a step takes; the following ones last about a second, so that a stop is prompt and little is
lost with a worker. Where fewer rows than a full step are left of a mega-batch, the last step is
smaller for every worker.

Between two merges the workers change one common model. So a lost worker undoes the work of all: the
mega-batch restarts with the workers that are present, from the last merged model. A worker that
joins waits for the next merge or for such a restart. The merge only broadcasts the common model,
the first worker's. All functions return a new state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from daskxml.strategies.batches import BatchConfig, split_rows
from daskxml.strategies.protocol import (
    REPLICA,
    Begin,
    Command,
    Drain,
    Event,
    Gang,
    GangDone,
    GangPart,
    GangRolledBack,
    Merge,
    Merged,
    Started,
    Strategy,
    SyncPattern,
    WorkerDevice,
    WorkerJoined,
    WorkerLost,
    WorkerView,
    natural_order,
)

FIRST_STEPS = 2  # of a run's first gang
GANG_S = 1.0  # keeps losses small, and stops prompt
_SMOOTHING = 0.5  # share of the newest gang in the measured throughput


@dataclass(frozen=True, kw_only=True, slots=True)
class GangWorker:
    """What a strategy of gangs records of a worker.

    Attributes
    ----------
    rows_per_s
        Measured throughput, without waiting for others; 0 before the first measurement.
    speed
        The throughput by which its batches are sized, where they are; 0 before.
    waits
        Whether it joined in the middle of a mega-batch, and takes no part before the next one.
    """

    rows_per_s: float = 0.0
    speed: float = 0.0
    waits: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class GangState:
    """The state of a strategy of gangs.

    Attributes
    ----------
    remaining_rows
        Rows of this mega-batch that no gang has been given.
    phase
        ``"idle"``, ``"train"`` or ``"merge"``.
    gang_rows
        Rows of the running gang; 0 between two.
    step_s
        Measured seconds of a step; 0 before the first measurement.
    is_draining
        Whether no gang follows in this mega-batch.
    merges
        Merges since the run began.
    members
        Every worker, by name.
    """

    remaining_rows: int
    phase: str = "idle"
    gang_rows: int = 0
    step_s: float = 0.0
    is_draining: bool = False
    merges: int = 0
    members: Mapping[str, GangWorker] = field(default_factory=dict)

    @property
    def active(self) -> dict[str, GangWorker]:
        """The workers of the next gang, in the order of their ranks."""
        ready = {name: worker for name, worker in self.members.items() if not worker.waits}
        return {name: ready[name] for name in sorted(ready, key=natural_order)}


def record(state: GangState, event: Event, megabatch_rows: int) -> GangState:
    """Return the state updated by an event, before commands are decided."""
    match event:
        case Started(names):
            members = {n: state.members.get(n, GangWorker()) for n in names}
            return replace(state, members=members)
        case Begin(rows):
            left = state.remaining_rows if rows is None else min(rows, state.remaining_rows)
            return replace(state, phase="train", remaining_rows=left)
        case WorkerJoined(name):
            waits = state.phase != "idle" and bool(state.active)
            worker = GangWorker(waits=waits)
            return replace(state, members={**state.members, name: worker})
        case WorkerLost(name) if name in state.members:
            members = {n: worker for n, worker in state.members.items() if n != name}
            return restart_megabatch(replace(state, members=members), megabatch_rows)
        case GangRolledBack():
            return restart_megabatch(state, megabatch_rows)
        case GangDone():
            return record_gang(state, event)
        case Drain() if state.phase != "idle":
            return replace(state, is_draining=True)
        case Merged():
            return GangState(
                remaining_rows=megabatch_rows,
                step_s=state.step_s,
                merges=state.merges + 1,
                members=_all_ready(state),
            )
    return state


def restart_megabatch(state: GangState, megabatch_rows: int) -> GangState:
    """Discard a mega-batch that has begun: all workers, waiting ones too, restart it together."""
    if state.phase == "idle":
        return state
    members = _all_ready(state)
    return replace(
        state, phase="train", remaining_rows=megabatch_rows, gang_rows=0, members=members
    )


def _all_ready(state: GangState) -> dict[str, GangWorker]:
    return {name: replace(worker, waits=False) for name, worker in state.members.items()}


def record_gang(state: GangState, done: GangDone) -> GangState:
    """Count a finished gang."""
    members = dict(state.members)
    for name, rows in done.rows.items():
        if rows and done.busy_s[name] > 0.0:
            measured = rows / done.busy_s[name]
            known = members[name].rows_per_s or measured
            rows_per_s = known + _SMOOTHING * (measured - known)
            members[name] = replace(members[name], rows_per_s=rows_per_s)
    steps = sum(done.updates.values()) / len(done.updates)
    return replace(state, gang_rows=0, step_s=done.took_s / steps, members=members)


def next_steps(state: GangState, step_rows: int, round_steps: int = 1) -> int:
    """Return the steps of the next gang; gangs are equal and last about a second.

    Parameters
    ----------
    step_rows
        Rows of one step of all workers.
    round_steps
        Steps that belong together: a gang has a multiple of them.

    Examples
    --------
    >>> next_steps(GangState(remaining_rows=6400), 64)
    2
    >>> next_steps(GangState(remaining_rows=6400, step_s=0.025), 64)  # 2.5 s in two gangs
    50
    """
    steps_left = -(-state.remaining_rows // step_rows)
    gangs = max(1, round(steps_left * state.step_s / GANG_S))
    steps = -(-steps_left // gangs) if state.step_s > 0.0 else FIRST_STEPS
    return -(-steps // round_steps) * round_steps


class GangStrategy(Strategy):
    """A strategy of gangs but for its rules, which a subclass adds.

    Parameters
    ----------
    config
        Batches and rate.

    Attributes
    ----------
    round_steps
        Steps that belong together.
    """

    is_joint = True
    config: BatchConfig
    round_steps = 1

    def __init__(self, config: BatchConfig) -> None:
        self.config = config

    def pattern(self, state: GangState) -> SyncPattern:
        """Return what the workers exchange in the next gang."""
        raise NotImplementedError

    def batch_sizes(self, workers: Mapping[str, GangWorker]) -> dict[str, int]:
        """Return the rows of each worker's batch in a step."""
        return dict.fromkeys(workers, self.config.batch_max)

    def rate(self, sizes: Mapping[str, int]) -> float:
        """Return the learning rate of all workers."""
        return self.config.lr

    def divide_rows(self, state: GangState, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the rows of each worker in the next gang."""
        step_rows = sum(sizes.values())
        rows = next_steps(state, step_rows, self.round_steps) * step_rows
        return split_rows(min(rows, state.remaining_rows), sizes)

    def initial_state(self) -> GangState:
        """Return the state before any worker is known."""
        return GangState(remaining_rows=self.config.megabatch_rows)

    def max_batch_rows(self, device: WorkerDevice = REPLICA) -> int:
        """Return the rows of the largest batch that a worker ever steps through."""
        return self.config.batch_max

    def step(self, state: GangState, event: Event) -> tuple[GangState, tuple[Command, ...]]:
        """Return the state after ``event``, and the commands that follow."""
        state = record(state, event, self.config.megabatch_rows)
        if state.phase != "train" or state.gang_rows or not state.active:
            return state, ()
        if state.is_draining or not state.remaining_rows:
            return replace(state, phase="merge"), (_broadcast(state),)
        return self.next_gang(state)

    def next_gang(self, state: GangState) -> tuple[GangState, tuple[Command, ...]]:
        """Return the state with the next gang under way, and that gang."""
        sizes = self.batch_sizes(state.active)
        rate = self.rate(sizes)
        rows = self.divide_rows(state, sizes)
        parts = {name: GangPart(count, max(1, sizes[name]), rate) for name, count in rows.items()}
        gang_rows = sum(rows.values())
        left = state.remaining_rows - gang_rows
        gang = Gang(parts, self.pattern(state))
        return replace(state, remaining_rows=left, gang_rows=gang_rows), (gang,)

    def view(self, state: GangState) -> dict[str, WorkerView]:
        """Return batch size, rate and throughput of every worker, waiting ones included."""
        sizes = self.batch_sizes(state.members) | self.batch_sizes(state.active)
        rate = self.rate(self.batch_sizes(state.active))
        return {
            name: WorkerView(sizes[name], rate, w.rows_per_s) for name, w in state.members.items()
        }

    def plain(self, state: GangState) -> dict[str, Any]:
        """Return the state as JSON values, for a checkpoint."""
        return asdict(state)

    def restore(self, plain: dict[str, Any]) -> GangState:
        """Return the state that ``plain`` was made from."""
        members = {name: GangWorker(**worker) for name, worker in plain["members"].items()}
        return GangState(**{**plain, "members": members})


def _broadcast(state: GangState) -> Merge:
    """Merge to the common model, which is the first worker's."""
    first = next(iter(state.active))
    return Merge({name: float(name == first) for name in state.members}, 0.0, perturbed=False)
