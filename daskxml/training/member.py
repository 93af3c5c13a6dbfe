"""One worker's share of a run: a replica, the rows it holds, and the models that it is merged with.

Knows nothing of Dask. Four flat arrays of the model's size are allocated once: the replica that is
being trained, the global model that it started from, the global model before that, and a scratch
model that a merge is written into. Committing a merge rotates the last three and copies one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from daskxml.data.order import derive_key, shuffled_positions
from daskxml.data.rows import concatenate
from daskxml.errors import TrainingError
from daskxml.metrics import MetricSums, metric_sums, propensities
from daskxml.model.parameters import Layout, initial_parameters
from daskxml.model.spec import ModelSpec
from daskxml.ops import get_kernels
from daskxml.optim import OptimizerConfig
from daskxml.training.ledger import Span
from daskxml.training.orders import Piece
from daskxml.training.replica import Replica
from daskxml.types import Array, Csr, Partition, Segment

_EPOCH_ORDER, _BATCH_NOISE = 1, 2  # keep the random choices of a run apart
_LOSS_UNIT = 2.0**-20  # sums of its multiples are exact: leases may be cut anywhere


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
    device, threads
        ``"cpu"`` or ``"cuda"``; kernel threads.
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
    device: str
    threads: int


@dataclass(frozen=True, slots=True)
class LeaseResult:
    """Sum of the rows' losses, and the seconds that the lease took."""

    loss_sum: float
    busy_s: float


class Member:
    """A worker's part in one run."""

    def __init__(self, settings: MemberSettings) -> None:
        self.settings = settings
        self.kernels = get_kernels(settings.device, settings.threads)
        self.replica = Replica(
            settings.spec,
            settings.optimizer,
            self.kernels,
            max_batch_rows=settings.max_batch_rows,
            logits_budget_bytes=settings.logits_budget_bytes,
        )
        self.layout = Layout(settings.spec)
        size = (self.layout.size,)
        self.current, self.previous, self.scratch = (self.kernels.zeros(size) for _ in range(3))
        self.generation = 0
        self._rotation = threading.Lock()  # a worker that joins reads while others merge
        self.streams: dict[int, Partition] = {}
        self.tests: dict[int, Partition] = {}
        self.label_counts: Array = np.zeros(settings.spec.labels, dtype=np.int64)
        self.inverse_propensity: Array = np.ones(settings.spec.labels)

    # ------------------------------------------------------------------- model

    def initialize(self) -> None:
        """Start from the seed's model."""
        flat = initial_parameters(self.settings.spec, self.settings.seed)
        self.set_model(flat, flat, generation=0)

    def set_model(self, current: Array, previous: Array, generation: int) -> None:
        """Start from a global model and the one before it, flat ``(size,)`` float32 host arrays."""
        if current.shape != self.current.shape or previous.shape != self.current.shape:
            raise TrainingError(
                f"a model of {current.size} numbers does not fit the run's {self.current.size}"
            )
        self.kernels.copy(self.current, self.kernels.to_device(current))
        self.kernels.copy(self.previous, self.kernels.to_device(previous))
        self.kernels.copy(self.replica.flat, self.current)
        self.generation = generation

    def commit(self, generation: int) -> None:
        """Make the merged model in ``scratch`` the global one, and the replica equal to it."""
        if generation == self.generation:
            return  # told twice
        if generation != self.generation + 1:
            raise TrainingError(f"merge {generation} cannot follow merge {self.generation}")
        with self._rotation:
            self.current, self.previous, self.scratch = self.scratch, self.current, self.previous
            self.generation = generation
        self.kernels.copy(self.replica.flat, self.current)

    def squared_norm(self) -> float:
        """Return the squared L2 norm of the replica."""
        return self.kernels.squared_norm(self.replica.flat)

    def host_models(self) -> tuple[int, dict[str, Array]]:
        """Return the generation, and copies of the global model and the one before it."""
        with self._rotation:
            models = {"current": self.current, "previous": self.previous}
            return self.generation, {n: self.kernels.to_host(m).copy() for n, m in models.items()}

    # -------------------------------------------------------------------- rows

    def hold_all(self, train: Sequence[Partition], test: Sequence[Partition]) -> None:
        """Hold every row: the training partitions become one stream."""
        whole = train[0] if len(train) == 1 else concatenate(train)
        self.streams = {0: self.kernels.to_device(whole)}
        self.tests = {i: self.kernels.to_device(part) for i, part in enumerate(test)}

    def hold(self, train: Mapping[int, Partition], test: Mapping[int, Partition]) -> None:
        """Hold these shards, beside those that leases under way may still name."""
        for held, wanted in ((self.streams, train), (self.tests, test)):
            for shard in wanted.keys() - held.keys():
                held[shard] = self.kernels.to_device(wanted[shard])

    def count_labels(self, label_counts: Array) -> None:
        """Hear how often each label occurs in the training rows."""
        settings = self.settings
        self.label_counts = label_counts
        self.inverse_propensity = propensities(
            label_counts, settings.training_rows, settings.propensity_a, settings.propensity_b
        )

    # -------------------------------------------------------------------- work

    def lease(
        self,
        batches: Sequence[Sequence[Span]],
        lr: float,
        fetched: Mapping[Span, Partition],
    ) -> LeaseResult:
        """Step through batches; ``fetched`` has the rows of spans that are not held here.

        Raises
        ------
        TrainingError
            If the loss is not finite any more.
        """
        begun_s = time.perf_counter()
        loss_sum = 0.0
        for batch in batches:
            segments = [self._segment(span, fetched) for span in batch]
            step = self.replica.step(segments, lr, self._noise_key(batch[0]))
            loss_sum += np.rint(step.loss_sum / _LOSS_UNIT) * _LOSS_UNIT
        if not np.isfinite(loss_sum):
            raise TrainingError(
                f"the loss is not finite any more at learning rate {lr:g}: lower strategy.lr"
            )
        return LeaseResult(float(loss_sum), time.perf_counter() - begun_s)

    def _segment(self, span: Span, fetched: Mapping[Span, Partition]) -> Segment:
        if span in fetched:
            part = self.kernels.to_device(fetched[span])
            return Segment(part, self.kernels.to_device(np.arange(span.rows, dtype=np.int64)))
        part = self.streams[span.stream]
        rows = span_rows(span, part.rows, self.settings.seed)
        return Segment(part, self.kernels.to_device(rows))

    def _noise_key(self, first: Span) -> int:
        return derive_key(self.settings.seed, _BATCH_NOISE, first.epoch, first.stream, first.start)

    def evaluate(self, pieces: Sequence[Piece], fetched: Mapping[int, Partition]) -> MetricSums:
        """Score pieces of the test rows with the replica, which equals the global model.

        ``fetched`` has the shards that are not held here.
        """
        step = self.settings.evaluation_rows
        sums = MetricSums.zero(self.settings.ks)
        for shard, start, stop in pieces:
            part = fetched[shard] if shard in fetched else self.tests[shard]
            for first in range(start, stop, step):
                sums += self._score(part, np.arange(first, min(first + step, stop)))
        return sums

    def _score(self, part: Partition, rows: Array) -> MetricSums:
        segment = Segment(part, self.kernels.to_device(rows))
        ids, _ = self.replica.top_k([segment], self.settings.ks[-1])
        labels = self.kernels.to_host(part.labels)
        return metric_sums(
            self.kernels.to_host(ids),
            _rows_of(labels, rows),
            self.inverse_propensity,
            self.settings.ks,
        )

    def warm_up(self) -> float:
        """Compile the kernels and return the measured rows a second, on made-up rows."""
        part = _made_up_rows(self.settings)
        rows = np.arange(part.rows, dtype=np.int64)
        segment = Segment(self.kernels.to_device(part), self.kernels.to_device(rows))
        self.replica.step([segment], 0.0, 0)
        self.replica.top_k([segment], self.settings.ks[-1])
        begun_s = time.perf_counter()
        for _ in range(2):
            self.replica.step([segment], 0.0, 0)
        return 2 * part.rows / max(time.perf_counter() - begun_s, 1e-9)


def span_rows(span: Span, stream_rows: int, seed: int) -> Array:
    """Return the row numbers, ``(rows,)`` int64, that a span stands for."""
    key = derive_key(seed, _EPOCH_ORDER, span.epoch, span.stream)
    return shuffled_positions(stream_rows, key, span.start, span.stop)


def _rows_of(labels: Csr, rows: Array) -> Csr:
    """Consecutive rows of a host matrix."""
    first, last = labels.indptr[rows[0]], labels.indptr[rows[-1] + 1]
    indptr = labels.indptr[rows[0] : rows[-1] + 2] - first
    return Csr(indptr, labels.indices[first:last], None, labels.columns)


def _made_up_rows(settings: MemberSettings) -> Partition:
    rng = np.random.default_rng([settings.seed, 3])
    spec, rows = settings.spec, min(settings.max_batch_rows, 256)
    nonzeros = max(1, min(settings.row_nonzeros, spec.features))
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
