"""The memory that a worker's part in a run takes, found before any of it is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from daskxml.errors import TrainingError
from daskxml.model.output import logits_stride
from daskxml.ops import Kernels
from daskxml.training.replica import Replica
from daskxml.training.settings import MemberSettings
from daskxml.types import Array

_MODELS = 3  # of the merge, beside the replica's: the global one, the one before it, the next
_JOINT_MODELS = 2  # more, where workers step together: a gradient, and what becomes of it
_MIB, _GIB = 2**20, 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What a worker needs, beside the rows that it holds.

    Attributes
    ----------
    model_bytes
        Models and moments.
    batch_bytes
        What comes with batches of ``batch_rows`` rows.
    batch_rows
        The largest batch.
    device
        What it computes with: ``cpu`` or ``cuda``.
    logits_bytes
        Of a GPU's batches: what they have for logits; 0: all of them at once.

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
        """Return what the user is told before the run begins."""
        told = f"each worker on {self.device} needs {self.describe()} beside its rows"
        if not self.logits_bytes:
            return told
        return f"{told}; logits in blocks of {self.logits_bytes / _MIB:,.1f} MiB"

    def describe(self) -> str:
        """Return it in words."""
        unit, name = (_GIB, "GiB") if self.total_bytes >= _GIB else (_MIB, "MiB")
        total, model, batch = (
            f"{size / unit:,.1f} {name}"
            for size in (self.total_bytes, self.model_bytes, self.batch_bytes)
        )
        return f"{total} ({model} models and moments, {batch} batches of {self.batch_rows:,} rows)"


class _Planned:
    """Kernels that allocate nothing: their arrays have sizes, and no memory."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)

    def empty(self, shape: int | tuple[int, ...], dtype: str = "float32") -> Array:
        return np.broadcast_to(np.zeros((), dtype), shape)

    zeros = empty

    def fill(self, out: Array, value: float) -> None:
        pass

    def copy(self, out: Array, x: Array) -> None:
        pass

    def reserve(self, sizes: object) -> None:
        pass


def output_dtype(settings: MemberSettings, kernels: Kernels) -> str:
    """Return in which steps have the output layer: on a CPU, float32."""
    return settings.output_dtype if kernels.name == "cuda" else "float32"


def all_logits_bytes(settings: MemberSettings, kernels: Kernels, batch_rows: int) -> int:
    """Return what all logits of a batch take."""
    logit_bytes = 2 if output_dtype(settings, kernels) == "float16" else 4
    return logit_bytes * logits_stride(kernels, batch_rows) * settings.spec.labels


def plan_memory(settings: MemberSettings, kernels: Kernels, batch_rows: int) -> MemoryPlan:
    """Return what a worker needs for batches of up to ``batch_rows`` rows of typical length."""
    planned, budget_bytes = cast(Kernels, _Planned(kernels)), settings.logits_budget_bytes
    replica = Replica(
        settings.spec, settings.optimizer, planned, max_batch_rows=batch_rows,
        logits_budget_bytes=budget_bytes, output_dtype=output_dtype(settings, kernels),
    )  # fmt: skip
    flat_bytes = int(replica.flat.nbytes)
    held_bytes = replica.optimizer.nbytes + replica.weights.nbytes - flat_bytes
    nonzeros = batch_rows * settings.row_nonzeros
    replica.reserve(batch_rows, nonzeros)
    models = 1 + _MODELS + (_JOINT_MODELS if settings.is_joint else 0) + settings.combine.overlap
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


def fit_memory(settings: MemberSettings, kernels: Kernels) -> MemoryPlan:
    """Return the plan for the largest batch of the run, or the largest that the device holds.

    Raises
    ------
    TrainingError
        If the model does not fit even with batches of one row.
    """
    free_bytes, rows = kernels.free_bytes(), settings.max_batch_rows
    plan = plan_memory(settings, kernels, rows)
    while free_bytes and plan.total_bytes > free_bytes and rows > 1:
        rows = (rows + 1) // 2
        plan = plan_memory(settings, kernels, rows)
    if free_bytes and plan.total_bytes > free_bytes:
        spec = settings.spec
        raise TrainingError(
            f"a model of {spec.features:,} features, {spec.labels:,} labels and hidden layers "
            f"{list(spec.hidden)} needs {plan.describe()}; the device has "
            f"{free_bytes / _MIB:,.1f} MiB free: make model.hidden smaller, or take a larger device"
        )
    return plan
