"""The strategies whose workers exchange arrays at every step: what is added to the bookkeeping.

The rows of a mega-batch go to one gang after the other: all workers step through a number of
batches together, and one report comes back. The first gang of a run has two steps, to measure how
long a step takes; the following ones last about a second, so that a stop is prompt and little is
lost with a worker. Where fewer rows than a full step are left of a mega-batch, the last step is
smaller for every worker.

Between two merges the workers change one common model. So a lost worker undoes the work of all: the
mega-batch restarts with the workers that are present, from the last merged model. A worker that
joins waits for the next merge or for such a restart. The merge only broadcasts the common model,
the first worker's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from daskxml.strategies.batches import BatchConfig, split_rows
from daskxml.strategies.megabatch import Strategy
from daskxml.strategies.protocol import (
    Command,
    Event,
    Measured,
    Merge,
    Mirrored,
    Part,
    SyncPattern,
    Work,
    WorkDone,
    WorkerView,
    natural_order,
)
from daskxml.strategies.state import MegabatchState, WorkerState

FIRST_STEPS = 2  # of a run's first gang
GANG_S = 1.0  # keeps losses small, and stops prompt


def active(state: MegabatchState) -> dict[str, WorkerState]:
    """Return the workers of the next gang, in the order of their ranks."""
    ready = {name: worker for name, worker in state.members.items() if not worker.came_late}
    return {name: ready[name] for name in sorted(ready, key=natural_order)}


def next_steps(state: MegabatchState, step_rows: int, round_steps: int = 1) -> int:
    """Return the steps of the next gang; gangs are equal and last about a second.

    Parameters
    ----------
    step_rows
        Rows of one step of all workers.
    round_steps
        Steps that belong together: a gang has a multiple of them.

    Examples
    --------
    >>> next_steps(MegabatchState(remaining_rows=6400), 64)
    2
    >>> next_steps(MegabatchState(remaining_rows=6400, step_s=0.025), 64)  # 2.5 s in two gangs
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
    rules: tuple[str, ...] = ("mean",)
    config: BatchConfig
    round_steps = 1

    def pattern(self, state: MegabatchState) -> SyncPattern:
        """Return what the workers exchange in the next gang."""
        raise NotImplementedError

    def batch_sizes(self, workers: Mapping[str, WorkerState]) -> dict[str, int]:
        """Return the rows of each worker's batch in a step."""
        return dict.fromkeys(workers, self.config.batch_max)

    def step_rate(self, sizes: Mapping[str, int]) -> float:
        """Return the learning rate of all workers in a step of such batches."""
        return self.config.lr

    def divide_rows(self, state: MegabatchState, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the rows of each worker in the next gang."""
        step_rows = sum(sizes.values())
        rows = next_steps(state, step_rows, self.round_steps) * step_rows
        return split_rows(min(rows, state.remaining_rows), sizes)

    def record(self, state: MegabatchState, event: Event) -> MegabatchState:
        """Return the state updated by an event, with the seconds of a step."""
        state = super().record(state, event)
        if not isinstance(event, WorkDone):
            return state
        steps = sum(event.updates.values()) / len(event.updates)
        return replace(state, step_s=event.took_s / steps)

    def lease(self, state: MegabatchState) -> tuple[MegabatchState, tuple[Command, ...]]:
        """Give out the next gang once the one before is done."""
        workers = active(state)
        is_busy = any(worker.leases for worker in workers.values())
        if is_busy or state.is_draining or not (workers and state.remaining_rows):
            return state, ()
        sizes = self.batch_sizes(workers)
        rate, rows = self.step_rate(sizes), self.divide_rows(state, sizes)
        gang = Work(
            {name: Part(count, max(1, sizes[name]), rate) for name, count in rows.items()},
            self.pattern(state),
        )
        given = {name: workers[name].with_lease(count) for name, count in rows.items()}
        left = state.remaining_rows - gang.rows
        return replace(state, remaining_rows=left, members={**state.members, **given}), (gang,)

    def merge(self, state: MegabatchState, measured: Measured) -> Merge:
        """Broadcast the common model, which is the first worker's."""
        first = next(iter(active(state)))
        return Merge({name: float(name == first) for name in state.members}, 0.0, perturbed=False)

    def view(self, state: MegabatchState) -> dict[str, WorkerView]:
        """Return batch size, rate and throughput of every worker, waiting ones included."""
        own = self.batch_sizes(active(state))
        sizes, rate = self.batch_sizes(state.members) | own, self.step_rate(own)
        return {
            name: WorkerView(sizes[name], rate, w.rows_per_s) for name, w in state.members.items()
        }


class SynchronousStrategy(GangStrategy):
    """A strategy of gangs whose workers combine the gradients of every step by an all-reduce."""

    shares_optimizer = True
    rules: tuple[str, ...] = Strategy.rules

    def pattern(self, state: MegabatchState) -> SyncPattern:
        """Let all-reduce combine the gradients of all."""
        return Mirrored()
