"""The memory of a worker's part in a run, computed before any of it is allocated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from daskxml.core.arrays import Array, Csr, Partition
from daskxml.core.errors import TrainingError
from daskxml.kernels import Kernels
from daskxml.models.network.output import logits_stride
from daskxml.worker.replica import Replica
from daskxml.worker.settings import LOGITS_BYTES, WorkerSettings

_MODELS = 3  # of the merge, beside the replica's: the global one, the one before it, the next
_JOINT_MODELS = 2  # more, where workers step together: a gradient, and what becomes of it
_MIB, _GIB = 2**20, 2**30
_LEAST_LOGITS_BYTES = 1 << 24  # smaller blocks save nothing that counts


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

    def write(self, out: Array, value: Array) -> None:
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
    whole_bytes = all_logits_bytes(settings, kernels, batch_rows)
    is_cut = kernels.name == "cuda" and replica.stores_logits and budget_bytes < whole_bytes
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
        spec = settings.data.spec
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
    spec = settings.data.spec
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


def choose_budget(settings: WorkerSettings, kernels: Kernels) -> int:
    """Return how many bytes a batch's logits may take: as set, or as many as leave room for rows.

    On a CPU the size is fixed, and where steps store no logits, as only rankings do then. On a GPU
    steps are fastest with all logits at once, in each case of
    ``benchmarks/results/gpu_steps.json``; else with a half, a quarter and so on. Sums over blocks
    are rounded by blocks, so runs that must repeat each other bit for bit on GPUs with different
    amounts of free memory need the size in their run files.
    """
    if settings.logits_budget_bytes:
        return settings.logits_budget_bytes
    if kernels.name == "cpu":
        return LOGITS_BYTES
    budget_bytes = all_logits_bytes(settings, kernels, settings.max_batch_rows)
    planned = _replica(settings, cast(Kernels, PlannedKernels(kernels)), 1, budget_bytes)
    if not planned.stores_logits:
        budget_bytes = min(budget_bytes, LOGITS_BYTES)
    while budget_bytes > _LEAST_LOGITS_BYTES and not _fits(settings, kernels, budget_bytes):
        budget_bytes //= 2
    return budget_bytes


def _fits(settings: WorkerSettings, kernels: Kernels, budget_bytes: int) -> bool:
    """Whether there is room for it, and for twice the training rows: test rows are there too."""
    row_bytes = 8 * settings.data.row_nonzeros + 64
    room_bytes = kernels.free_bytes() - 2 * settings.data.rows * row_bytes
    given = replace(settings, logits_budget_bytes=budget_bytes)
    return plan_memory(given, kernels, settings.max_batch_rows).total_bytes <= room_bytes


def _replica(
    settings: WorkerSettings, kernels: Kernels, batch_rows: int, budget_bytes: int
) -> Replica:
    return Replica(
        settings.data.spec,
        settings.config.optimizer,
        kernels,
        max_batch_rows=batch_rows,
        logits_budget_bytes=budget_bytes,
        output_dtype=output_dtype(settings, kernels),
    )
