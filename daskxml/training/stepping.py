"""How a worker goes through its batches: alone or by threads, on its own model or a shared one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daskxml.data.rows import slice_rows
from daskxml.errors import ConfigError, TrainingError
from daskxml.model.sampling import label_tables
from daskxml.ops import Kernels
from daskxml.optim import GradientBuffer
from daskxml.training.deep_copy import DeepCopy
from daskxml.training.holdings import Fetched, Holdings
from daskxml.training.ledger import Span
from daskxml.training.orders import Notes
from daskxml.training.pool import Pool, PoolResult, part_of
from daskxml.training.replica import Replica, StepResult
from daskxml.training.settings import MemberSettings
from daskxml.training.shared import LocalStore, ModelStore, SharedModel

Batch = Sequence[Span]
Rest = Callable[[int], None]  # told of so many batches, after which nobody changes the model

_LOSS_UNIT = 2.0**-20  # sums of its multiples are exact: leases may be cut anywhere


@dataclass(frozen=True, slots=True)
class LeaseResult:
    """What an `orders.LeaseReport` tells of a lease."""

    loss_sum: float
    busy_s: float
    nonzeros: int
    updates: int
    notes: Notes


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
    """

    def __init__(
        self, settings: MemberSettings, holdings: Holdings, replica: Replica,
        pool: Pool | None, copy: DeepCopy | None,
    ) -> None:  # fmt: skip
        self._settings, self._holdings = settings, holdings
        self.replica, self.pool, self._copy = replica, pool, copy
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
        for batch in batches:
            done = done.plus(self.step(self.replica, batch, lr, fetched))
            rest(1)
        return done

    def step(self, replica: Replica, batch: Batch, lr: float, fetched: Fetched) -> StepResult:
        """Step a replica through one batch, or a part of one."""
        segments = self._holdings.batch(batch, fetched)
        return _checked(replica.step(segments, self.scheduled(lr, batch), self._key(batch)), lr)

    def gradient(
        self, batch: Batch, buffer: GradientBuffer, lr: float, fetched: Fetched
    ) -> StepResult:
        """Put the mean gradient over a batch into ``buffer``."""
        buffer.clear()
        segments = self._holdings.batch(batch, fetched)
        return _checked(self.replica.gradient(segments, buffer, self._key(batch)), lr)

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
    """
    threads, budget = settings.pool_threads, settings.logits_budget_bytes
    in_place = shared if settings.steps_in_place else None
    replica = Replica(
        settings.spec,
        settings.optimizer,
        kernels,
        max_batch_rows=_replica_rows(settings),
        logits_budget_bytes=budget,
        sampling=settings.sampling,
        tables=label_tables(settings.sampling, settings.spec, settings.seed),
        flat=in_place and in_place.flat,
    )
    pool = Pool(replica, threads, settings.max_batch_rows, budget) if threads else None
    copy = None
    if settings.shares_model and in_place is None:
        copy = DeepCopy(kernels, replica.flat, store or _local_store(settings, shared, kernels))
    return Stepper(settings, holdings, replica, pool, copy)


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


def cut_fetched(batches: Sequence[Batch], fetched: Fetched, threads: int) -> Fetched:
    """Return the fetched rows by the spans that the threads of a pool ask for."""
    if not fetched:
        return fetched
    found = {}
    for batch in batches:
        sources = [span for span in batch if span in fetched]
        for piece in (piece for t in range(threads) for piece in part_of(batch, t, threads)):
            for span in sources:
                if span[:2] == piece[:2] and span.start <= piece.start < span.stop:
                    first = piece.start - span.start
                    found[piece] = slice_rows(fetched[span], first, first + piece.rows)
    return found


def _checked(result: StepResult, lr: float) -> StepResult:
    if not math.isfinite(result.loss_sum):
        raise TrainingError(
            f"the loss is not finite any more at learning rate {lr:g}: lower strategy.lr"
        )
    loss_sum = round(result.loss_sum / _LOSS_UNIT) * _LOSS_UNIT
    return StepResult(loss_sum, result.rows, result.nonzeros, result.seen)
