"""One worker's share of a run: a replica, the rows it holds, and the models that it is merged with.

Knows nothing of Dask. Four flat arrays of the model's size are allocated once: the replica that is
being trained, the global model that it started from, the global model before that (or what else a
merge must remember), and a scratch model that a merge is written into. Committing a merge rotates
them and copies one. Algorithms that exchange arrays at every step need a few more: `array`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from daskxml.combine import outer_memory
from daskxml.errors import TrainingError
from daskxml.metrics import MetricSums, metric_sums, propensities
from daskxml.model.parameters import Layout, initial_parameters
from daskxml.ops import get_kernels
from daskxml.optim import GradientBuffer, Optimizer
from daskxml.training.holdings import Fetched, Holdings
from daskxml.training.ledger import Span
from daskxml.training.orders import Piece
from daskxml.training.replica import Replica, StepResult
from daskxml.training.settings import MemberSettings
from daskxml.types import Array, Csr, Partition, Segment

_LOSS_UNIT = 2.0**-20  # sums of its multiples are exact: leases may be cut anywhere


@dataclass(frozen=True, slots=True)
class LeaseResult:
    """Sum of the rows' losses, the seconds that the lease took, and the features it read."""

    loss_sum: float
    busy_s: float
    nonzeros: int


class Member:
    """A worker's part in one run.

    Attributes
    ----------
    current, previous, scratch
        ``(size,)`` float32: the global model, the one before it, and room for the next one.
        With an outer optimizer ``previous`` is what that remembers.
    generation
        Number of merges that ``current`` has been through.
    holdings
        The rows.
    """

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
        self._arrays: dict[str, Array] = {}
        self.holdings = Holdings(self.kernels, settings.seed)
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

    def rewind(self) -> None:
        """Forget what has been done since the last merge; the optimizer begins anew."""
        self.kernels.copy(self.replica.flat, self.current)
        self.replica.optimizer.reset()

    def commit(self, generation: int) -> None:
        """Make the merged model in ``scratch`` the global one, and the replica equal to it."""
        if generation == self.generation:
            return  # told twice
        if generation != self.generation + 1:
            raise TrainingError(f"merge {generation} cannot follow merge {self.generation}")
        combine = self.settings.combine
        with self._rotation:
            if combine.outer == "nesterov":
                outer_memory(self.previous, self.scratch, combine.outer_momentum, self.kernels)
                self.current, self.scratch = self.scratch, self.current
            elif self.settings.averages:
                self.current, self.scratch = self.scratch, self.current
                self.kernels.copy(self.previous, self.array("memory"))
            else:
                merged = self.scratch, self.current, self.previous
                self.current, self.previous, self.scratch = merged
            self.generation = generation
        if not self.settings.keeps_replicas:
            self.kernels.copy(self.replica.flat, self.current)
        if self.settings.on_merge == "reset":
            self.replica.optimizer.reset()

    def squared_norm(self) -> float:
        """Return the squared L2 norm of the replica."""
        return self.kernels.squared_norm(self.replica.flat)

    def host_models(self) -> tuple[int, dict[str, Array]]:
        """Return the generation, and copies of the global model and the one before it."""
        with self._rotation:
            models = {"current": self.current, "previous": self.previous}
            return self.generation, {n: self.kernels.to_host(m).copy() for n, m in models.items()}

    def array(self, name: str) -> Array:
        """Return a flat array of the model's size, zero when it is first asked for."""
        if name not in self._arrays:
            self._arrays[name] = self.kernels.zeros((self.layout.size,))
        return self._arrays[name]

    def merge_source(self) -> Array:
        """Return the model that this worker brings to a merge."""
        is_center = self.settings.averages or "server_optimizer" in self.__dict__
        return self.array("center") if is_center else self.replica.flat

    @cached_property
    def server_optimizer(self) -> Optimizer:
        """The optimizer of the parameter server, where it runs in this process."""
        return self.replica.optimizer_for(self.array("center"))

    def local_state(self) -> dict[str, Array]:
        """Return copies of what this worker alone knows and a checkpoint must hold."""
        state: dict[str, Array] = {}
        if self.settings.keeps_replicas:
            state["replica"] = self.replica.flat
        if self.settings.on_merge != "reset":
            optimizer = self.replica.optimizer.state()
            state |= {f"optimizer.{name}": array for name, array in optimizer.items()}
            if "server_optimizer" in self.__dict__:
                server = self.server_optimizer.state()
                state |= {f"server.{name}": array for name, array in server.items()}
        return {name: self.kernels.to_host(array).copy() for name, array in state.items()}

    def set_local_state(self, state: Mapping[str, Array]) -> None:
        """Go on from what `local_state` returned."""
        held = {f"optimizer.{n}": a for n, a in self.replica.optimizer.state().items()}
        held["replica"] = self.replica.flat
        if any(name.startswith("server.") for name in state):
            held |= {f"server.{n}": a for n, a in self.server_optimizer.state().items()}
        for name, array in state.items():
            held[name][...] = self.kernels.to_device(array)

    # -------------------------------------------------------------------- rows

    def hold_all(self, train: Sequence[Partition], test: Sequence[Partition]) -> None:
        """Hold every row: the training partitions become one stream."""
        self.holdings.hold_all(train, test)

    def hold(self, train: Mapping[int, Partition], test: Mapping[int, Partition]) -> None:
        """Hold these shards, beside those that leases under way may still name."""
        self.holdings.hold(train, test)

    def count_labels(self, label_counts: Array) -> None:
        """Hear how often each label occurs in the training rows."""
        settings = self.settings
        self.label_counts = label_counts
        self.inverse_propensity = propensities(
            label_counts, settings.training_rows, settings.propensity_a, settings.propensity_b
        )

    # -------------------------------------------------------------------- work

    def lease(self, batches: Sequence[Sequence[Span]], lr: float, fetched: Fetched) -> LeaseResult:
        """Step through batches; ``fetched`` has the rows of spans that are not held here.

        Raises
        ------
        TrainingError
            If the loss is not finite any more.
        """
        begun_s = time.perf_counter()
        loss_sum, nonzeros = 0.0, 0
        for batch in batches:
            result = self.step(batch, lr, fetched)
            loss_sum, nonzeros = loss_sum + result.loss_sum, nonzeros + result.nonzeros
        return LeaseResult(loss_sum, time.perf_counter() - begun_s, nonzeros)

    def step(self, batch: Sequence[Span], lr: float, fetched: Fetched) -> StepResult:
        """Step through one batch; ``lr`` is the rate before the schedule."""
        segments = self.holdings.batch(batch, fetched)
        key, rate = self.holdings.noise_key(batch), self.scheduled(lr, batch)
        return _checked(self.replica.step(segments, rate, key), lr)

    def find_gradient(self, batch: Sequence[Span], lr: float, fetched: Fetched) -> StepResult:
        """Put the mean gradient over a batch into ``gradient``; ``lr`` is for the message only."""
        self.gradient.clear()
        segments = self.holdings.batch(batch, fetched)
        key = self.holdings.noise_key(batch)
        return _checked(self.replica.gradient(segments, self.gradient, key), lr)

    @cached_property
    def gradient(self) -> GradientBuffer:
        """Where `find_gradient` puts the gradient."""
        return GradientBuffer(self.kernels, self.layout.size, self.layout.views)

    def scheduled(self, lr: float, batch: Sequence[Span]) -> float:
        """Return the learning rate of a batch: it depends on where in the run its rows lie."""
        settings, first = self.settings, batch[0]
        epoch = first.epoch + first.start / settings.stream_rows[first.stream]
        return lr * settings.schedule.factor(epoch, settings.epochs)

    def evaluate(self, pieces: Sequence[Piece], fetched: Mapping[int, Partition]) -> MetricSums:
        """Score pieces of the test rows with the global model.

        ``fetched`` has the shards that are not held here.
        """
        if not self.settings.keeps_replicas:  # then the replica equals the global model
            return self._evaluate(pieces, fetched)
        kept = self.array("kept")
        self.kernels.copy(kept, self.replica.flat)
        self.kernels.copy(self.replica.flat, self.current)
        try:
            return self._evaluate(pieces, fetched)
        finally:
            self.kernels.copy(self.replica.flat, kept)

    def _evaluate(self, pieces: Sequence[Piece], fetched: Mapping[int, Partition]) -> MetricSums:
        step = self.settings.evaluation_rows
        sums = MetricSums.zero(self.settings.ks)
        for shard, start, stop in pieces:
            part = fetched[shard] if shard in fetched else self.holdings.tests[shard]
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


def _checked(result: StepResult, lr: float) -> StepResult:
    if not np.isfinite(result.loss_sum):
        raise TrainingError(
            f"the loss is not finite any more at learning rate {lr:g}: lower strategy.lr"
        )
    loss_sum = float(np.rint(result.loss_sum / _LOSS_UNIT) * _LOSS_UNIT)
    return StepResult(loss_sum, result.rows, result.nonzeros)


def _rows_of(labels: Csr, rows: Array) -> Csr:
    """Consecutive rows of a host matrix."""
    first, last = labels.indptr[rows[0]], labels.indptr[rows[-1] + 1]
    indptr = labels.indptr[rows[0] : rows[-1] + 2] - first
    return Csr(indptr, labels.indices[first:last], None, labels.columns)
