"""Adasum of what local steps changed: replicas step on their own, then their changes are combined.

Maleki, Musuvathi, Mytkowicz, Saarikivi, Xu, Eksarevskiy, Ekanayake and Barsoum, "Scaling
Distributed Training with Adaptive Summation", MLSys 2021; section 4.1 (Figure 3) and, for several
local steps, section 5.2.

======  =====================  ====================================================
symbol  here                   meaning
======  =====================  ====================================================
N       workers                each steps with an optimizer of its own
b, lr   ``batch_max``, ``lr``  of one worker: Adasum does not enlarge the batch
k       ``local_steps``        steps of each worker before the changes are combined
======  =====================  ====================================================

The combination is Adasum, layer by layer, unless the run file's ``[combine]`` chooses the sum or
the mean: then it is the control that the paper compares with. For Adasum of gradients, before the
optimizer, see `daskxml.strategies.mirrored`. Deviations: the changes are combined at the end of a
mega-batch as well, where it is no multiple of k steps; its last step may be smaller, at the same
rate.
"""

from __future__ import annotations

from dataclasses import dataclass

from daskxml.core.fields import bounded
from daskxml.strategies.batches import BatchConfig
from daskxml.strategies.gangs import GangStrategy
from daskxml.strategies.protocol import LocalSteps, SyncPattern
from daskxml.strategies.state import MegabatchState


@dataclass(frozen=True, kw_only=True)
class Config(BatchConfig):
    """Settings of Adasum, beside those of `BatchConfig`.

    Attributes
    ----------
    local_steps
        k.
    """

    local_steps: int = bounded(1, low=1)


class AdasumSgd(GangStrategy):
    """The state machine; see `daskxml.strategies.gangs` for the life of a mega-batch."""

    rules: tuple[str, ...] = ("adasum", "sum", "mean")

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.round_steps = config.local_steps

    def pattern(self, state: MegabatchState) -> SyncPattern:
        """Combine changes after so many local steps."""
        return LocalSteps(self.config.local_steps)
