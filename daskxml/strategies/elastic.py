"""Elastic SGD: equal batches on every worker, and the mean of the replicas after a mega-batch.

Zhang, Choromanska and LeCun, "Deep Learning with Elastic Averaging SGD", NIPS 2015, and Zhou and
Cong, "On the Convergence Properties of a K-step Averaging Stochastic Gradient Descent Algorithm for
Nonconvex Optimization", IJCAI 2018; as Ma, Rusu, Wu and Sim compare with it ("Adaptive Elastic
Training for Sparse Deep Learning on Heterogeneous Multi-GPU Servers", 2021, section 2.2, Figure 3).

======  ==============  =================================================
symbol  here            meaning
======  ==============  =================================================
b       ``batch_max``   batch size of every worker
lr      ``lr``          learning rate of every worker's batch
N       merged workers  replicas with an update since the last merge
K       quota / b       batches of each worker between two merges
gamma   ``momentum``    momentum of the global model, that of Adaptive SGD's Algorithm 2
======  ==============  =================================================

Every worker makes the same number of batches, assigned when the mega-batch begins, so the slowest
worker decides when the merge comes. With momentum 0.9 the model moves as under Adaptive SGD, and on
one worker both are the same, as in the paper's section 5.2.1; ``momentum = 0`` is the plain mean of
K-step averaging. Deviations: K follows from the rows of a mega-batch, and the rows beyond full
batches for all are one smaller batch for each, at a rate in proportion; replicas are replaced by
their mean, as in K-step averaging, and not only drawn to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from daskxml.core.fields import bounded
from daskxml.strategies.batches import BatchConfig
from daskxml.strategies.megabatch import proportional_weights
from daskxml.strategies.protocol import Measured, Merge
from daskxml.strategies.quotas import QuotaStrategy
from daskxml.strategies.state import MegabatchState, WorkerState


@dataclass(frozen=True, kw_only=True)
class Config(BatchConfig):
    """Settings of Elastic SGD, beside those of `BatchConfig`.

    Attributes
    ----------
    momentum
        gamma.
    """

    momentum: float = bounded(0.9, low=0, below=1)


class ElasticSgd(QuotaStrategy):
    """The state machine; see `daskxml.strategies.quotas` for how rows are assigned."""

    scales_parts = True

    config: Config

    def rate(self, worker: WorkerState) -> float:
        """Return the rate of all workers; the threads of a pool step with a part of it."""
        return self.config.lr / worker.updates_per_batch

    def merge(self, state: MegabatchState, measured: Measured) -> Merge:
        """Weigh every replica by 1 / N."""
        weights = proportional_weights(state.members, dict.fromkeys(state.members, 1.0))
        return Merge(weights, self.config.momentum, perturbed=False)
