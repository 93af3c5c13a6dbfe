"""Gradient aggregation: synchronous SGD by the gradients of all workers at every step.

*Mirrored*, by an all-reduce: Chen, Monga, Bengio and Jozefowicz, "Revisiting Distributed
Synchronous SGD", 2016. *Central storage*, by one holder of the model: Li et al., "Scaling
Distributed Machine Learning with the Parameter Server", OSDI 2014, with the barrier of synchronous
SGD. Both with the batches of Ma, Rusu, Wu and Sim, "Adaptive Elastic Training for Sparse Deep
Learning on Heterogeneous Multi-GPU Servers", 2021, sections 2.2 (Figure 2), 2.3 and 5.1.

======  =========================  ==========================================================
symbol  here                       meaning
======  =========================  ==========================================================
N       workers of the gang        mirrored: each has a replica, all replicas are equal
b       ``batch_max / N``          rows of each worker's batch; ``batch_max`` if not divided
lr      ``lr * rows / batch_max``  rate of a step, by the rows that its gradient is a mean of
======  =========================  ==========================================================

A step is the mean of the gradients over all rows of all workers' batches. Section 5.1 divides the
batch by the number of workers, so that there are as many updates as with one worker. Deviations:
where ``batch_max`` is no multiple of N, batches differ by a row, and a step has ``batch_max`` rows
all the same; the last step of a mega-batch may be smaller, at the same rate. The combine rule may
be Adasum: it does not make the batch larger as a mean does (Maleki et al. 2021, section 4.1), so
that the rate should count one worker's rows (``lr_rows = "batch"``).

With central storage every worker pushes its gradient to the server and pulls the new model, and no
two workers talk to each other. Deviations: the server is a thread of the first worker's process,
not a machine of its own; where another worker becomes the first, the server's optimizer starts from
zero there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from daskxml.strategies.batches import BatchConfig, apportion
from daskxml.strategies.gangs import SynchronousStrategy
from daskxml.strategies.protocol import Central, SyncPattern
from daskxml.strategies.state import MegabatchState, WorkerState


@dataclass(frozen=True, kw_only=True)
class Config(BatchConfig):
    """Settings of gradient aggregation, beside those of `BatchConfig`.

    Attributes
    ----------
    divide
        Divide ``batch_max`` among the workers; otherwise each has a batch of that size.
    lr_rows
        Whose rows linear scaling counts: those of the whole ``"step"``, or those of one worker's
        ``"batch"``.
    """

    divide: bool = True
    lr_rows: Literal["step", "batch"] = "step"


class MirroredSgd(SynchronousStrategy):
    """Mirrored: the state machine; see `daskxml.strategies.gangs` for the life of a mega-batch."""

    config: Config

    def batch_sizes(self, workers: Mapping[str, WorkerState]) -> dict[str, int]:
        """Divide the batch (section 5.1).

        >>> MirroredSgd(Config(batch_max=64)).batch_sizes(dict.fromkeys("abc"))
        {'a': 22, 'b': 21, 'c': 21}
        """
        if not self.config.divide:
            return super().batch_sizes(workers)
        return apportion(self.config.batch_max, dict.fromkeys(workers, 1))

    def step_rate(self, sizes: Mapping[str, int]) -> float:
        """Scale the rate with the rows of a step.

        >>> MirroredSgd(Config(lr=0.5, batch_max=64)).step_rate({"a": 64, "b": 64})
        1.0
        """
        rows = float(sum(sizes.values()))
        if self.config.lr_rows == "batch":
            rows /= max(1, len(sizes))
        return self.config.lr * rows / self.config.batch_max


class CentralSgd(MirroredSgd):
    """Central storage: the same, but for the reduction."""

    shares_optimizer = False
    rules: tuple[str, ...] = ("mean", "sum")

    def pattern(self, state: MegabatchState) -> SyncPattern:
        """Let a server combine the gradients of all."""
        return Central()
