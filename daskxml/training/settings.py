"""What a worker must know to take part in a run; sent to it once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from daskxml.combine import CombineConfig
from daskxml.model.sampling import ALL_LABELS, SamplingConfig
from daskxml.model.spec import ModelSpec
from daskxml.optim import OptimizerConfig, ScheduleConfig

LOGITS_BYTES = 256 * 2**20  # for a batch's logits, where nothing else is known

MergedState = Literal["keep", "average", "reset"]


@dataclass(frozen=True, kw_only=True)
class MemberSettings:
    """What a worker must know to take part.

    Attributes
    ----------
    spec, optimizer, seed
        The model, how it steps, and the seed of the run.
    max_batch_rows, logits_budget_bytes
        What the replica allocates for. A budget of 0 is chosen by the worker:
        `daskxml.training.budget`.
    evaluation_rows
        Rows of a batch in evaluation.
    ks, propensity_a, propensity_b, training_rows
        For the metrics.
    row_nonzeros
        Features of a typical row, for the warm-up.
    stream_rows
        Rows of each stream of the ledger, to tell how far in an epoch a batch lies.
    device, threads, exact, output_dtype
        ``"cpu"`` or ``"cuda"``; threads of a CPU's kernels; whether a GPU multiplies matrices in
        float32; in which it has the output layer.
    sampling
        Which labels a batch sees.
    schedule, epochs
        How the learning rate changes with the epoch, and how many epochs the run has; 0 if that
        is not known.
    combine, rule
        How arrays of several workers become one; ``rule`` is ``combine.rule`` with "auto" resolved.
    is_joint, keeps_replicas, averages
        Of the strategy, see `daskxml.strategies.protocol.Strategy`.
    on_merge
        What a merge does with the optimizer's state.
    pool_threads
        Threads that update one model without locks; 0: a replica that steps batch after batch.
    shares_model
        The strategy's: all workers update one model, in memory that those of a machine share.
    host, home
        This worker's machine, and that of the shared model: elsewhere, models are pulled from
        there and changes pushed there.
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
    exact: bool = False
    output_dtype: str = "float32"
    sampling: SamplingConfig = ALL_LABELS
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    epochs: float = 0.0
    combine: CombineConfig = field(default_factory=CombineConfig)
    rule: str = "mean"
    is_joint: bool = False
    keeps_replicas: bool = False
    averages: bool = False
    on_merge: MergedState = "keep"
    pool_threads: int = 0
    shares_model: bool = False
    host: str = ""
    home: str = ""

    @property
    def kernel_threads(self) -> int:
        """Lanes of the kernels that do not step: all of a pool's threads."""
        return self.pool_threads or self.threads

    @property
    def is_at_home(self) -> bool:
        """Whether this worker is on the machine of the shared model."""
        return self.host == self.home

    @property
    def steps_in_place(self) -> bool:
        """Whether this worker changes the shared model itself, and not a copy of it."""
        return self.shares_model and self.is_at_home and self.pool_threads > 0
