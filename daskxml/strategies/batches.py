"""Rows in batches: the settings of every strategy, how long a mega-batch is, how rows are divided.

The run file may leave the length open (``megabatch_batches = "auto"``). Around each merge workers
wait: for the last of them, for the merge itself, for their next lease. That takes about the same
time however many rows there are between two merges, so a mega-batch is doubled until it takes at
most `SHARE` of the time, and halved once half the rows would do. A worker alone waits for nobody,
and keeps `FIRST` batches: its run is the same each time.

A momentum g of merges is that of `FIRST` batches: where there are m times as many, a merge has g^m,
so that past changes fade by rows. It amplifies the changes less, by 1 / (1 - g^m) in the long run,
which the learning rate makes up for: `rate_gain`. That is at most `MOST_GAIN`, which bounds the
length as well: with g = 0.9 to 100 batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from daskxml.core.fields import Checked, bounded
from daskxml.strategies.state import MegabatchState

FIRST, MOST = 50, 200  # batches of a mega-batch, where that is left open
MOST_GAIN = 2.0  # a learning rate that is near its limit bears no more
SHARE = 0.05  # of the time, for waiting and merging
_NEWEST = 0.25  # weight of the last mega-batch in the measured wait
_SURPRISE = 4.0  # times the measured wait that one counts, at most: a worker may have been frozen


@dataclass(frozen=True, kw_only=True)
class BatchConfig(Checked):
    """Settings of batches that every strategy has.

    Attributes
    ----------
    lr
        Learning rate at ``batch_max`` rows; other sizes step in proportion (linear scaling).
    batch_max
        The largest batch of a worker, in rows.
    megabatch_batches
        Rows between two merges, in batches of ``batch_max``. ``"auto"``: so many, from 50 to 200,
        that the workers train for 95 % of the time (see this module's head); 50 where they do
        not train replicas by leases.

    Examples
    --------
    >>> BatchConfig(batch_max=64, megabatch_batches=50).megabatch_rows
    3200
    """

    lr: float = bounded(1.0, above=0)
    batch_max: int = bounded(256, low=1)
    megabatch_batches: int | Literal["auto"] = bounded(100, low=1, words=("auto",))

    @property
    def megabatch_rows(self) -> int:
        """Rows between two merges, at the beginning of a run."""
        return self.first_batches * self.batch_max

    @property
    def first_batches(self) -> int:
        """Batches of the first mega-batch."""
        return FIRST if self.megabatch_batches == "auto" else self.megabatch_batches

    def first_size(self, pool_threads: int) -> int:
        """Return the batch size of a new worker; 0 threads: a replica."""
        return self.batch_max

    def largest_size(self, pool_threads: int) -> int:
        """Return the largest batch size of such a worker: the first, where sizes do not change."""
        return self.first_size(pool_threads)


@dataclass(frozen=True, kw_only=True)
class BoundedConfig(BatchConfig):
    """Settings of batches whose size changes within bounds for each kind of device.

    Attributes
    ----------
    batch_min
        Least batch of a replica; 0: ``batch_max / least_share``.
    pool_batch_min, pool_batch_max
        Least and largest batch of a pool, in rows for each of its threads.

    Examples
    --------
    >>> config = BoundedConfig(batch_max=1024, pool_batch_max=32)
    >>> config.bounds, config.bounds_of(0), config.bounds_of(4)
    ((128, 1024), (128, 1024), (4, 128))
    """

    least_share: ClassVar[int] = 8  # the largest batch over the least, where that is not given
    batch_min: int = bounded(0, low=0)
    pool_batch_min: int = bounded(1, low=1)
    pool_batch_max: int = bounded(64, low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.bounds
        if low > high:
            raise self.refusal("batch_min", f"must be at most batch_max = {high}")
        if self.pool_batch_min > self.pool_batch_max:
            problem = f"must be at most pool_batch_max = {self.pool_batch_max}"
            raise self.refusal("pool_batch_min", problem)

    @property
    def bounds(self) -> tuple[int, int]:
        """Least and largest batch of a replica."""
        return self.batch_min or max(1, self.batch_max // self.least_share), self.batch_max

    def bounds_of(self, pool_threads: int) -> tuple[int, int]:
        """Return the least and the largest batch of a pool of so many threads; 0: a replica."""
        if not pool_threads:
            return self.bounds
        return self.pool_batch_min * pool_threads, self.pool_batch_max * pool_threads

    def first_size(self, pool_threads: int) -> int:
        """Return the upper bound of a replica, and the lower one of a pool, which may be slow."""
        low, high = self.bounds_of(pool_threads)
        return low if pool_threads else high

    def largest_size(self, pool_threads: int) -> int:
        """Return the upper bound."""
        return self.bounds_of(pool_threads)[1]


def rate_gain(momentum: float, times: float) -> float:
    """Return the learning rate's factor for mega-batches ``times`` as long as `FIRST` batches.

    Examples
    --------
    >>> rate_gain(0.9, 1.0), round(rate_gain(0.9, 4.0), 3), rate_gain(0.0, 4.0)
    (1.0, 3.439, 1.0)
    """
    return (1.0 - momentum**times) / (1.0 - momentum)


def with_length(
    state: MegabatchState, took_s: float, batch_rows: int, momentum: float
) -> MegabatchState:
    """Return the state after a merge, with the next mega-batch's length.

    Parameters
    ----------
    took_s
        From the mega-batch's beginning to the end of its merge; 0: unknown.
    batch_rows
        Rows of the largest batch, in which the length is counted.
    momentum
        Of the run file.

    Examples
    --------
    Two workers of 10,000 rows a second that wait for 16 ms around a merge of 3,200 rows:

    >>> from daskxml.strategies.state import WorkerState
    >>> worker = WorkerState(batch_size=64, rows=1600, busy_s=0.16)
    >>> state = MegabatchState(
    ...     remaining_rows=0, batches=50, merging=("a", "b"), members={"a": worker, "b": worker})
    >>> with_length(state, 0.176, 64, momentum=0.9).batches
    100
    """
    done = [state.members[name] for name in state.merging]
    done = [w for w in done if w.rows and w.busy_s and not (w.came_late or w.age)]
    if len(done) < 2 or took_s <= 0.0:
        return state
    busy_s = sum(worker.busy_s for worker in done) / len(done)
    waited_s = max(0.0, took_s - busy_s)
    known_s = state.waited_s or waited_s
    known_s += _NEWEST * (min(waited_s, _SURPRISE * known_s) - known_s)
    rows_per_s = sum(worker.rows for worker in done) / busy_s
    wanted = known_s * (1.0 / SHARE - 1.0) * rows_per_s / batch_rows
    batches = state.batches
    if wanted > batches:
        fits = 2 * batches <= MOST and rate_gain(momentum, 2 * batches / FIRST) <= MOST_GAIN
        batches *= 1 + fits
    elif wanted < batches / 2.5:
        batches = max(batches // 2, FIRST)
    return replace(state, batches=batches, waited_s=known_s)


def apportion(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Divide ``total`` in proportion to ``weights``, in whole numbers (largest remainders).

    Ties go to the names that come first in ``weights``.

    Examples
    --------
    >>> apportion(64, {"a": 1, "b": 1, "c": 1})
    {'a': 22, 'b': 21, 'c': 21}
    >>> apportion(10, {"a": 2.0, "b": 1.0})
    {'a': 7, 'b': 3}
    """
    whole = sum(weights.values())
    parts = {name: divmod(total * weight, whole) for name, weight in weights.items()}
    shares = {name: int(quotient) for name, (quotient, _) in parts.items()}
    left = total - sum(shares.values())
    for name in sorted(parts, key=lambda n: -parts[n][1])[:left]:
        shares[name] += 1
    return shares


def split_rows(rows: int, batch_rows: Mapping[str, int]) -> dict[str, int]:
    """Divide rows so that all workers have the same number of batches of their own size.

    The rows beyond full batches for all are one smaller batch for each, in proportion.

    Parameters
    ----------
    rows
        Rows to divide.
    batch_rows
        Rows of each worker's batch, 0 or more.

    Examples
    --------
    >>> split_rows(100, {"a": 20, "b": 10})  # three batches each, and 10 rows
    {'a': 67, 'b': 33}
    >>> split_rows(5, {"a": 20, "b": 20})
    {'a': 3, 'b': 2}
    """
    batches, left = divmod(rows, sum(batch_rows.values()))
    pieces = apportion(left, batch_rows)
    return {name: batches * size + pieces[name] for name, size in batch_rows.items()}


def split_batches(rows: int, batch_rows: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Divide rows in proportion to ``weights``, in whole batches.

    Where ``rows`` is no multiple, one batch is smaller: one of the worker with the most.

    Examples
    --------
    >>> split_batches(250, 50, {"a": 3.0, "b": 2.0})
    {'a': 150, 'b': 100}
    >>> split_batches(245, 50, {"a": 3.0, "b": 2.0})
    {'a': 145, 'b': 100}
    """
    batches = -(-rows // batch_rows)
    shares = {name: n * batch_rows for name, n in apportion(batches, weights).items()}
    shares[max(shares, key=shares.__getitem__)] -= batches * batch_rows - rows
    return shares
