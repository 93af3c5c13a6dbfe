"""How a worker goes through its batches: alone or by threads, on its own model or a shared one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from daskxml.errors import ConfigError, TrainingError
from daskxml.model.sampling import label_tables
from daskxml.ops import Kernels
from daskxml.optim import GradientBuffer
from daskxml.training.deep_copy import DeepCopy
from daskxml.training.fitting import Ahead, MeanGradient, Share, cut_fetched
from daskxml.training.holdings import Fetched, Holdings
from daskxml.training.ledger import Span
from daskxml.training.memory import MemoryPlan, fit_memory, output_dtype
from daskxml.training.orders import Notes
from daskxml.training.pool import Pool, PoolResult
from daskxml.training.replica import Replica
from daskxml.training.results import StepResult
from daskxml.training.settings import MemberSettings
from daskxml.training.shared import LocalStore, ModelStore, SharedModel
from daskxml.types import Segment

Batch = Sequence[Span]
Rest = Callable[[int], None]  # told of so many batches, after which nobody changes the model

_LOSS_UNIT = 2.0**-20  # sums of its multiples are exact: leases may be cut anywhere


def no_rest(batches: int) -> None:
    """Go on at once."""


class Stepper:
    """Turns batches of spans into steps, or gradients, of a replica.

    Parameters
    ----------
    replica
        What steps where there is no pool.
    pool
        Whose threads take the parts of batches, in the place of the replica.
    copy
        Where a batch is worked on a copy of a shared model: the copy.
    memory
        What the worker takes of its device's memory, beside the rows.

    Attributes
    ----------
    most_rows
        The largest batch that the replica's memory has room for. Larger ones are stepped through
        in parts; a batch for which there turns out to be no room lowers it and is tried again.
    """

    def __init__(
        self, settings: MemberSettings, holdings: Holdings, replica: Replica,
        pool: Pool | None, copy: DeepCopy | None, memory: MemoryPlan,
    ) -> None:  # fmt: skip
        self.memory, self._settings, self._holdings = memory, settings, holdings
        self.replica, self.pool, self._copy = replica, pool, copy
        self.most_rows = replica.max_batch_rows
        self._told_rows = settings.max_batch_rows
        spec, sampling = settings.spec, settings.sampling
        self._is_random = sampling.is_on or spec.dropout > 0.0 or spec.feature_dropout > 0.0

    def run(
        self, batches: Sequence[Batch], lr: float, fetched: Fetched, rest: Rest = no_rest
    ) -> PoolResult:
        """Go through batches; see `daskxml.training.member.Member.lease`."""
        if self._copy is None:
            return self._run(batches, lr, fetched, rest)
        done = PoolResult()
        for batch in batches:
            self._copy.pull()
            done += self._run([batch], lr, fetched, rest)
            self._copy.push()
        return done

    def _run(self, batches: Sequence[Batch], lr: float, fetched: Fetched, rest: Rest) -> PoolResult:
        done = PoolResult()
        if self.pool is not None:
            rows = cut_fetched(batches, fetched, self.pool.threads)
            done = self.pool.run(batches, lambda mine, part: self.step(mine, part, lr, rows))
            rest(len(batches))
            return done
        shares = [Share(batch, lr, fetched) for batch in batches]
        for step in self._go_through(shares, self._queue, rest):  # the device is waited for, once
            done = done.plus(_checked(step, lr))
        return done

    def step(self, replica: Replica, batch: Batch, lr: float, fetched: Fetched) -> StepResult:
        """Step a replica through one batch, or a part of one."""
        segments = self._holdings.batch(batch, fetched)
        return _checked(replica.step(segments, self.scheduled(lr, batch), self._key(batch)), lr)

    def step_alone(self, batch: Batch, lr: float, fetched: Fetched) -> StepResult:
        """Step the replica through one batch, in parts where it has no room for all of it."""
        return _checked(_joined(self._go_through([Share(batch, lr, fetched)], self._queue)), lr)

    def gradient(
        self, batch: Batch, buffer: GradientBuffer, lr: float, fetched: Fetched
    ) -> StepResult:
        """Put the mean gradient over a batch into ``buffer``."""
        mean = MeanGradient(buffer, self.replica.kernels)

        def add(share: Share, segments: Sequence[Segment]) -> StepResult:
            self.replica.reserve(share.rows, self.replica.count(segments))
            mean.make_room(share.rows)
            return self.replica.gradient(segments, buffer, self._key(share.batch))

        steps = self._go_through([Share(batch, lr, fetched)], add)
        mean.finish()
        return _checked(_joined(steps), lr)

    def _queue(self, share: Share, segments: Sequence[Segment]) -> StepResult:
        rate = self.scheduled(share.lr, share.batch)
        return self.replica.step(segments, rate, self._key(share.batch))

    def _go_through(
        self, shares: Sequence[Share], work: Callable[[Share, Sequence[Segment]], StepResult],
        rest: Rest = no_rest,
    ) -> list[StepResult]:  # fmt: skip
        """Work on batches in order; the rows of the next are sent while one is worked on."""
        todo, ahead, results = [*reversed(shares)], Ahead(self._holdings), list[StepResult]()
        while todo:
            share = todo.pop()
            todo += reversed(share.cut(self.most_rows))
            share = todo.pop()
            try:
                segments = ahead.take(share)
                if todo and todo[-1].rows <= self.most_rows:
                    ahead.send(todo[-1])
                results.append(work(share, segments))
                problem = None
            except MemoryError as error:
                problem = str(error)
            if problem is not None:
                ahead.drop()
                self._shrink(share.rows, problem)
                todo.append(share)
            elif share.ends:
                rest(1)
        return results

    def _shrink(self, rows: int, problem: str) -> None:
        """A batch of so many rows has no room: take smaller ones from now on."""
        if rows == 1:
            raise TrainingError(
                f"the device has no memory for a batch of one row ({problem}): make model.hidden "
                "smaller, lower training.logits_budget, or hold fewer rows on it"
            )
        self.replica.release()
        self.most_rows = rows // 2

    def news_of_memory(self) -> int:
        """Return the largest batch, if it has become smaller since this was asked; else 0."""
        if self.pool is not None or self.most_rows >= self._told_rows:
            return 0
        self._told_rows = self.most_rows
        return self.most_rows

    def _key(self, batch: Batch) -> int:
        """What seeds a batch's dropout and sampling; hashing it costs as much as a small step."""
        return self._holdings.noise_key(batch) if self._is_random else 0

    def scheduled(self, lr: float, batch: Batch) -> float:
        """Return the learning rate of a batch: it depends on where in the run its rows lie."""
        settings, first = self._settings, batch[0]
        epoch = first.epoch + first.start / settings.stream_rows[first.stream]
        return lr * settings.schedule.factor(epoch, settings.epochs)


def make_stepper(
    settings: MemberSettings, kernels: Kernels, holdings: Holdings,
    shared: SharedModel | None, store: ModelStore | None,
) -> Stepper:  # fmt: skip
    """Return what goes through a worker's batches, and with it the worker's replica.

    Parameters
    ----------
    kernels
        Of the replica: all that this worker has.
    shared, store
        See `daskxml.training.member.Member`.

    Raises
    ------
    ConfigError
        If the shared model is on another machine and there is no store.
    TrainingError
        If the model does not fit into the device's memory.
    """
    threads, budget = settings.pool_threads, settings.logits_budget_bytes
    memory = fit_memory(settings, kernels)
    is_tight = memory.batch_rows < settings.max_batch_rows
    rows = memory.batch_rows if is_tight else _replica_rows(settings)
    in_place = shared if settings.steps_in_place else None
    replica = Replica(
        settings.spec,
        settings.optimizer,
        kernels,
        max_batch_rows=rows,
        logits_budget_bytes=budget,
        sampling=settings.sampling,
        tables=label_tables(settings.sampling, settings.spec, settings.seed),
        flat=in_place and in_place.flat,
        output_dtype=output_dtype(settings, kernels),
    )
    pool = Pool(replica, threads, settings.max_batch_rows, budget) if threads else None
    copy = None
    if settings.shares_model and in_place is None:
        copy = DeepCopy(kernels, replica.flat, store or _local_store(settings, shared, kernels))
    return Stepper(settings, holdings, replica, pool, copy, memory)


def _replica_rows(settings: MemberSettings) -> int:
    """A pool's replica does not step: it ranks labels, in batches that are worth it."""
    rows = settings.max_batch_rows
    return max(rows, settings.evaluation_rows) if settings.pool_threads else rows


def _local_store(
    settings: MemberSettings, shared: SharedModel | None, kernels: Kernels
) -> LocalStore:
    if shared is None:
        raise ConfigError(
            f"the shared model is on {settings.home}, this worker on {settings.host}: "
            "let models be pulled and pushed between machines (cluster.push_pull)"
        )
    return LocalStore(shared, kernels if kernels.name == "cpu" else None)


def notes_of(done: PoolResult, settings: MemberSettings) -> Notes:
    """Return what is worth telling: where labels are sampled, the share of them that a row saw."""
    if not settings.sampling.is_on or not done.rows:
        return {}
    return {"active": (done.seen / settings.spec.labels, done.rows)}


def _joined(steps: Sequence[StepResult]) -> StepResult:
    """The sum of a batch's parts."""
    if len(steps) == 1:
        return steps[0]
    loss_sum = sum(step.loss_sum for step in steps)
    rows, nonzeros = sum(step.rows for step in steps), sum(step.nonzeros for step in steps)
    return StepResult(loss_sum, rows, nonzeros, sum(step.seen for step in steps))


def _checked(result: StepResult, lr: float) -> StepResult:
    if not math.isfinite(result.loss_sum):
        raise TrainingError(
            f"the loss is not finite any more at learning rate {lr:g}: lower strategy.lr"
        )
    loss_sum = round(result.loss_sum / _LOSS_UNIT) * _LOSS_UNIT
    return StepResult(loss_sum, result.rows, result.nonzeros, result.seen)
