"""The settings of a worker in a run: its run file, the facts of the data, and its slot."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from daskxml.config import RunConfig
from daskxml.models.network.spec import ModelSpec
from daskxml.strategies.megabatch import Strategy
from daskxml.strategies.protocol import WorkerDevice

if TYPE_CHECKING:
    from daskxml.data.reading import Facts
    from daskxml.session.placement import Placement

LOGITS_BYTES = 256 * 2**20  # for a batch's logits, where nothing else is known

MergedState = Literal["keep", "average", "reset"]


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """Facts of the run's training rows, which a worker gets before any rows.

    Attributes
    ----------
    spec
        The network for their features and labels.
    rows
        Number of training rows.
    stream_rows
        Rows of each stream of the ledger, to compute the epoch of a batch.
    row_nonzeros
        Features of a typical row, for planning memory and for the warm-up.
    """

    spec: ModelSpec
    rows: int
    stream_rows: tuple[int, ...]
    row_nonzeros: int

    @classmethod
    def of(cls, spec: ModelSpec, placement: Placement, facts: Facts) -> DataFacts:
        """Return the facts of rows that are as ``placement`` says."""
        return cls(
            spec=spec,
            rows=sum(placement.train_rows),
            stream_rows=placement.streams(),
            row_nonzeros=max(1, facts.nonzeros // facts.rows),
        )


@dataclass(frozen=True, kw_only=True)
class WorkerSlot:
    """The place in which a worker computes.

    Attributes
    ----------
    device, threads
        The kernels' device, ``"cpu"`` or ``"cuda"``, and their threads on a CPU.
    pool_threads
        Threads that update one model without locks; 0: a replica that steps batch after batch.
    host
        The worker's machine.
    memory_bytes
        What the worker's process may take in all; 0: as much as the machine has.
    process
        Dask's id of that process: another one may come to its address.
    """

    device: str = "cpu"
    threads: int = 1
    pool_threads: int = 0
    host: str = ""
    memory_bytes: int = 0
    process: str = ""

    @property
    def kernel_threads(self) -> int:
        """Threads of the kernels that do not step: all of a pool's."""
        return self.pool_threads or self.threads


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """The settings of a worker in a run, sent to it once.

    Attributes
    ----------
    config, data, slot
        The run file, the facts of the training rows, and the worker's place.
    max_batch_rows
        The largest batch that the strategy leases to it.
    logits_budget_bytes
        Memory for a batch's logits; 0: the worker chooses (`daskxml.worker.memory`).
    """

    config: RunConfig
    data: DataFacts
    slot: WorkerSlot
    max_batch_rows: int
    logits_budget_bytes: int

    @classmethod
    def of(cls, config: RunConfig, data: DataFacts, slot: WorkerSlot) -> WorkerSettings:
        """Return the settings of a worker in a run."""
        budget = config.training.logits_budget
        return cls(
            config=config,
            data=data,
            slot=slot,
            max_batch_rows=config.make_strategy().max_batch_rows(WorkerDevice(slot.pool_threads)),
            logits_budget_bytes=0 if budget == "auto" else budget,
        )

    @cached_property
    def strategy(self) -> Strategy:
        """The strategy, for its traits."""
        return self.config.make_strategy()

    @property
    def steps_in_place(self) -> bool:
        """Whether this worker steps on the shared model itself, and not on a copy."""
        return self.strategy.shares_model and self.slot.pool_threads > 0

    @property
    def state_on_merge(self) -> MergedState:
        """How a merge treats the optimizer's state."""
        return "average" if self.strategy.shares_optimizer else self.config.optimizer.on_merge
