"""What a worker must know to take part in a run; sent to it once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from daskxml.combine import CombineConfig
from daskxml.model.spec import ModelSpec
from daskxml.optim import OptimizerConfig, ScheduleConfig

MergedState = Literal["keep", "average", "reset"]


@dataclass(frozen=True, kw_only=True)
class MemberSettings:
    """What a worker must know to take part.

    Attributes
    ----------
    spec, optimizer, seed
        The model, how it steps, and the seed of the run.
    max_batch_rows, logits_budget_bytes
        What the replica allocates for.
    evaluation_rows
        Rows of a batch in evaluation.
    ks, propensity_a, propensity_b, training_rows
        For the metrics.
    row_nonzeros
        Features of a typical row, for the warm-up.
    stream_rows
        Rows of each stream of the ledger, to tell how far in an epoch a batch lies.
    device, threads
        ``"cpu"`` or ``"cuda"``; kernel threads.
    schedule, epochs
        How the learning rate changes with the epoch, and how many epochs the run has; 0 if that
        is not known.
    combine, rule
        How arrays of several workers become one; ``rule`` is ``combine.rule`` with "auto" resolved.
    is_joint, keeps_replicas, averages
        Of the strategy, see `daskxml.strategies.protocol.Strategy`.
    on_merge
        What a merge does with the optimizer's state.
    """

    spec: ModelSpec
    optimizer: OptimizerConfig
    seed: int
    max_batch_rows: int
    logits_budget_bytes: int
    evaluation_rows: int
    ks: tuple[int, ...]
    propensity_a: float
    propensity_b: float
    training_rows: int
    row_nonzeros: int
    stream_rows: tuple[int, ...]
    device: str
    threads: int
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    epochs: float = 0.0
    combine: CombineConfig = field(default_factory=CombineConfig)
    rule: str = "mean"
    is_joint: bool = False
    keeps_replicas: bool = False
    averages: bool = False
    on_merge: MergedState = "keep"
