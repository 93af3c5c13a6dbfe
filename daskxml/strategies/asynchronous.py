"""Asynchronous SGD: a parameter server without the barrier, with bounded staleness as an option.

Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014; the bound is
that of Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
Server", NIPS 2013.

======  =============  ===============================================================
symbol  here           meaning
======  =============  ===============================================================
b       ``batch_max``  rows of each worker's batch
lr      ``lr``         rate at which the server applies each gradient
s       ``staleness``  batches that a worker may be ahead of the slowest; below 0: any
======  =============  ===============================================================

The server applies each gradient when it comes; meanwhile others have changed the model that it was
computed at. Deviations: gangs are barriers, so the mega-batch, and pieces of it of about a second,
end together. Without a bound a gang's batches are shared by measured throughput, so that all are
through at about the same time. With one they are shared equally: in the long run no worker can
make more than the slowest. Clocks, not values, are bounded: a worker's model is the server's
at the time when its batch begins, with all updates that had come (SSP allows older ones).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from daskxml.core.fields import bounded
from daskxml.strategies.batches import BatchConfig, split_batches
from daskxml.strategies.gangs import GangStrategy, active, next_steps
from daskxml.strategies.protocol import Asynchronous, SyncPattern
from daskxml.strategies.state import MegabatchState


@dataclass(frozen=True, kw_only=True)
class Config(BatchConfig):
    """Settings of asynchronous SGD, beside those of `BatchConfig`.

    Attributes
    ----------
    staleness
        s; -1 is no bound.
    """

    staleness: int = bounded(-1, low=-1)


def batch_shares(state: MegabatchState, staleness: int) -> dict[str, float]:
    """Return each worker's share of a gang's batches: by throughput, or equal under a bound.

    Before all are measured, shares are equal.
    """
    speeds = {name: worker.rows_per_s for name, worker in active(state).items()}
    if staleness >= 0 or not all(speeds.values()):
        return dict.fromkeys(speeds, 1.0)
    return speeds


class AsynchronousSgd(GangStrategy):
    """The state machine; see `daskxml.strategies.gangs` for the life of a mega-batch."""

    config: Config

    def pattern(self, state: MegabatchState) -> SyncPattern:
        """Let a server apply each gradient when it comes."""
        return Asynchronous(self.config.staleness)

    def divide_rows(self, state: MegabatchState, sizes: Mapping[str, int]) -> dict[str, int]:
        """Share the batches of as many steps as fit."""
        step_rows = sum(sizes.values())
        rows = min(state.remaining_rows, next_steps(state, step_rows) * step_rows)
        return split_batches(
            rows, self.config.batch_max, batch_shares(state, self.config.staleness)
        )
