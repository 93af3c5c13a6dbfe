"""CROSSBOW, synchronous model averaging: learners corrected after every batch by their divergence.

Kolios, Watcharapichat, Weidlich, Mai, Costa and Pietzuch, "CROSSBOW: Scaling Deep Learning with
Small Batch Sizes on Multi-GPU Servers", PVLDB 12(11), 2019; Algorithm 1 (SMA).

======  =====================  ============================================================
symbol  here                   meaning
======  =====================  ============================================================
w_j     a worker's replica     its learner; it lives on from mega-batch to mega-batch
z       the average model      what is evaluated, and what a merge broadcasts
alpha   ``pull``               share of w_j - z by which both are drawn; 0 stands for 1 / N
mu      ``momentum``           momentum of the average model
b, lr   ``batch_max``, ``lr``  of every learner
======  =====================  ============================================================

After every batch ``c_j = alpha (w_j - z)``, ``w_j -= c_j`` and ``z += sum_j c_j + mu (z - z')``,
``z'`` being the average model one batch before. Deviations: one learner for each worker, and all
synchronize after every batch; the algorithm is not restarted, replicas becoming the average model,
when the learning rate changes: Ma et al. 2021 (section 5.2.1) find no rule for when to do so.
"""

from __future__ import annotations

from dataclasses import dataclass

from daskxml.core.fields import bounded
from daskxml.strategies.batches import BatchConfig
from daskxml.strategies.gangs import GangStrategy, active
from daskxml.strategies.protocol import Averaging, SyncPattern
from daskxml.strategies.state import MegabatchState


@dataclass(frozen=True, kw_only=True)
class Config(BatchConfig):
    """Settings of CROSSBOW, beside those of `BatchConfig`.

    Attributes
    ----------
    pull
        alpha; 0 stands for 1 / N.
    momentum
        mu.
    """

    pull: float = bounded(0.0, low=0, high=1)
    momentum: float = bounded(0.9, low=0, below=1)


class Crossbow(GangStrategy):
    """The state machine; see `daskxml.strategies.gangs` for the life of a mega-batch."""

    averages = True
    config: Config

    def pattern(self, state: MegabatchState) -> SyncPattern:
        """Correct learners and average model after every batch."""
        pull = self.config.pull or 1.0 / len(active(state))
        return Averaging(pull, self.config.momentum)
