"""Synchronous SGD with an output layer that is cut among the workers by their measured speeds.

The cut along labels is that of vocabulary-parallel cross entropy: Shoeybi, Patwary, Puri,
LeGresley, Casper and Catanzaro, "Megatron-LM: Training Multi-Billion Parameter Language Models
Using Model Parallelism", 2019, section 3; the speeds are measured as those of Adaptive SGD.

======  ==================  ====================================================================
symbol  here                meaning
======  ==================  ====================================================================
N       workers             each has some labels, and all layers below
s_i     ``rows_per_s``      measured speed of worker i
w_i     ``label_share``     its labels, in units of 1 / `UNITS` of all: in proportion to s_i, but no
                            more than its memory holds
b_i     ``batch_rows``      rows whose gradient worker i adds up, in proportion to w_i
======  ==================  ====================================================================

A step is one of ``batch_max`` rows, whatever the number of workers: the model is that of one worker
up to rounding. Deviations: equal GPUs have equal parts in the paper; here parts follow speeds, and
are cut anew before a gang in which busy times would differ by more than ``reshard_above``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from daskxml.core.fields import bounded
from daskxml.strategies.batches import BatchConfig, apportion
from daskxml.strategies.gangs import GangState, GangStrategy, GangWorker
from daskxml.strategies.protocol import (
    Command,
    Event,
    GangDone,
    Partitioned,
    SyncPattern,
    WorkerView,
)

UNITS = 4096  # parts of the labels that workers get one or more of


@dataclass(frozen=True, kw_only=True)
class Config(BatchConfig):
    """Settings of a partitioned output layer, beside those of `BatchConfig`.

    Attributes
    ----------
    reshard_above
        Labels are cut anew, before any gang of about a second, where the longest busy time is more
        than so much above the shortest.
    """

    reshard_above: float = bounded(0.05, low=0, high=10)


def shares_of(total: int, speeds: Mapping[str, float]) -> dict[str, int]:
    """Divide ``total`` by speeds, at least 1 for each where there is enough.

    A worker whose speed is 0, as it came in the middle of a mega-batch, counts as a typical one.

    Examples
    --------
    >>> shares_of(100, {"a": 2.0, "b": 1.0, "c": 0.0})
    {'a': 44, 'b': 23, 'c': 33}
    >>> shares_of(10, {"a": 1000.0, "b": 1.0})
    {'a': 9, 'b': 1}
    """
    known = [speed for speed in speeds.values() if speed]
    typical = sum(known) / len(known) if known else 1.0
    least = int(total >= len(speeds))
    weights = {name: speed or typical for name, speed in speeds.items()}
    rest = apportion(total - least * len(speeds), weights)
    return {name: least + share for name, share in rest.items()}


def bounded_shares(workers: Mapping[str, GangWorker]) -> dict[str, int]:
    """Divide the labels by speeds, but give none a larger share than its memory holds.

    Where all together hold too few, they are divided by what each holds.

    Examples
    --------
    >>> fast, slow = GangWorker(speed=3.0, label_share=0.5), GangWorker(speed=1.0)
    >>> bounded_shares({"a": fast, "b": slow, "c": slow})
    {'a': 2048, 'b': 1024, 'c': 1024}
    """
    most = {name: max(1, int(it.label_share * UNITS)) for name, it in workers.items()}
    full: dict[str, int] = {}
    while len(full) < len(workers):
        speeds = {name: it.speed for name, it in workers.items() if name not in full}
        found = shares_of(UNITS - sum(full.values()), speeds)
        exceeding = {name: most[name] for name, units in found.items() if units > most[name]}
        if not exceeding:
            return {name: (full | found)[name] for name in workers}
        full |= exceeding
    return apportion(UNITS, most)


def fit_speeds(workers: Mapping[str, GangWorker], above: float) -> dict[str, GangWorker]:
    """Return the workers with the speeds that were measured, or unchanged where those still fit.

    ``speed`` is what the labels were cut by, ``rows_per_s`` what was measured since.

    Examples
    --------
    >>> workers = {"a": GangWorker(rows_per_s=100.0, speed=50.0), "b": GangWorker(rows_per_s=96.0,
    ...     speed=50.0)}
    >>> fit_speeds(workers, above=0.05) == workers
    True
    >>> [worker.speed for worker in fit_speeds(workers, above=0.03).values()]
    [100.0, 96.0]
    """
    busy = [each.speed / each.rows_per_s for each in workers.values() if each.rows_per_s]
    is_cut = all(worker.speed for worker in workers.values())
    if is_cut and max(busy, default=1.0) <= (1.0 + above) * min(busy, default=1.0):
        return dict(workers)
    known = [worker.rows_per_s for worker in workers.values() if worker.rows_per_s]
    typical = sum(known) / len(known) if known else 1.0
    return {name: replace(it, speed=it.rows_per_s or typical) for name, it in workers.items()}


def measure(workers: Mapping[str, GangWorker], done: GangDone) -> dict[str, GangWorker]:
    """Return the workers with the speeds of the last gang alone: a change shows at once."""
    found = dict(workers)
    for name, rows in done.rows.items():
        if rows and done.busy_s[name] > 0.0:
            found[name] = replace(found[name], rows_per_s=rows / done.busy_s[name])
    return found


class PartitionedSgd(GangStrategy):
    """The state machine; see `daskxml.strategies.gangs` for the life of a mega-batch."""

    partitions = True

    config: Config

    def step(self, state: GangState, event: Event) -> tuple[GangState, tuple[Command, ...]]:
        """Return the state after ``event``, and the commands that follow."""
        if isinstance(event, GangDone):
            state = replace(state, members=measure(state.members, event))
        return super().step(state, event)

    def next_gang(self, state: GangState) -> tuple[GangState, tuple[Command, ...]]:
        """Cut the labels anew where busy times differ by too much; then lease a gang."""
        fitted = fit_speeds(state.active, self.config.reshard_above)
        return super().next_gang(replace(state, members={**state.members, **fitted}))

    def view(self, state: GangState) -> dict[str, WorkerView]:
        """Return what the history has of every worker, with the labels that it holds."""
        units, begin = bounded_shares(state.active), 0
        found = super().view(state)
        for name, width in units.items():
            first, begin = begin / UNITS, begin + width
            found[name] = replace(found[name], labels_from=first, labels_to=begin / UNITS)
        return found

    def pattern(self, state: GangState) -> SyncPattern:
        """Cut the labels by speed."""
        return Partitioned(tuple(bounded_shares(state.active).values()))

    def batch_sizes(self, workers: Mapping[str, GangWorker]) -> dict[str, int]:
        """Divide the rows of a step as the labels are."""
        return shares_of(self.config.batch_max, bounded_shares(workers) if workers else {})

    Config = Config  # at the end, where it hides nothing
