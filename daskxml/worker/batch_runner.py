"""How a worker steps through its batches: alone or by threads, on its own model or a shared one.

A batch for which the device has no memory is stepped through in parts (`MicroBatch`), whose
learning rates and gradients are weighted by their rows.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from daskxml.core.arrays import Array, Segment
from daskxml.core.errors import TrainingError
from daskxml.core.work_stats import WorkStats, sum_stats
from daskxml.kernels import Kernels
from daskxml.models.network.sampling import label_tables
from daskxml.optim import GradientBuffer
from daskxml.session.ledger import Span
from daskxml.worker.memory import MemoryPlan, fit_memory, made_up_rows, output_dtype
from daskxml.worker.pool import Pool
from daskxml.worker.replica import Replica
from daskxml.worker.resident_rows import (
    Batch,
    Fetched,
    Prefetch,
    ResidentRows,
    cut_fetched,
    part_of,
)
from daskxml.worker.settings import WorkerSettings
from daskxml.worker.shared_model import ModelCopy, SharedModel

WARM_UP_S = 0.05  # of steps that are timed
_LOSS_UNIT = 2.0**-20  # sums of its multiples are exact: leases may be cut anywhere


class BatchRunner:
    """Turns batches of spans into steps, or gradients, of a replica.

    Parameters
    ----------
    replica
        Steps where there is no pool.
    pool
        Its threads step through the parts of batches instead.
    copy
        Of a shared model, where batches are stepped on a copy; their changes are added to it.
    memory
        What the worker allocates on its device, beside the rows.

    Attributes
    ----------
    max_batch_rows
        The largest batch for which the replica has memory. Larger ones are stepped through in
        parts; a batch for which there turns out to be no room lowers it and is tried again.
    is_held
        Changes of the copy are not added: whoever sets it pushes them.
    """

    def __init__(
        self, settings: WorkerSettings, rows: ResidentRows, replica: Replica,
        pool: Pool | None, copy: ModelCopy | None, memory: MemoryPlan,
    ) -> None:  # fmt: skip
        self.memory, self._settings, self._rows = memory, settings, rows
        self.replica, self.pool, self.copy, self.is_held = replica, pool, copy, False
        self.max_batch_rows = replica.max_batch_rows
        self._reported_rows = settings.max_batch_rows
        spec, sampling = settings.data.spec, settings.config.sampling
        self._is_random = sampling.is_on or spec.dropout > 0.0 or spec.feature_dropout > 0.0

    def close(self) -> None:
        """Let the threads of a pool end, each after the batch that it is in."""
        if self.pool is not None:
            self.pool.close()

    def weigh_labels(self, weights: Array | None) -> None:
        """Set the weights of labels: see `daskxml.worker.replica.Replica.weigh_labels`."""
        for replica in (self.replica, *(self.pool.replicas if self.pool is not None else ())):
            replica.weigh_labels(weights)

    def run(self, batches: Sequence[Batch], lr: float, fetched: Fetched) -> WorkStats:
        """Step through batches; see `daskxml.worker.training_worker.TrainingWorker.lease`."""
        if self.copy is None:
            done = self._run(batches, lr, fetched)
        else:
            done = WorkStats()
            for batch in batches:
                self.copy.pull()
                done += self._run([batch], lr, fetched)
                if not self.is_held:
                    self.copy.push()
        if self._settings.config.sampling.is_on and done.rows:
            share = done.labels_scored / self._settings.data.spec.labels
            done.means = {"active": (share, done.rows)}
        return done

    def _run(self, batches: Sequence[Batch], lr: float, fetched: Fetched) -> WorkStats:
        if self.pool is None:
            micro_batches = [MicroBatch(batch, lr, fetched) for batch in batches]
            steps = self._run_micro_batches(micro_batches, self._step)
            return sum_stats(settled(step, lr) for step in steps)  # synchronizes once
        fetched = cut_fetched(batches, fetched, self.pool.threads)

        def step(replica: Replica, part: Batch) -> WorkStats:
            segments = self._rows.batch(part, fetched)
            return settled(replica.step(segments, self.scheduled(lr, part), self._key(part)), lr)

        return self.pool.run(batches, step)

    def step(self, batch: Batch, lr: float, fetched: Fetched) -> WorkStats:
        """Step the replica through one batch; ``lr`` is the rate before the schedule."""
        return _joined(self._run_micro_batches([MicroBatch(batch, lr, fetched)], self._step), lr)

    def gradient(
        self, batch: Batch, buffer: GradientBuffer, lr: float, fetched: Fetched
    ) -> WorkStats:
        """Put the mean gradient over a batch into ``buffer``; ``lr`` is for the message only.

        The means over parts of the batch are added up in units of the last part's rows.
        """
        rows = unit = 0
        buffer.clear()

        def scale(factor: float) -> None:
            self.replica.kernels.scale(buffer.flat, buffer.flat, factor)

        def add(part: MicroBatch, segments: Sequence[Segment]) -> WorkStats:
            nonlocal rows, unit
            self.replica.reserve(part.rows, self.replica.count(segments))
            if rows:
                scale(unit / part.rows)
            rows, unit = rows + part.rows, part.rows
            return self.replica.gradient(segments, buffer, self._key(part.batch))

        steps = self._run_micro_batches([MicroBatch(batch, lr, fetched)], add)
        if rows != unit:
            scale(unit / rows)
        return _joined(steps, lr)

    def _step(self, part: MicroBatch, segments: Sequence[Segment]) -> WorkStats:
        rate = self.scheduled(part.lr, part.batch)
        return self.replica.step(segments, rate, self._key(part.batch))

    def _run_micro_batches(
        self, batches: Sequence[MicroBatch],
        work: Callable[[MicroBatch, Sequence[Segment]], WorkStats],
    ) -> list[WorkStats]:  # fmt: skip
        """Work on batches in order; the rows of the next are sent while one is computed."""
        todo, prefetch, results = [*reversed(batches)], Prefetch(self._rows), list[WorkStats]()
        while todo:
            todo += reversed(todo.pop().cut(self.max_batch_rows))
            part, problem = todo.pop(), None
            try:
                segments = prefetch.take(part.batch, part.fetched)
                if todo and todo[-1].rows <= self.max_batch_rows:
                    prefetch.send(todo[-1].batch, todo[-1].fetched)
                results.append(work(part, segments))
            except MemoryError as error:
                problem = str(error)
            if problem is not None:  # outside of the handler, whose traceback holds arrays
                prefetch.drop()
                self._shrink(part.rows, problem)
                todo.append(part)
        return results

    def _shrink(self, rows: int, problem: str) -> None:
        """Step through smaller batches from now on, as there is no room for so many rows."""
        if rows == 1:
            raise TrainingError(
                f"the device has no memory for a batch of one row ({problem}): make model.hidden "
                "smaller, lower training.logits_budget, or hold fewer rows on it"
            )
        self.replica.release()
        self.max_batch_rows = rows // 2

    def new_memory_bound(self) -> int:
        """Return the largest batch, if it has become smaller since the last call; else 0."""
        if self.pool is not None or self.max_batch_rows >= self._reported_rows:
            return 0
        self._reported_rows = self.max_batch_rows
        return self.max_batch_rows

    def _key(self, batch: Batch) -> int:
        """Return the seed of dropout and sampling; hashing it costs as much as a small step."""
        return self._rows.noise_key(batch) if self._is_random else 0

    def scheduled(self, lr: float, batch: Batch) -> float:
        """Return the learning rate of a batch, which depends on its rows' place in the run."""
        first, config = batch[0], self._settings.config
        epoch = first.epoch + first.start / self._settings.data.stream_rows[first.stream]
        return lr * config.schedule.factor(epoch, config.training.epochs)


def make_batch_runner(
    settings: WorkerSettings, kernels: Kernels, rows: ResidentRows,
    shared: SharedModel | None = None,
) -> BatchRunner:  # fmt: skip
    """Return a worker's batch runner with a new replica.

    Parameters
    ----------
    kernels
        Of the replica, with all of the worker's threads.
    shared
        The shared model, which the replica steps on where the settings say so, else on a copy.

    Raises
    ------
    TrainingError
        If the model does not fit into the device's memory.
    """
    threads, budget = settings.slot.pool_threads, settings.logits_budget_bytes
    config, spec = settings.config, settings.data.spec
    memory, rows_wanted = fit_memory(settings, kernels), settings.max_batch_rows
    if memory.batch_rows < rows_wanted:
        rows_wanted = memory.batch_rows
    elif threads:  # this replica does not step, but ranks labels
        rows_wanted = max(rows_wanted, config.evaluation.batch_rows)
    in_place = shared is not None and settings.steps_in_place
    replica = Replica(
        spec,
        config.optimizer,
        kernels,
        max_batch_rows=rows_wanted,
        logits_budget_bytes=budget,
        sampling=config.sampling,
        tables=label_tables(config.sampling, spec, config.run.seed),
        flat=shared.flat if shared is not None and in_place else None,
        output_dtype=output_dtype(settings, kernels),
    )
    rows.sends_numbers = settings.strategy.is_joint or not replica.is_captured
    pool = Pool(replica, threads, settings.max_batch_rows, budget) if threads else None
    copy = None if shared is None or in_place else ModelCopy(kernels, replica.flat, shared)
    return BatchRunner(settings, rows, replica, pool, copy, memory)


def warm_up(replica: Replica, settings: WorkerSettings) -> float:
    """Compile the kernels and return the measured rows a second; the parameters stay the same.

    A pool's parameters are not even written to, as other workers may be training them: its threads
    are timed on a model that is thrown away.
    """
    pool = None
    if settings.slot.pool_threads:
        rows = ResidentRows(replica.kernels, settings.config.run.seed)
        private = make_batch_runner(settings, replica.kernels, rows)
        replica, pool = private.replica, private.pool
    part = made_up_rows(settings, min(settings.max_batch_rows, 256))
    numbers = np.arange(min(part.rows, replica.max_batch_rows), dtype=np.int64)
    segment = Segment(replica.kernels.to_device(part), replica.kernels.to_device(numbers))
    replica.step([segment], 0.0, 0)
    replica.top_k([segment], settings.config.evaluation.k[-1])
    _time_step(replica, pool, Segment(segment.partition, segment.rows[:1]))  # another kernel
    times = list[float]()
    while len(times) < 3 or (sum(times) < WARM_UP_S and len(times) < 100):
        times.append(_time_step(replica, pool, segment))
    if pool is not None:
        pool.close()
    replica.optimizer.reset()
    return len(numbers) / max(statistics.median(times), 1e-9)


def _time_step(replica: Replica, pool: Pool | None, segment: Segment) -> float:
    """Return the seconds of a step that changes nothing."""

    def step(mine: Replica, part: Batch) -> WorkStats:
        rows = segment.rows[part[0].start : part[0].stop]
        return mine.step([Segment(segment.partition, rows)], 0.0, 0)

    begun_s = time.perf_counter()
    if pool is None:
        float(replica.step([segment], 0.0, 0).loss_sum)  # synchronizes with the device
    else:
        pool.run([[Span(0, 0, 0, int(segment.rows.shape[0]))]], step)
    return time.perf_counter() - begun_s


def settled(step: WorkStats, lr: float) -> WorkStats:
    """Return a step's stats with its loss as a float, which synchronizes with the device."""
    loss_sum = float(step.loss_sum)
    if not math.isfinite(loss_sum):
        raise TrainingError(
            f"the loss is not finite any more at learning rate {lr:g}: lower strategy.lr"
        )
    step.loss_sum = round(loss_sum / _LOSS_UNIT) * _LOSS_UNIT
    return step


def _joined(parts: Sequence[WorkStats], lr: float) -> WorkStats:
    """Return the stats of one batch, which is one update, from those of its parts."""
    for part in parts:
        part.loss_sum = float(part.loss_sum)
    batch = sum_stats(parts)
    batch.updates = 1
    return settled(batch, lr)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A batch, or a part of one, with its learning rate.

    Attributes
    ----------
    batch, lr
        Rows, and the rate before the schedule.
    fetched
        The rows of those spans that are not resident here.

    Examples
    --------
    >>> parts = MicroBatch([Span(0, 0, 0, 5)], 1.0).cut(2)
    >>> [(part.rows, part.lr) for part in parts]
    [(1, 0.2), (2, 0.4), (2, 0.4)]
    """

    batch: Batch
    lr: float
    fetched: Fetched = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(span.rows for span in self.batch)

    def cut(self, most_rows: int) -> list[MicroBatch]:
        """Return near-equal parts of at most so many rows; rates in proportion to their rows."""
        parts = -(-self.rows // most_rows)
        if parts <= 1:
            return [self]
        fetched = cut_fetched([self.batch], self.fetched, parts)
        batches = [part_of(self.batch, part, parts) for part in range(parts)]
        cut = [MicroBatch(batch, self.lr, fetched) for batch in batches]
        return [replace(part, lr=self.lr * part.rows / self.rows) for part in cut]
