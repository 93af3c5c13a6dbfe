"""How much memory a batch's logits get, where the run file says ``auto``.

On a CPU that is a fixed size. On a GPU each way has its price: the whole matrix goes through memory
several times; in blocks that stay in the second-level cache, every block costs launches, and
softmax multiplies its logits out twice. So a worker tries a few sizes on made-up rows, at its
largest batch, before its share of a run begins, and keeps the fastest. A run that goes on from a
checkpoint tries again: it may have come to another GPU. Sums over blocks are rounded by blocks, so
runs that are to repeat each other bit for bit on a GPU need the size in their run files.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from daskxml.errors import TrainingError
from daskxml.ops import Kernels
from daskxml.training.memory import all_logits_bytes, output_dtype, plan_memory
from daskxml.training.replica import Replica
from daskxml.training.settings import LOGITS_BYTES, MemberSettings
from daskxml.training.typical_rows import made_up_rows
from daskxml.types import Segment

STEPS = 3  # that are timed together
ALIKE = 1.02  # times that are called the same


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsBudget:
    """What a batch's logits may take, and what was found out for it.

    Attributes
    ----------
    chosen_bytes
        The budget.
    step_s
        Seconds of a step, by the budgets that were tried; empty where there was no choice.

    Examples
    --------
    >>> LogitsBudget(chosen_bytes=2048, step_s={1024: 0.5, 2048: 0.25}).event("0")
    {'kind': 'logits', 'worker': '0', 'budget_bytes': 2048, 'step_ms': {'1024': 500.0, ...}}
    """

    chosen_bytes: int
    step_s: Mapping[int, float] = field(default_factory=dict)

    def given_to(self, settings: MemberSettings) -> MemberSettings:
        """Return the settings with the budget."""
        return replace(settings, logits_budget_bytes=self.chosen_bytes)

    def event(self, worker: str) -> dict[str, Any]:
        """Return it as the history tells it; bytes are text there, as JSON's names are."""
        step_ms = {str(size): round(step_s * 1e3, 4) for size, step_s in self.step_s.items()}
        told = {"kind": "logits", "worker": worker, "budget_bytes": self.chosen_bytes}
        return {**told, "step_ms": step_ms}


def candidate_budgets(whole_bytes: int, cache_bytes: int) -> tuple[int, ...]:
    """Return the budgets that are worth a try, the smallest first.

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


def choose_budget(settings: MemberSettings, kernels: Kernels) -> LogitsBudget:
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


def _fits(settings: MemberSettings, kernels: Kernels, budget_bytes: int) -> bool:
    """Whether there is room for it, and for twice the training rows: there are others."""
    row_bytes = 8 * settings.row_nonzeros + 64
    room_bytes = kernels.free_bytes() - 2 * settings.training_rows * row_bytes
    given = replace(settings, logits_budget_bytes=budget_bytes)
    return plan_memory(given, kernels, settings.max_batch_rows).total_bytes <= room_bytes


def time_budgets(
    settings: MemberSettings, kernels: Kernels, budgets: Iterable[int]
) -> dict[int, float]:
    """Return the seconds of a step for each budget; without those that had no room after all."""
    part = kernels.to_device(made_up_rows(settings, settings.max_batch_rows))
    batch = [Segment(part, kernels.to_device(np.arange(part.rows, dtype=np.int64)))]
    step_s: dict[int, float] = {}
    for budget_bytes in budgets:
        with suppress(MemoryError, TrainingError):  # before a step, or in it
            step_s[budget_bytes] = _time_step(settings, kernels, batch, budget_bytes)
        kernels.release()
    return step_s


def _time_step(
    settings: MemberSettings, kernels: Kernels, batch: list[Segment], budget_bytes: int
) -> float:
    """Return the seconds of a step of a replica that is thrown away."""
    replica = Replica(
        settings.spec, settings.optimizer, kernels, max_batch_rows=settings.max_batch_rows,
        logits_budget_bytes=budget_bytes, output_dtype=output_dtype(settings, kernels),
    )  # fmt: skip
    float(replica.step(batch, 0.0, 0).loss)  # compiled and allocated; who asks for it waits
    begun_s = time.perf_counter()
    losses = [replica.step(batch, 0.0, 0).loss for _ in range(STEPS)]
    float(losses[-1])
    return (time.perf_counter() - begun_s) / STEPS
