"""The memory of a worker that has a part of the labels, and the largest part that it has room for.

At a merge it has the part that steps, the part of the last merge, and of another worker's part the
copies of the last merge and of the next. Where labels move in between, it has the old part, the new
one and both of the last merge. All but the copies that are kept as the best model have their
moments with them, unless a merge resets those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from daskxml.core.arrays import Array
from daskxml.core.errors import ConfigError
from daskxml.kernels import Kernels
from daskxml.models.network.partitioned import PartitionedOutput
from daskxml.models.network.sampling import SamplingConfig
from daskxml.session.setup import SHARDS_PER_WORKER
from daskxml.strategies.partitioned import UNITS
from daskxml.worker.label_part import LabelPart
from daskxml.worker.memory import PlannedKernels
from daskxml.worker.settings import WorkerSettings

_FLOAT_BYTES = 4
_LABEL_BYTES = 32  # of every label on every worker: its place, its rows, its propensity
_PAIR_BYTES = 56  # of a row and a label of its sample, of whatever part
_KNOWN_LABELS = 1024  # a part of so many is planned, to learn what does not depend on its labels
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPlan:
    """What a worker needs beside its process.

    Attributes
    ----------
    label_bytes
        For each label of its part.
    parts
        How often it has its part, or one like it: of parameters, and of moments.
    fixed_bytes
        Layers below, rows, and buffers of batches.

    Examples
    --------
    >>> plan = PartPlan(label_bytes=2064, parts=4, fixed_bytes=100 << 20)
    >>> plan.total_bytes(750_000) >> 20, plan.most_labels(1 << 30)
    (1576, 469420)
    """

    label_bytes: int
    parts: int
    fixed_bytes: int

    def total_bytes(self, labels: int) -> int:
        """Return what it needs for a part of so many labels."""
        return self.fixed_bytes + self.label_bytes * labels

    def most_labels(self, room_bytes: int) -> int:
        """Return the labels of the largest part for which it has room."""
        return max(0, room_bytes - self.fixed_bytes) // self.label_bytes

    def announce(self, labels: int) -> str:
        """Return the line for the user before the run begins."""
        whole = self.label_bytes // self.parts * labels / MIB
        return (
            f"the labels' {whole:,.1f} MiB are cut among the workers; each needs {self.parts} "
            f"times its part, and {self.fixed_bytes / MIB:,.1f} MiB for the layers below, rows and "
            "batches"
        )


def plan_part(settings: WorkerSettings, kernels: Kernels) -> PartPlan:
    """Return what a worker needs."""
    planned, spec = cast(Kernels, PlannedKernels(kernels)), settings.data.network
    part = LabelPart(settings, planned, (0, _KNOWN_LABELS), 0)
    moments = len(part.optimizer.state().keys() - {"steps"})
    kept = 0 if settings.state_on_merge == "reset" else moments
    collected = int(not settings.config.optimizer.takes_rows("output.weight"))
    steps, at_merge = 1 + moments + collected, 1 + kept
    parts = max(steps + 3 * at_merge, 2 * steps + 2 * at_merge)
    parts += 2 * settings.config.keeps_best
    label_floats = spec.hidden[-1] + 1
    lowers = 2 * steps + at_merge + settings.config.keeps_best
    held = min(1.0, SHARDS_PER_WORKER / len(settings.data.stream_rows))  # 1 stream: all rows
    rows = round(settings.data.rows * held) * (8 * settings.data.row_nonzeros + 64)
    every = _LABEL_BYTES + _sampled_bytes(settings.config.sampling, kernels.threads)
    fixed = lowers * part.lower.nbytes + 2 * rows + every * spec.labels
    if settings.config.sampling.is_on and settings.config.sampling.sets == "row":
        pairs = settings.max_batch_rows * settings.config.sampling.labels_of(spec.labels)
        fixed += _PAIR_BYTES * pairs
    return PartPlan(
        label_bytes=parts * label_floats * _FLOAT_BYTES,
        parts=parts,
        fixed_bytes=fixed + _buffer_bytes(settings, planned, part),
    )


def _sampled_bytes(sampling: SamplingConfig, threads: int) -> int:
    """Return what every worker needs for each label of the run where labels are sampled."""
    if not sampling.is_on:
        return 0
    marks = (
        8 * threads if sampling.sets == "row" else 8 + 4 * threads * (sampling.method != "random")
    )
    return marks + 12 * sampling.l * sampling.hashes  # keys, and members before and after a build


def _buffer_bytes(settings: WorkerSettings, planned: Kernels, part: LabelPart) -> int:
    """Return the bytes of batches, in steps and in evaluations."""
    rows = settings.max_batch_rows
    part.optimizer.reserve(rows, rows * settings.data.row_nonzeros)
    state: Mapping[str, Array] = part.optimizer.state()
    moments = sum(int(array.nbytes) for name, array in state.items() if name != "steps")
    ranker = PartitionedOutput(
        planned,
        part.parameters["output.weight"],
        part.parameters["output.bias"],
        part.spec.loss,
        settings.logits_budget_bytes,
    )
    ranker.reserve(settings.config.evaluation.batch_rows)
    logits = (settings.max_batch_rows, settings.config.evaluation.batch_rows)
    most = _FLOAT_BYTES * settings.data.spec.labels
    both = sum(min(settings.logits_budget_bytes, most * rows) for rows in logits)
    both += part.mlp.nbytes + ranker.buffers.nbytes
    return both + max(0, part.optimizer.nbytes - moments)


def check_shares(shares: Mapping[str, float]) -> None:
    """Refuse workers that together have no room for all labels.

    Parameters
    ----------
    shares
        By worker, the largest share of the labels for which it has room.

    Examples
    --------
    >>> check_shares({"0": 0.5, "1": 0.6})
    >>> check_shares({"0": 0.5, "1": 0.25})
    Traceback (most recent call last):
    daskxml.core.errors.ConfigError: [model] output = 'partitioned': the workers have room for 75 %
    of the labels (0: 50 %, 1: 25 %): start more of them, give them more memory, or make
    [model] hidden smaller
    """
    if sum(int(share * UNITS) for share in shares.values()) < UNITS:
        each = ", ".join(f"{name}: {share * 100:.0f} %" for name, share in shares.items())
        raise ConfigError(
            f"[model] output = 'partitioned': the workers have room for "
            f"{sum(shares.values()) * 100:.0f} % of the labels ({each}): start more of them, give "
            "them more memory, or make [model] hidden smaller"
        )
