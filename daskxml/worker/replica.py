"""One worker's model, which steps by batches and ranks the labels of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from daskxml.core.arrays import Array, Segment
from daskxml.core.errors import ConfigError, TrainingError
from daskxml.core.work_stats import WorkStats
from daskxml.kernels import Kernels
from daskxml.kernels.operands import StepSizes
from daskxml.models.batch import batch_rows
from daskxml.models.network.mlp import Mlp, RowStep, takes_row_steps
from daskxml.models.network.sampling import ALL_LABELS, SamplingConfig
from daskxml.models.network.spec import Layout, ModelSpec
from daskxml.optim import GradientBuffer, Optimizer, OptimizerConfig

if TYPE_CHECKING:
    from daskxml.kernels.cpu.kernels import CpuKernels
    from daskxml.kernels.cuda.kernels import CudaKernels
    from daskxml.models.network.captured import CapturedStep
    from daskxml.models.network.hash_tables import LabelTables


class Replica:
    """A model's parameters on one device, with everything that a step needs allocated once.

    Parameters
    ----------
    spec, optimizer
        The model's shape, and how gradients change it.
    kernels
        The device. Batches must be there (``kernels.to_device``).
    max_batch_rows
        The largest batch of ``step``, and that in which rows are ranked.
    logits_budget_bytes
        Where rows x labels floats exceed it, labels are walked in blocks.
    sampling
        Which labels `step` and `gradient` compute.
    tables
        Hash tables that name labels of a sample, if any do; `label_tables` makes them.
    flat
        A vector to step on, instead of one of its own: ``(layout.size,)`` float32 on the
        device, aligned to 64 bytes.
    partner
        A replica over the same ``flat``, to have the optimizer's state in common with.
    output_dtype
        In which steps have the output layer: ``float32``; on a GPU also ``float16``, the operands
        of its products and its logits.

    Attributes
    ----------
    flat
        ``(layout.size,)`` float32, zero at first unless it was given: write initial parameters
        into it, in place (``kernels.copy``). It is never replaced by another array.
    layout
        Which parameter is where in ``flat``.

    Raises
    ------
    ConfigError
        If max_batch_rows or the budget is below 1, or ``flat`` is of another size.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.kernels import get_kernels
    >>> from daskxml.core.arrays import Csr, Partition
    >>> x = Csr(np.array([0, 1, 2]), np.array([0, 1], np.int32), np.ones(2, np.float32), 2)
    >>> part = Partition(x, Csr(x.indptr, x.indices, None, 2))
    >>> replica = Replica(ModelSpec(features=2, labels=2, hidden=()), OptimizerConfig(),
    ...                   get_kernels("cpu", 1), max_batch_rows=2)
    >>> result = replica.step([Segment(part, np.arange(2))], lr=1.0, key=0)
    >>> round(result.loss_sum, 4), result.rows, result.nonzeros
    (1.3863, 2, 2)
    >>> replica.top_k([Segment(part, np.arange(2))], k=1)[0].tolist()
    [[0], [1]]
    """

    def __init__(
        self, spec: ModelSpec, optimizer: OptimizerConfig, kernels: Kernels, *,
        max_batch_rows: int, logits_budget_bytes: int = 256 * 2**20,
        sampling: SamplingConfig = ALL_LABELS, tables: LabelTables | None = None,
        flat: Array | None = None, partner: Replica | None = None, output_dtype: str = "float32",
    ) -> None:  # fmt: skip
        for name, value in (("max_batch_rows", max_batch_rows), ("budget", logits_budget_bytes)):
            if value < 1:
                raise ConfigError(f"replica: {name} = {value}: must be at least 1")
        self.spec, self.kernels, self.max_batch_rows = spec, kernels, max_batch_rows
        self.layout = Layout(spec)
        flat = kernels.zeros(self.layout.size) if flat is None else flat
        if flat.shape != (self.layout.size,):
            raise ConfigError(
                f"replica: a vector of {flat.size} numbers: the model has {self.layout.size}"
            )
        self.flat, self.parameters = flat, self.layout.views(flat)
        self._optimizer_config = optimizer
        self.optimizer: Optimizer = self.optimizer_for(self.parameters, partner)
        self.tables, self._sampling = tables, sampling
        self._mlp = Mlp(
            spec, kernels, self.parameters, max_batch_rows, logits_budget_bytes, sampling, tables,
            output_dtype == "float16", self.optimizer.in_place("output.weight", 1.0) is not None,
        )  # fmt: skip
        is_plain = optimizer.is_plain_sgd and not sampling.is_on
        fits = is_plain and takes_row_steps(spec, kernels, logits_budget_bytes)
        factor, place = optimizer.output_lr, (self.layout, flat)
        self._row_step = RowStep(spec, kernels, *place, factor) if fits else None
        self._captured: CapturedStep | None = None
        if is_plain and kernels.name == "cuda":
            from daskxml.models.network.captured import CapturedStep

            self._captured = CapturedStep(cast("CudaKernels", kernels), self._mlp, self.optimizer)

    @property
    def memory_bytes(self) -> int:
        """Bytes of parameters, optimizer state and buffers."""
        parts = self.flat, self.optimizer, self._mlp, self._row_step, self._captured
        return sum(int(part.nbytes) for part in parts if part is not None)

    @property
    def stores_logits(self) -> bool:
        """Whether a step keeps logits in memory, all or a block of them."""
        return not self._mlp.output.fuses_products

    @property
    def is_captured(self) -> bool:
        """Whether steps are captured: the numbers of their rows may be arrays of the host."""
        return self._captured is not None

    def optimizer_for(
        self, parameters: Mapping[str, Array], partner: Replica | None = None
    ) -> Optimizer:
        """Return a new optimizer of the same kind over a model's parameters by name."""
        common = partner.optimizer if partner is not None else None
        sizes = self.layout.views, self.layout.size
        return Optimizer(self._optimizer_config, self.kernels, parameters, *sizes, common)

    def twin(self, kernels: Kernels, max_batch_rows: int, logits_budget_bytes: int) -> Replica:
        """Return a replica over the same parameters, optimizer's state and hash tables.

        It has buffers of its own, so both may step at the same time in different threads.
        """
        return Replica(
            self.spec, self._optimizer_config, kernels, max_batch_rows=max_batch_rows,
            logits_budget_bytes=logits_budget_bytes, sampling=self._sampling, tables=self.tables,
            flat=self.flat, partner=self,
        )  # fmt: skip

    def weigh_labels(self, weights: Array | None) -> None:
        """Set what a row's labels count in the loss, ``(labels,)`` float32; None: all count 1."""
        self._mlp.output.label_weights = weights

    def forget_tables(self) -> None:
        """Hash the labels again before the next step, as the parameters are another model's."""
        if self.tables is not None:
            self.tables.reset()

    def tables_state(self) -> dict[str, Array]:
        """Return the label tables' own arrays: write into them to restore a state."""
        if self.tables is None:
            return {}
        return {f"sampling.{name}": array for name, array in self.tables.state().items()}

    def resume_tables(self) -> None:
        """Continue with the contents of `tables_state`."""
        if self.tables is not None:
            self.tables.resume(cast("CpuKernels", self.kernels))

    def resize(self, max_batch_rows: int) -> None:
        """Allow batches of ``max_batch_rows`` rows; buffers only ever grow.

        Raises
        ------
        ConfigError
            If max_batch_rows is below 1.
        """
        if max_batch_rows < 1:
            raise ConfigError(f"replica: max_batch_rows = {max_batch_rows}: must be at least 1")
        if max_batch_rows > self.max_batch_rows:
            if self._captured is not None:
                self._captured.release()  # graphs keep the buffers that they use
            self._mlp.reserve(max_batch_rows)
            self.max_batch_rows = max_batch_rows

    def reserve(self, rows: int, nonzeros: int) -> None:
        """Allocate the memory of steps of so many rows, with so many stored features or labels.

        `step` does so before it changes anything: a batch without room can be tried again.

        Raises
        ------
        MemoryError
            If the device has no room.
        """
        if self._captured is not None:
            self._captured.reserve(rows, nonzeros)
        self.kernels.reserve(self.sizes(rows, nonzeros))
        self.optimizer.reserve(rows, nonzeros)

    def release(self) -> None:
        """Free the memory that `reserve` can allocate again."""
        if self._captured is not None:
            self._captured.release()
        self.optimizer.release()
        self.kernels.release()

    def sizes(self, rows: int, nonzeros: int) -> StepSizes:
        """Return the sizes on which the kernels' own memory depends in such steps."""
        units = max(self.spec.hidden, default=1)
        if self._captured is not None:
            nonzeros = self._captured.room(nonzeros)
        sizes = {"features": self.spec.features, "labels": self.spec.labels, "units": units}
        return StepSizes(rows=rows, nonzeros=nonzeros, **sizes)

    def step(self, batch: Sequence[Segment], lr: float, key: int) -> WorkStats:
        """Update ``flat`` with the mean gradient over the batch's rows.

        Parameters
        ----------
        batch
            Up to ``max_batch_rows`` rows in segments; how they are split does not matter.
        lr
            Learning rate.
        key
            64 bits that seed dropout: the same key drops the same units on any device.

        Raises
        ------
        ConfigError
            If the batch is larger than max_batch_rows.
        MemoryError
            If the device has no room for it; nothing has changed then.
        """
        rows = batch_rows(batch)
        if rows == 0:
            return WorkStats()
        if rows == 1 and self._row_step is not None and not self._mlp.weighs(batch):
            loss, rows, nonzeros = self._row_step.step(batch, lr)
            return WorkStats(rows, 1, loss, nonzeros, self.spec.labels)
        self._check_rows(batch)
        if self._captured is not None and not self._mlp.weighs(batch):
            return self._captured_step(self._captured, batch, lr, key)
        nonzeros = self.count(batch)
        self.reserve(rows, nonzeros)
        with _no_retry(), self.kernels.time_range("step"):
            self.optimizer.begin_step()
            result = self._pass(batch, lr, key, self.optimizer, nonzeros)
            self.optimizer.end_step(lr)
        return result

    def _captured_step(
        self, captured: CapturedStep, batch: Sequence[Segment], lr: float, key: int
    ) -> WorkStats:
        entries, rows = captured.entries(batch), batch_rows(batch)
        self.reserve(rows, max(entries.counts))
        with _no_retry(), self.kernels.time_range("step"):
            loss: Any = captured.step(batch, lr, key, entries)
        return WorkStats(rows, 1, loss, entries.counts[0], rows * self.spec.labels)

    def gradient(self, batch: Sequence[Segment], buffer: GradientBuffer, key: int) -> WorkStats:
        """Add the mean gradient over the batch's rows to ``buffer``; ``flat`` stays as it is.

        ``batch`` and ``key`` are those of `step`; clear the buffer before, where it is not to be
        a sum.

        Raises
        ------
        ConfigError
            If the batch is larger than max_batch_rows.
        """
        if batch_rows(batch) == 0:
            return WorkStats()
        self._check_rows(batch)
        nonzeros = self.count(batch)
        self.kernels.reserve(self.sizes(batch_rows(batch), nonzeros))
        return self._pass(batch, -1.0, key, buffer, nonzeros)

    def apply(self, gradient: Mapping[str, Array], lr: float) -> None:
        """Step by a whole gradient, by names: `gradient`, then this, is `step` up to rounding."""
        self.optimizer.begin_step()
        self.optimizer.apply(gradient, lr)

    def _check_rows(self, batch: Sequence[Segment]) -> None:
        rows = batch_rows(batch)
        if rows > self.max_batch_rows:
            raise ConfigError(
                f"replica: a batch of {rows} rows exceeds max_batch_rows = {self.max_batch_rows}"
            )

    def count(self, batch: Sequence[Segment]) -> int:
        """Return the stored features of a batch."""
        return sum(self.kernels.nonzeros(s.partition.features, s.rows) for s in batch)

    def _pass(
        self, batch: Sequence[Segment], lr: float, key: int, updates: Optimizer, nonzeros: int
    ) -> WorkStats:
        loss: Any = self._mlp.step(batch, lr, key, updates)
        return WorkStats(batch_rows(batch), 1, loss, nonzeros, self._mlp.evaluated)

    def loss_sum(self, batch: Sequence[Segment]) -> float:
        """Sum the losses of up to max_batch_rows rows, without dropout.

        The bits are those of `step`, but for batches of one row.
        """
        self._check_rows(batch)
        return self._mlp.loss_sum(batch) if batch_rows(batch) else 0.0

    def top_k(self, segments: Sequence[Segment], k: int) -> tuple[Any, Any]:
        """Rank labels; see `daskxml.models.network.mlp.Mlp.top_k`."""
        return self._mlp.top_k(segments, k)


@contextmanager
def _no_retry() -> Iterator[None]:
    """Turn `MemoryError` into an error that ends the run: half a step cannot be tried again.

    Raises
    ------
    TrainingError
        In the place of `MemoryError`.

    Examples
    --------
    >>> with _no_retry():
    ...     raise MemoryError("no room")
    Traceback (most recent call last):
    daskxml.core.errors.TrainingError: memory ran out in the middle of a step (no room): lower ...
    """
    try:
        yield
    except MemoryError as error:
        raise TrainingError(
            f"memory ran out in the middle of a step ({error}): lower strategy.batch_max or "
            "training.logits_budget"
        ) from error
