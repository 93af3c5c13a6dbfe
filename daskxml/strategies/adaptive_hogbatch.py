"""Adaptive Hogbatch: batch sizes follow each worker's number of updates, one shared model.

Ma, Rusu, Wu and Sim, "Adaptive Stochastic Gradient Descent for Deep Learning on Heterogeneous
CPU+GPU Architectures", IPDPSW 2021, Algorithm 2 and section VI-C.

============  =============================  ====================================================
symbol        here                           meaning
============  =============================  ====================================================
b^E           ``WorkerState.batch_size``     batch size of worker E, doubled or halved
t             ``WorkerDevice.pool_threads``  threads of a pool: updates of one of its batches
u^E           ``surviving_updates``          updates of worker E since the run began
min_u, max_u  over all others                least and most updates of all workers but E
min_b, max_b  ``bounds_of``                  bounds of b^E by kind of device, Table II
alpha         ``alpha``                      factor by which a size changes
beta          ``beta``                       share of a pool's concurrent updates that survive
eta           ``lr * rows / batch_max``      rate of an update that is the mean over so many rows
============  =============================  ====================================================

A worker with fewer updates than all others gets smaller batches, and so is sped up; one with more
gets larger ones. A pool begins at its lower bound, a replica at its upper one. Lines 1 to 5 are
read from the prose of section VI-C. Deviations: no row is dropped, where fewer than b^E are left
the batch is smaller (line 6); with ``lease_s`` above 0 sizes change once a lease and not once a
batch, and a queued lease keeps its size. A worker without any batch in a whole mega-batch, because
others would have finished it sooner, is treated as if it asked for work then, and may only shrink,
lest it never works again. A worker that joins counts as having the least updates of the others, so
that no size changes by its coming; a lost worker counts no more.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar

from daskxml.core.fields import bounded
from daskxml.strategies.batches import BoundedConfig
from daskxml.strategies.protocol import Event, Started, WorkDone, WorkerJoined
from daskxml.strategies.shared_model import SharedConfig, SharedModelStrategy
from daskxml.strategies.state import MegabatchState, WorkerState


@dataclass(frozen=True, kw_only=True)
class Config(SharedConfig, BoundedConfig):
    """Settings of Adaptive Hogbatch, beside those of `SharedConfig` and `BoundedConfig`.

    Attributes
    ----------
    alpha
        By what a batch size is multiplied or divided.
    beta
        Share of the updates of a pool's threads that count.
    utilization
        Share of its best throughput that a replica keeps: a lower bound of its batches that follows
        from the times of its leases, beside ``batch_min`` (section VI-C names it as an alternative;
        the paper's bound is at about a half). 0: none.
    utilization_max
        Share of its best throughput from which on a replica's batches grow no more: an upper bound
        beside ``batch_max`` (the paper's is close to 1). 0: none.

    Examples
    --------
    Table II has 64 to 8,192 rows for a GPU and 1 to 64 for each thread.

    >>> config = Config(batch_max=8192)
    >>> config.bounds_of(0), config.bounds_of(56)
    ((64, 8192), (56, 3584))
    """

    least_share: ClassVar[int] = 128
    alpha: float = bounded(2.0, above=1)
    beta: float = bounded(1.0, above=0, high=1)
    utilization: float = bounded(0.0, low=0, below=1)
    utilization_max: float = bounded(0.0, low=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0.0 < self.utilization_max <= self.utilization:
            problem = f"must be above utilization = {self.utilization:g}"
            raise self.refusal("utilization_max", problem)


def surviving_updates(worker: WorkerState, beta: float) -> float:
    """Return u^E, of concurrent updates a share only.

    >>> surviving_updates(WorkerState(batch_size=8, pool_threads=4, total_updates=10), beta=0.5)
    5.0
    """
    return worker.total_updates * (beta if worker.pool_threads else 1.0)


def next_size(
    size: float, own: float, others: Collection[float], bounds: tuple[float, float], alpha: float
) -> float:
    """Algorithm 2, lines 1 to 5: the batch size of a worker that asks for work.

    Parameters
    ----------
    size
        Its batch size in rows.
    own, others
        Its updates, and those of all others.
    bounds
        Its least and its largest batch.
    alpha
        By what the size changes.

    Examples
    --------
    >>> [next_size(16, own, {5, 9}, (8, 24), 2.0) for own in (4, 5, 9, 10)]
    [8.0, 16, 16, 24]
    """
    low, high = bounds
    if others and own < min(others):
        return max(size / alpha, low)
    if others and own > max(others):
        return min(size * alpha, high)
    return size


def least_size(size: float, throughput: float, best: float, utilization: float) -> float:
    """Return the batch size that uses a device so far, by what it does with this size.

    A batch takes a fixed time and one for its rows, so with ``f = throughput / best`` its fixed
    time is that of ``size (1 - f) / f`` rows.

    Examples
    --------
    Half used with 64 rows, it is used to three quarters with 192:

    >>> [least_size(64, 50.0, 100.0, utilization) for utilization in (0.5, 0.75)]
    [64.0, 192.0]
    """
    used = throughput / best
    return utilization / (1.0 - utilization) * size * (1.0 - used) / used


class AdaptiveHogbatch(SharedModelStrategy):
    """The state machine; see `daskxml.strategies.shared_model` for how rows are leased."""

    config: Config

    def record(self, state: MegabatchState, event: Event) -> MegabatchState:
        """Resize the batches of a worker with a finished lease: it asks for work."""
        known, state = state.members, super().record(state, event)
        match event:
            case WorkDone():
                (name,) = event.rows
                worker = state.members[name]
                best = max(worker.best_rows_per_s, worker.rows_per_s)
                size = self.size_for(state, name, self._used_bounds(event, best))
                worker = replace(worker, batch_size=size, best_rows_per_s=best)
                return replace(state, members={**state.members, name: worker})
            case Started() | WorkerJoined():
                new = {n for n, worker in state.members.items() if worker is not known.get(n)}
                return self._admit(state, new)
        return state

    def size_for(
        self, state: MegabatchState, name: str, used: tuple[float, float] = (0.0, math.inf)
    ) -> float:
        """Return the next batch size of a worker; a replica's is within ``used``, too."""
        config, worker = self.config, state.members[name]
        counts = {n: surviving_updates(w, config.beta) for n, w in state.members.items()}
        own = counts.pop(name)
        low, high = config.bounds_of(worker.pool_threads)
        bounds: tuple[float, float] = low, high
        if not worker.pool_threads:
            low = max(low, min(math.ceil(used[0]), math.floor(worker.batch_size)))
            bounds = low, min(high, max(used[1], low))
        return next_size(worker.batch_size, own, counts.values(), bounds, config.alpha)

    def _used_bounds(self, done: WorkDone, best: float) -> tuple[float, float]:
        """Return the least and the largest batch by how far a lease used its device."""
        config = self.config
        rows, updates, busy_s = (
            sum(each.values()) for each in (done.rows, done.updates, done.busy_s)
        )
        if not ((config.utilization or config.utilization_max) and busy_s > 0.0):
            return 0.0, math.inf
        size, throughput = rows / updates, rows / busy_s
        is_used = 0.0 < config.utilization_max * best <= throughput
        return least_size(size, throughput, best, config.utilization), size if is_used else math.inf

    def scale(self, state: MegabatchState) -> MegabatchState:
        """Shrink the batches of workers without any in this mega-batch."""
        state = super().scale(state)
        members = dict(state.members)
        for name, worker in state.members.items():
            if not (worker.rows or worker.came_late):
                size = min(worker.batch_size, self.size_for(state, name))
                members[name] = replace(worker, batch_size=size)
        return replace(state, members=members)

    def _admit(self, state: MegabatchState, new: Collection[str]) -> MegabatchState:
        """Count new workers as having the least updates of the others."""
        beta, members = self.config.beta, dict(state.members)
        counts = [surviving_updates(w, beta) for n, w in members.items() if n not in new]
        for name in new:
            share = beta if members[name].pool_threads else 1.0
            least = min(counts, default=0.0) / share
            members[name] = replace(members[name], total_updates=least)
        return replace(state, members=members)
