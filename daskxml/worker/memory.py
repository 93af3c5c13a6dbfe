"""The memory of a worker's part in a run, computed before any of it is allocated."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from daskxml.core.arrays import Array, Csr, Partition, Segment
from daskxml.core.errors import TrainingError
from daskxml.kernels import Kernels
from daskxml.models.network.output import logits_stride
from daskxml.worker.replica import Replica
from daskxml.worker.settings import LOGITS_BYTES, WorkerSettings

_MODELS = 3  # of the merge, beside the replica's: the global one, the one before it, the next
_JOINT_MODELS = 2  # more, where workers step together: a gradient, and what becomes of it
_MIB, _GIB = 2**20, 2**30
STEPS = 3  # that are timed together
ALIKE = 1.02  # times that are called the same


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The memory that a worker needs beside its rows.

    Attributes
    ----------
    model_bytes
        Models and moments.
    batch_bytes
        Buffers for batches of ``batch_rows`` rows.
    batch_rows
        The largest batch.
    device
        ``cpu`` or ``cuda``.
    logits_bytes
        Memory for a block of logits on a GPU; 0: the whole matrix at once.

    Examples
    --------
    >>> plan = MemoryPlan(model_bytes=3 << 30, batch_bytes=1 << 29, batch_rows=256, device="cuda")
    >>> plan.total_bytes == plan.model_bytes + plan.batch_bytes
    True
    >>> plan.announce()
    'each worker on cuda needs 3.5 GiB (...) beside its rows'
    >>> from dataclasses import replace
    >>> replace(plan, logits_bytes=25 << 20).announce()
    'each worker on cuda needs 3.5 GiB (...) beside its rows; logits in blocks of 25.0 MiB'
    >>> plan.describe()
    '3.5 GiB (3.0 GiB models and moments, 0.5 GiB batches of 256 rows)'
    """

    model_bytes: int
    batch_bytes: int
    batch_rows: int
    device: str
    logits_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.model_bytes + self.batch_bytes

    def announce(self) -> str:
        """Return the line for the user before the run begins."""
        text = f"each worker on {self.device} needs {self.describe()} beside its rows"
        if not self.logits_bytes:
            return text
        return f"{text}; logits in blocks of {self.logits_bytes / _MIB:,.1f} MiB"

    def describe(self) -> str:
        """Return the sizes as text."""
        unit, name = (_GIB, "GiB") if self.total_bytes >= _GIB else (_MIB, "MiB")
        total, model, batch = (
            f"{size / unit:,.1f} {name}"
            for size in (self.total_bytes, self.model_bytes, self.batch_bytes)
        )
        return f"{total} ({model} models and moments, {batch} batches of {self.batch_rows:,} rows)"


class PlannedKernels:
    """Kernels that allocate nothing: their arrays have sizes, and no memory."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)

    def empty(self, shape: int | tuple[int, ...], dtype: str = "float32") -> Array:
        """Return an array that takes no memory."""
        return np.broadcast_to(np.zeros((), dtype), shape)

    zeros = empty

    def fill(self, out: Array, value: float) -> None:
        """Do nothing."""

    def copy(self, out: Array, x: Array) -> None:
        """Do nothing."""

    def reserve(self, sizes: object) -> None:
        """Do nothing."""


def output_dtype(settings: WorkerSettings, kernels: Kernels) -> str:
    """Return the dtype of the output layer in steps: on a CPU, float32."""
    return settings.config.gpu.output_dtype if kernels.name == "cuda" else "float32"


def all_logits_bytes(settings: WorkerSettings, kernels: Kernels, batch_rows: int) -> int:
    """Return the bytes of all logits of a batch."""
    logit_bytes = 2 if output_dtype(settings, kernels) == "float16" else 4
    return logit_bytes * logits_stride(kernels, batch_rows) * settings.data.spec.labels


def plan_memory(settings: WorkerSettings, kernels: Kernels, batch_rows: int) -> MemoryPlan:
    """Return a worker's memory for batches of up to ``batch_rows`` rows of typical length."""
    planned, budget_bytes = cast(Kernels, PlannedKernels(kernels)), settings.logits_budget_bytes
    replica = _replica(settings, planned, batch_rows, budget_bytes)
    flat_bytes = int(replica.flat.nbytes)
    held_bytes = replica.optimizer.nbytes
    nonzeros = batch_rows * settings.data.row_nonzeros
    replica.reserve(batch_rows, nonzeros)
    models = 1 + _MODELS + (_JOINT_MODELS if settings.strategy.is_joint else 0)
    flats_bytes = models * flat_bytes
    scratch_bytes = kernels.scratch_bytes(replica.sizes(batch_rows, nonzeros))
    own_bytes = replica.memory_bytes - flat_bytes
    is_cut = kernels.name == "cuda" and budget_bytes < all_logits_bytes(
        settings, kernels, batch_rows
    )
    return MemoryPlan(
        model_bytes=flats_bytes + held_bytes,
        batch_bytes=own_bytes - held_bytes + scratch_bytes,
        batch_rows=batch_rows,
        device=kernels.name,
        logits_bytes=budget_bytes if is_cut else 0,
    )


def fit_memory(settings: WorkerSettings, kernels: Kernels) -> MemoryPlan:
    """Return the plan for the largest batch of the run, or the largest that fits on the device.

    Raises
    ------
    TrainingError
        If the model does not fit even with batches of one row.
    """
    free_bytes, rows = _free_bytes(settings, kernels), settings.max_batch_rows
    plan = plan_memory(settings, kernels, rows)
    while free_bytes and plan.total_bytes > free_bytes and rows > 1:
        rows = (rows + 1) // 2
        plan = plan_memory(settings, kernels, rows)
    if free_bytes and plan.total_bytes > free_bytes:
        spec = settings.data.network
        raise TrainingError(
            f"a model of {spec.features:,} features, {spec.labels:,} labels and hidden layers "
            f"{list(spec.hidden)} needs {plan.describe()}; the worker has "
            f"{free_bytes / _MIB:,.1f} MiB free: {_what_fits(settings, kernels, free_bytes)}, or "
            "label trees, the run file 'best'"
        )
    return plan


def _free_bytes(settings: WorkerSettings, kernels: Kernels) -> int:
    """Return what the device has left, or the worker's process if that may take less."""
    free_bytes, limit = kernels.free_bytes(), settings.slot.memory_bytes
    if kernels.name != "cpu" or not limit:
        return free_bytes
    import psutil

    return max(1, min(free_bytes, limit - int(psutil.Process().memory_info().rss)))


def _what_fits(settings: WorkerSettings, kernels: Kernels, free_bytes: int) -> str:
    """Return the largest power of two of hidden units with which a model fits, in words."""
    spec = settings.data.network
    units = 1 << max(spec.hidden).bit_length()
    while units > 1:
        units //= 2
        smaller = replace(spec, hidden=tuple(min(units, width) for width in spec.hidden))
        given = replace(settings, data=replace(settings.data, spec=smaller))
        if plan_memory(given, kernels, 1).total_bytes <= free_bytes:
            return f"model.hidden = {list(smaller.hidden)} fits"
    return "take a larger device"


def made_up_rows(settings: WorkerSettings, rows: int) -> Partition:
    """Return so many rows of typical length, with a label each."""
    rng, spec = np.random.default_rng([settings.config.run.seed, 3]), settings.data.spec
    nonzeros = max(1, min(settings.data.row_nonzeros, spec.features))
    stride = spec.features // nonzeros  # one feature of every stride: ascending, none twice
    offsets = rng.integers(0, stride, (rows, nonzeros))
    features = (offsets + stride * np.arange(nonzeros)).astype(np.int32)
    values = np.full(rows * nonzeros, nonzeros**-0.5, dtype=np.float32)
    labels = rng.integers(0, spec.labels, rows).astype(np.int32)
    indptr = np.arange(rows + 1, dtype=np.int64)
    return Partition(
        Csr(indptr * nonzeros, features.ravel(), values, spec.features),
        Csr(indptr, labels, None, spec.labels),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsBudget:
    """The memory for a batch's logits, and the times it was chosen by.

    On a CPU it has a fixed size. On a GPU the whole matrix is read and written several times; with
    blocks that stay in the second-level cache, every block costs launches, and softmax computes its
    logits twice. So a worker times steps of a few sizes on made-up rows, at its largest batch, and
    keeps the fastest. A resumed run times again, as it may be on another GPU. Sums over blocks are
    rounded by blocks, so runs that must repeat each other bit for bit on a GPU need the size in
    their run files.

    Attributes
    ----------
    chosen_bytes
        The budget.
    step_s
        Seconds of a step by budget; empty where there was no choice.

    Examples
    --------
    >>> LogitsBudget(chosen_bytes=2048, step_s={1024: 0.5, 2048: 0.25}).event("0")
    {'kind': 'logits', 'worker': '0', 'budget_bytes': 2048, 'step_ms': {'1024': 500.0, ...}}
    >>> LogitsBudget(chosen_bytes=2048).event("0") is None
    True
    """

    chosen_bytes: int
    step_s: Mapping[int, float] = field(default_factory=dict)

    def given_to(self, settings: WorkerSettings) -> WorkerSettings:
        """Return the settings with the budget."""
        return replace(settings, logits_budget_bytes=self.chosen_bytes)

    def event(self, worker: str) -> dict[str, Any] | None:
        """Return the history's event of it, whose sizes are text; None where none was timed."""
        if not self.step_s:
            return None
        step_ms = {str(size): round(step_s * 1e3, 4) for size, step_s in self.step_s.items()}
        event = {"kind": "logits", "worker": worker, "budget_bytes": self.chosen_bytes}
        return {**event, "step_ms": step_ms}


def candidate_budgets(whole_bytes: int, cache_bytes: int) -> tuple[int, ...]:
    """Return the budgets to time, the smallest first.

    Parameters
    ----------
    whole_bytes
        All logits of the largest batch: more changes nothing.
    cache_bytes
        The device's second-level cache; a block of half of it leaves room for the weights.

    Examples
    --------
    >>> mib = 1 << 20
    >>> [size // mib for size in candidate_budgets(2617 * mib, 50 * mib)]
    [25, 50, 256, 1024, 2617]
    >>> candidate_budgets(1000, 50 * mib)
    (1000,)
    """
    sizes = cache_bytes // 2, cache_bytes, LOGITS_BYTES, 4 * LOGITS_BYTES, whole_bytes
    return tuple(sorted({max(1, min(size, whole_bytes)) for size in sizes}))


def fastest(step_s: Mapping[int, float]) -> int:
    """Return the smallest budget among those that are as good as the fastest.

    Examples
    --------
    >>> fastest({25: 0.0050, 256: 0.0041, 1024: 0.0040, 2617: 0.0060})
    1024
    >>> fastest({25: 0.00405, 256: 0.0040})
    25
    """
    least_s = min(step_s.values())
    return min(size for size, each_s in step_s.items() if each_s <= ALIKE * least_s)


def choose_budget(settings: WorkerSettings, kernels: Kernels) -> LogitsBudget:
    """Return the settings' budget, or the fastest that leaves room for the rows.

    Where none does, that is the smallest, so that batches need not be cut more than they must.
    """
    if settings.logits_budget_bytes:
        return LogitsBudget(chosen_bytes=settings.logits_budget_bytes)
    if kernels.name == "cpu":
        return LogitsBudget(chosen_bytes=LOGITS_BYTES)
    whole_bytes = all_logits_bytes(settings, kernels, settings.max_batch_rows)
    tried = candidate_budgets(whole_bytes, kernels.cache_bytes)
    fitting = [size for size in tried if _fits(settings, kernels, size)]
    if len(fitting) < 2:
        return LogitsBudget(chosen_bytes=(fitting or tried)[0])
    step_s = time_budgets(settings, kernels, fitting)
    return LogitsBudget(chosen_bytes=fastest(step_s) if step_s else tried[0], step_s=step_s)


def _fits(settings: WorkerSettings, kernels: Kernels, budget_bytes: int) -> bool:
    """Whether there is room for it, and for twice the training rows: test rows are there too."""
    row_bytes = 8 * settings.data.row_nonzeros + 64
    room_bytes = kernels.free_bytes() - 2 * settings.data.rows * row_bytes
    given = replace(settings, logits_budget_bytes=budget_bytes)
    return plan_memory(given, kernels, settings.max_batch_rows).total_bytes <= room_bytes


def time_budgets(
    settings: WorkerSettings, kernels: Kernels, budgets: Iterable[int]
) -> dict[int, float]:
    """Return the seconds of a step for each budget that turns out to fit."""
    part = kernels.to_device(made_up_rows(settings, settings.max_batch_rows))
    batch = [Segment(part, kernels.to_device(np.arange(part.rows, dtype=np.int64)))]
    step_s: dict[int, float] = {}
    for budget_bytes in budgets:
        with suppress(MemoryError, TrainingError):  # before a step, or in it
            step_s[budget_bytes] = _time_step(settings, kernels, batch, budget_bytes)
        kernels.release()
    return step_s


def _time_step(
    settings: WorkerSettings, kernels: Kernels, batch: list[Segment], budget_bytes: int
) -> float:
    """Return the seconds of a step of a replica that is thrown away."""
    replica = _replica(settings, kernels, settings.max_batch_rows, budget_bytes)
    float(replica.step(batch, 0.0, 0).loss_sum)  # compiles and allocates; synchronizes
    begun_s = time.perf_counter()
    losses = [replica.step(batch, 0.0, 0).loss_sum for _ in range(STEPS)]
    float(losses[-1])
    return (time.perf_counter() - begun_s) / STEPS


def _replica(
    settings: WorkerSettings, kernels: Kernels, batch_rows: int, budget_bytes: int
) -> Replica:
    return Replica(
        settings.data.network,
        settings.config.optimizer,
        kernels,
        max_batch_rows=batch_rows,
        logits_budget_bytes=budget_bytes,
        output_dtype=output_dtype(settings, kernels),
    )
