"""Adaptive Hogbatch: batch sizes follow each worker's number of updates, one shared model.

Ma, Rusu, Wu and Sim, "Adaptive Stochastic Gradient Descent for Deep Learning on Heterogeneous
CPU+GPU Architectures", IPDPSW 2021, Algorithm 2 and section VI-C.

=============  ============================  ==================================================
symbol         here                          meaning
=============  ============================  ==================================================
b^E            ``Member.batch_size``         batch size of worker E, doubled or halved
t              ``Device.pool_threads``       threads of a pool: updates of one of its batches
u^E            ``surviving_updates``         updates of worker E since the run began
min_u, max_u   over all others               least and most updates of all workers but E
min_b, max_b   ``bounds_of``                 bounds of b^E by kind of device, Table II
alpha          ``alpha``                     factor by which a size changes
beta           ``beta``                      share of a pool's concurrent updates that survive
eta            ``lr * rows / batch_max``     rate of an update that is the mean over so many rows
=============  ============================  ==================================================

Whoever made fewer updates than all others gets smaller batches, and so is sped up; whoever made
more gets larger ones. A pool begins at its lower bound, a replica at its upper one. Lines 1 to 5
are read from the prose of section VI-C. Deviations: no row is dropped, where fewer than b^E are
left the batch is smaller (line 6); with ``lease_s`` above 0 sizes change once a lease and not once
a batch, and what waits at the worker's door keeps its size. A worker that was left out of a whole
mega-batch, because others would have done its batch sooner, is tested as if it asked for work then,
and may only shrink, lest it never works again. A newcomer counts as having the least updates of
the others, so that nobody's size changes by its coming; a lost worker counts no more.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar

from daskxml.fields import bounded
from daskxml.strategies.batches import BoundedConfig
from daskxml.strategies.members import Member, State
from daskxml.strategies.protocol import Event, LeaseDone, Started, WorkerJoined
from daskxml.strategies.shared_model import SharedConfig, SharedModelStrategy


@dataclass(frozen=True, kw_only=True)
class Config(SharedConfig, BoundedConfig):
    """Settings of Adaptive Hogbatch, beside those of `SharedConfig` and `BoundedConfig`.

    Attributes
    ----------
    alpha
        By what a batch size is multiplied or divided.
    beta
        Share of the updates of a pool's threads that count.

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


def surviving_updates(member: Member, beta: float) -> float:
    """Return u^E: of concurrent updates only a share counts.

    >>> surviving_updates(Member(batch_size=8, pool_threads=4, total_updates=10), beta=0.5)
    5.0
    """
    return member.total_updates * (beta if member.pool_threads else 1.0)


def next_size(
    size: float, own: float, others: Collection[float], bounds: tuple[int, int], alpha: float
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


class AdaptiveHogbatch(SharedModelStrategy):
    """The state machine; see `daskxml.strategies.shared_model` for who gets which rows."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config

    def hear(self, state: State, event: Event) -> State:
        """Book an event; whoever is done with a lease asks for work, with a new batch size."""
        heard = super().hear(state, event)
        match event:
            case LeaseDone(worker):
                member = replace(heard.members[worker], batch_size=self.size_for(heard, worker))
                return replace(heard, members={**heard.members, worker: member})
            case Started() | WorkerJoined():
                known = state.members
                return self._admit(
                    heard, {n for n, m in heard.members.items() if m is not known.get(n)}
                )
        return heard

    def size_for(self, state: State, worker: str) -> float:
        """Return the next batch size of a worker."""
        config, member = self.config, state.members[worker]
        counts = {n: surviving_updates(m, config.beta) for n, m in state.members.items()}
        own = counts.pop(worker)
        bounds = config.bounds_of(member.pool_threads)
        return next_size(member.batch_size, own, counts.values(), bounds, config.alpha)

    def scale(self, state: State) -> dict[str, float]:
        """Let those shrink who were left out of this mega-batch."""
        idle = {n: m for n, m in state.members.items() if not (m.rows or m.came_late)}
        return {n: min(m.batch_size, self.size_for(state, n)) for n, m in idle.items()}

    def _admit(self, state: State, newcomers: Collection[str]) -> State:
        """Let newcomers count as having the least updates of the others."""
        beta, members = self.config.beta, dict(state.members)
        counts = [surviving_updates(m, beta) for n, m in members.items() if n not in newcomers]
        for name in newcomers:
            share = beta if members[name].pool_threads else 1.0
            least = min(counts, default=0.0) / share
            members[name] = replace(members[name], total_updates=least)
        return replace(state, members=members)

    Config = Config  # at the end, where it hides nothing
