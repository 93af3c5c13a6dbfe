"""The times of a strategy of leases without its rows: who is busy, how large batches become.

Batches take the time of a `CostModel` and are not computed, so a run of thousands of mega-batches
costs seconds. Leases, scheduling and batch sizes are those of the strategy itself; what depends on
the model is left out: norms are those of a small model, merges and evaluations take no time.
"""

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from daskxml.local.cost import CostModel, jitter_factor
from daskxml.strategies.megabatch import Strategy
from daskxml.strategies.protocol import (
    Begin,
    Event,
    Measure,
    Measured,
    Merged,
    Started,
    Work,
    WorkDone,
)
from harness.virtual_cluster import Lease, lease_of

Speeds = Callable[[str, int], float]  # of a worker in a mega-batch, which count from 0


@dataclass(frozen=True, slots=True)
class TimedMegabatch:
    """What happened between two merges.

    Attributes
    ----------
    batch_sizes
        Of each worker, in rows, before rounding.
    updates
        Batches of each worker; a smaller one counts as its share of a full one.
    busy_s
        Seconds that each worker stepped.
    train_s
        From the first lease to the end of the last.
    """

    batch_sizes: Mapping[str, float]
    updates: Mapping[str, float]
    busy_s: Mapping[str, float]
    train_s: float

    @property
    def busy_share(self) -> float:
        """Share of all workers' time in which they stepped."""
        return sum(self.busy_s.values()) / (len(self.busy_s) * self.train_s)

    @property
    def spread(self) -> float:
        """Batches by which the worker with the most is ahead of the one with the fewest."""
        return max(self.updates.values()) - min(self.updates.values())


@dataclass
class _Worker:
    leases: deque[Lease] = field(default_factory=deque)
    batches: int = 0
    busy_s: float = 0.0
    updates: float = 0.0


class TimedRun:
    """A run in virtual time.

    Parameters
    ----------
    strategy
        Leases rows.
    workers
        Their names.
    speeds
        The speed of a worker in a mega-batch: a batch takes the cost model's time over it. They
        may be replaced between two calls of `run`.
    cost
        Of batches, and their jitter.
    message_s
        Seconds from the scheduler to a worker, and back.
    noise
        Standard deviation of the logarithm of a factor that all batches of a worker in one
        mega-batch take longer by, beside the jitter of each.
    seed
        Of jitter and noise.

    Examples
    --------
    >>> from daskxml.strategies import AdaptiveSgd
    >>> strategy = AdaptiveSgd(AdaptiveSgd.Config(batch_max=64, megabatch_batches=40))
    >>> cost = CostModel(per_row_s=0.001, jitter=0.0)
    >>> run = TimedRun(strategy, ["a", "b"], lambda name, megabatch: 1.0, cost)
    >>> run.run(2)[-1].updates
    {'a': 20.0, 'b': 20.0}
    """

    def __init__(
        self, strategy: Strategy, workers: Sequence[str], speeds: Speeds, cost: CostModel,
        *, message_s: float = 1e-4, noise: float = 0.0, seed: int = 7,
    ) -> None:  # fmt: skip
        self.strategy, self.state = strategy, strategy.initial_state()
        self.speeds, self._cost, self._message_s = speeds, cost, message_s
        self._noise, self._seed, self._now_s = noise, seed, 0.0
        self._workers = {name: _Worker() for name in workers}
        self._ends: list[tuple[float, int, str, Lease, float]] = []
        self._megabatch = self._sent = 0
        self._inform(Started(tuple(workers)))

    def run(self, megabatches: int) -> list[TimedMegabatch]:
        """Go through so many more mega-batches."""
        return [self._run_megabatch() for _ in range(megabatches)]

    def _run_megabatch(self) -> TimedMegabatch:
        begun_s = self._now_s
        for worker in self._workers.values():
            worker.busy_s = worker.updates = 0.0
        self._inform(Begin())
        while self._ends:
            self._finish(*heapq.heappop(self._ends))
        members = self.state.members
        done = TimedMegabatch(
            {name: members[name].batch_size for name in self._workers},
            {name: worker.updates for name, worker in self._workers.items()},
            {name: worker.busy_s for name, worker in self._workers.items()},
            self._now_s - self._message_s - begun_s,
        )
        self._inform(Merged())
        self._megabatch += 1
        return done

    def _inform(self, event: Event) -> None:
        self.state, commands = self.strategy.step(self.state, event)
        for command in commands:
            if isinstance(command, Work):
                lease = lease_of(command)
                leases = self._workers[lease.worker].leases
                leases.append(lease)
                if len(leases) == 1:
                    self._start(lease, self._now_s + self._message_s)
            elif isinstance(command, Measure):
                self._inform(Measured(dict.fromkeys(self._workers, 0.0), 1))

    def _start(self, lease: Lease, now_s: float) -> None:
        worker = self._workers[lease.worker]
        busy_s, left = 0.0, lease.rows
        while left:
            rows = min(left, lease.batch_rows)
            busy_s += self._batch_s(lease.worker, worker.batches, rows)
            worker.batches, left = worker.batches + 1, left - rows
            worker.updates += rows / lease.batch_rows
        worker.busy_s += busy_s
        self._sent += 1
        end_s = now_s + busy_s
        heapq.heappush(self._ends, (end_s, self._sent, lease.worker, lease, busy_s))

    def _batch_s(self, name: str, batch: int, rows: int) -> float:
        speed = self.speeds(name, self._megabatch)
        slower = jitter_factor(self._noise, self._seed + 1, name, self._megabatch)
        factor = jitter_factor(self._cost.jitter, self._seed, name, batch)
        return self._cost.batch_s(rows, 0) / speed * slower * factor

    def _finish(self, end_s: float, _: int, name: str, lease: Lease, busy_s: float) -> None:
        worker = self._workers[name]
        worker.leases.popleft()
        if worker.leases:
            self._start(worker.leases[0], end_s)
        self._now_s = end_s + self._message_s
        updates = -(-lease.rows // lease.batch_rows)
        self._inform(WorkDone.alone(name, lease.rows, updates, busy_s))


def plain_speeds(speeds: Mapping[str, float]) -> Speeds:
    """Return speeds that never change."""
    return lambda name, megabatch: speeds[name]
