"""Gradient aggregation, central storage: one holder of the model applies all updates.

Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014, with the
barrier of synchronous SGD; the central storage strategy of Ma, Rusu, Wu and Sim, "Adaptive Elastic
Training for Sparse Deep Learning on Heterogeneous Multi-GPU Servers", 2021, section 2.3, with the
batches of section 5.1.

=======  ==========================  ========================================================
symbol   here                        meaning
=======  ==========================  ========================================================
N        workers of the gang         each computes gradients at the server's model
b        ``batch_max / N``           rows of each worker's batch; ``batch_max`` if not divided
lr       ``lr * rows / batch_max``   rate of a step, by the rows that its gradient is a mean of
=======  ==========================  ========================================================

The steps are those of `daskxml.strategies.mirrored`; what differs is who reduces: every worker
pushes its gradient to the server and pulls the new model, and no two workers talk to each other.
Deviations: the server is a thread of the first worker's process, not a machine of its own; where
another worker becomes the first, the server's optimizer begins anew there.
"""

from __future__ import annotations

from collections.abc import Mapping

from daskxml.strategies.gangs import GangStrategy, Member, State
from daskxml.strategies.mirrored import Config, divided_batch, step_rate
from daskxml.strategies.schemes import Central, Scheme


class CentralSgd(GangStrategy):
    """The state machine; see `daskxml.strategies.gangs` for the life of a mega-batch."""

    rules: tuple[str, ...] = ("mean", "sum")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config

    def scheme(self, state: State) -> Scheme:
        """Let a server combine the gradients of all."""
        return Central()

    def batch_sizes(self, members: Mapping[str, Member]) -> dict[str, int]:
        """Divide the batch."""
        return divided_batch(members, self.config)

    def rate(self, sizes: Mapping[str, int]) -> float:
        """Scale the rate with the rows of a step."""
        return step_rate(sizes, self.config)

    Config = Config  # at the end, where it hides nothing
