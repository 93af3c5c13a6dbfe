"""Gradient aggregation, central storage: one holder of the model applies all updates.

Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014, with the
barrier of synchronous SGD; the central storage strategy of Ma, Rusu, Wu and Sim, "Adaptive Elastic
Training for Sparse Deep Learning on Heterogeneous Multi-GPU Servers", 2021, section 2.3, with the
batches of section 5.1.

======  =========================  ==========================================================
symbol  here                       meaning
======  =========================  ==========================================================
N       workers of the gang        each computes gradients at the server's model
b       ``batch_max / N``          rows of each worker's batch; ``batch_max`` if not divided
lr      ``lr * rows / batch_max``  rate of a step, by the rows that its gradient is a mean of
======  =========================  ==========================================================

The steps are those of `daskxml.strategies.mirrored`; only the reduction differs: every worker
pushes its gradient to the server and pulls the new model, and no two workers talk to each other.
Deviations: the server is a thread of the first worker's process, not a machine of its own; where
another worker becomes the first, the server's optimizer starts from zero there.
"""

from __future__ import annotations

from daskxml.strategies.megabatch import MegabatchState
from daskxml.strategies.mirrored import MirroredSgd
from daskxml.strategies.protocol import Central, SyncPattern


class CentralSgd(MirroredSgd):
    """The state machine; see `daskxml.strategies.gangs` for the life of a mega-batch."""

    shares_optimizer = False
    rules: tuple[str, ...] = ("mean", "sum")

    def pattern(self, state: MegabatchState) -> SyncPattern:
        """Let a server combine the gradients of all."""
        return Central()
