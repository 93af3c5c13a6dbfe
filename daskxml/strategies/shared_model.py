"""The bookkeeping that strategies share whose workers all update one model.

Replicas (a GPU, or a process that stands for one) copy the model for every batch and add their
change to it; the threads of pools update it in place. So nothing is merged: at the end of a
mega-batch, when all workers are idle, the model is evaluated as it stands. A lost worker takes its
leases under way with it, and nothing else.

The papers' coordinator sends one batch a message. A message costs milliseconds on a cluster, so a
lease is a short time's worth of batches of the current size, and one is queued while another runs;
``lease_s = 0`` is one batch, and none is queued. A slow worker gets no batch at the end of a
mega-batch that others could finish sooner (`daskxml.strategies.dispatch`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from daskxml.core.fields import bounded
from daskxml.strategies.batches import BatchConfig
from daskxml.strategies.dispatch import IN_FLIGHT, LONGEST_LEASE_S, SHORTEST_LEASE_S, LeasePolicy
from daskxml.strategies.megabatch import Strategy, proportional_weights
from daskxml.strategies.protocol import Measured, Merge
from daskxml.strategies.state import MegabatchState, WorkerState


@dataclass(frozen=True, kw_only=True)
class SharedConfig(BatchConfig):
    """Settings of every strategy with a shared model, beside those of `BatchConfig`.

    Attributes
    ----------
    lease_s
        Seconds of work in a lease, at least one batch; 0: one batch, the papers' message.
    scaling
        ``"linear"``: an update's rate is in proportion to its rows (Ma et al., section VI-B);
        ``"none"``: it is ``lr`` for any size, and small batches, which are many, count for more.
    pool_lr
        Takes the place of ``lr`` for pools: a rate for each kind of device; 0: ``lr``.
    lower_stale
        Divide a replica's rate by its staleness, where that is above 1: by how many updates the
        others made for each of its own in the last mega-batch (the paper's option in section VI-B;
        the divisor is that of Jiang, Cui, Zhang and Yu, "Heterogeneity-aware Distributed Parameter
        Servers", SIGMOD 2017, with counts instead of clocks). The first mega-batch has full
        rates.
    """

    lease_s: float = bounded(SHORTEST_LEASE_S, low=0, high=LONGEST_LEASE_S)
    scaling: Literal["linear", "none"] = "linear"
    pool_lr: float = bounded(0.0, low=0)
    lower_stale: bool = False


def update_shares(workers: Mapping[str, WorkerState]) -> dict[str, float]:
    """Return each worker's share of the updates; equal ones where there are none.

    Examples
    --------
    >>> gpu, cpu = WorkerState(batch_size=64, updates=1), WorkerState(batch_size=1, updates=3)
    >>> update_shares({"gpu": gpu, "cpu": cpu})
    {'gpu': 0.25, 'cpu': 0.75}
    """
    return proportional_weights(workers, {n: w.updates or 1.0 for n, w in workers.items()})


def with_staleness(workers: Mapping[str, WorkerState]) -> dict[str, WorkerState]:
    """Return the workers with the staleness of each replica that made an update.

    Examples
    --------
    >>> gpu = WorkerState(batch_size=64, updates=2)
    >>> cpu = WorkerState(batch_size=4, pool_threads=4, updates=12)
    >>> [worker.staleness for worker in with_staleness({"gpu": gpu, "cpu": cpu}).values()]
    [6.0, 0.0]
    """
    total = sum(worker.updates for worker in workers.values())
    return {
        name: replace(worker, staleness=(total - worker.updates) / worker.updates)
        if worker.updates and not worker.pool_threads
        else worker
        for name, worker in workers.items()
    }


class SharedModelStrategy(Strategy):
    """A strategy with a shared model but for its batch sizes, which a subclass or its config adds.

    Parameters
    ----------
    config
        Batches, rate and leases.
    """

    shares_model = True
    rules: tuple[str, ...] = ("mean",)

    config: SharedConfig

    def rate(self, worker: WorkerState) -> float:
        """Return the device's rate, scaled with the rows of an update and lowered if it is stale.

        An update is that of a batch, or of a thread's part of one.
        """
        config = self.config
        lr = (worker.pool_threads and config.pool_lr) or config.lr
        if config.scaling == "linear":
            lr *= (worker.batch_rows / worker.updates_per_batch) / config.batch_max
        return lr / max(1.0, worker.staleness)

    def count_updates(self, worker: WorkerState, rows: int, updates: int) -> float:
        """Count every update of the model, those of each thread of a pool included."""
        return updates

    def scale(self, state: MegabatchState) -> MegabatchState:
        """Find out how stale replicas are, where rates are lowered by it."""
        if not self.config.lower_stale:
            return state
        return replace(state, members=with_staleness(state.members))

    def merge(self, state: MegabatchState, measured: Measured) -> Merge:
        """Report the shares of the updates."""
        return Merge(update_shares(state.members), 0.0, perturbed=False)

    def policy(self, state: MegabatchState) -> LeasePolicy:
        """Return leases of the configured length."""
        lease_s = self.config.lease_s
        return LeasePolicy(lease_s, IN_FLIGHT if lease_s else 1)
