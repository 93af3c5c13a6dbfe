"""Batch size scaling: what the next batch sizes are, from what the workers did with the last ones.

The aim is that of Algorithm 1 of Ma, Rusu, Wu and Sim, "Adaptive Elastic Training for Sparse Deep
Learning on Heterogeneous Multi-GPU Servers", 2021: all workers make equally many updates between
two merges. With u_i the updates of worker i, t_i its seconds of work an update, b_i its batch size:

================  ==================================================================================
rule              next size
================  ==================================================================================
``speed``         ``b_i T / t_i``, T the geometric mean of all t_i; then all sizes by one factor, so
                  that the largest is b_max. With a time in proportion to the rows this is b_max
                  times a worker's speed over the fastest one's
``paper``         Algorithm 1 as printed: ``b_i + beta (u_i - mean u)``; a step that would leave the
                  bounds is skipped
``proportional``  that of OmniLearn (Tyagi and Sharma, 2025, arXiv 2503.17469), whose controller
                  takes the error ``t_i - mean t`` times the throughput ``b_i / t_i`` from ``b_i``:
                  so ``b_i mean t / t_i``; nothing where all are within 5 %, and their sum stays
                  what it was
================  ==================================================================================

``speed`` alone is not drawn to either bound by noise: counts of updates are whole numbers and end
with the last lease, seconds are neither; and one worker always has b_max. Sizes stay until the mean
of ``log(T / t_i)`` over several mega-batches is beyond what its noise makes of equal workers: more
than `LEAST` and three times its standard error, a little more among many. Then all step by their
means. The study that chose the default: docs/decisions/strategies.md.

A worker without an update since the last merge keeps its size. Pools are compared with the
replicas: one that cannot keep up would drive these to their upper bounds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from daskxml.strategies.state import NO_EVIDENCE, Evidence

LEAST = 0.02  # relative change of a size
_DEAD_BAND = 0.05  # of `in_proportion`
_INDEPENDENT_S = 0.5  # what holds a worker up lasts: shorter observations are parts of one


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """What a worker did since the last merge, and what its batch size may be.

    Attributes
    ----------
    size
        Rows of its batches, a real number.
    low, high
        Bounds of the size.
    updates
        u_i, a smaller batch as its share of a full one.
    busy_s
        Seconds that they took.
    is_pool
        Whether it is a pool of threads, which no other worker is compared with.
    evidence
        What ``log(T / t_i)`` was so far.
    speed
        The rows a second of all that.
    """

    size: float
    low: float = 1.0
    high: float = math.inf
    updates: float = 0.0
    busy_s: float = 0.0
    is_pool: bool = False
    evidence: Evidence = NO_EVIDENCE
    speed: float = 0.0

    def sized(self, size: float) -> Pace:
        """Return it with another size, within its bounds."""
        return replace(self, size=min(max(size, self.low), self.high))

    def observed(self, value: float) -> Pace:
        """Return it with one more observation of ``log(T / t_i)``."""
        weight = min(1.0, self.busy_s / _INDEPENDENT_S)
        return replace(self, evidence=self.evidence.with_value(value, weight))

    def stepped(self, by: float) -> Pace:
        """Return it with what its evidence says of its new size, as a first observation."""
        return replace(self, evidence=self.evidence.restarted(self.evidence.mean + by))


Paces = Mapping[str, Pace]


def _compared(paces: Paces) -> Collection[str]:
    """Return those that set the pace: replicas, or pools where there is nothing else."""
    return [name for name, pace in paces.items() if not pace.is_pool] or paces.keys()


def by_speed(paces: Paces) -> dict[str, Pace]:
    """Make all workers take the same time for a batch; one of them has its upper bound.

    Examples
    --------
    >>> fast = Pace(size=64.0, high=64, updates=50, busy_s=50.0)
    >>> paces = {"a": fast, "b": replace(fast, busy_s=100.0)}
    >>> once = by_speed(paces)  # it may be noise
    >>> again = by_speed({n: replace(paces[n], evidence=p.evidence) for n, p in once.items()})
    >>> {name: [round(each[name].size, 6) for each in (once, again)] for name in "ab"}
    {'a': [64.0, 64.0], 'b': [64.0, 32.0]}
    """
    timed = {n: p for n, p in paces.items() if p.updates and p.busy_s}
    if not timed:
        return dict(paces)
    times = {name: math.log(pace.busy_s / pace.updates) for name, pace in timed.items()}
    mean = _mean([times[name] for name in _compared(timed)])
    seen = {name: pace.observed(mean - times[name]) for name, pace in timed.items()}
    sized = _sized(seen)
    steps = {name: math.log(sized[name].size / pace.size) for name, pace in seen.items()}
    normal = math.sqrt(9.0 + 2.0 * math.log(len(seen)))
    is_due = any(
        pace.evidence.seen > 1 and abs(steps[n]) > max(LEAST, pace.evidence.bound(normal))
        for n, pace in seen.items()
    )
    if is_due:
        common = _mean([steps[name] for name in _compared(seen)])
        seen = {name: pace.stepped(common - steps[name]) for name, pace in sized.items()}
    rates = {n: math.exp(p.evidence.likely - mean) * p.size for n, p in seen.items()}
    return {**paces, **{name: replace(pace, speed=rates[name]) for name, pace in seen.items()}}


def _sized(paces: Paces) -> dict[str, Pace]:
    """Return workers with the sizes that follow from their evidence."""
    sizes = {name: pace.size * math.exp(pace.evidence.mean) for name, pace in paces.items()}
    reference, factor = _compared(paces), 1.0
    if not any(paces[name].is_pool for name in reference):
        factor = min(paces[n].high for n in reference) / max(sizes[n] for n in reference)
    return {name: pace.sized(sizes[name] * factor) for name, pace in paces.items()}


def in_proportion(paces: Paces) -> dict[str, Pace]:
    """Take from each size its throughput times the error of its time; the sum stays.

    Examples
    --------
    >>> fast = Pace(size=32.0, high=64, updates=50, busy_s=50.0)
    >>> sized = in_proportion({"a": fast, "b": replace(fast, busy_s=100.0)})
    >>> {name: round(pace.size, 1) for name, pace in sized.items()}
    {'a': 42.7, 'b': 21.3}
    """
    times = {name: p.busy_s / p.updates for name, p in paces.items() if p.updates and p.busy_s}
    if not times:
        return dict(paces)
    mean = _mean([times[name] for name in _compared({n: paces[n] for n in times})])
    if all(abs(time_s - mean) <= _DEAD_BAND * mean for time_s in times.values()):
        return dict(paces)
    sizes = {name: paces[name].size * mean / time_s for name, time_s in times.items()}
    kept = sum(paces[name].size for name in times) / sum(sizes.values())
    return {**paces, **{name: paces[name].sized(kept * size) for name, size in sizes.items()}}


def as_printed(paces: Paces, beta: float) -> dict[str, Pace]:
    """Algorithm 1, with ``beta`` or half of a worker's lower bound.

    Examples
    --------
    >>> pace = Pace(size=32.0, low=8, high=64, updates=6)
    >>> sized = as_printed({"a": pace, "b": replace(pace, updates=2)}, 4.0)
    >>> {name: pace.size for name, pace in sized.items()}
    {'a': 40.0, 'b': 24.0}
    """
    mean = _mean([paces[name].updates for name in _compared(paces)])
    if not any(pace.updates for pace in paces.values()):
        return dict(paces)
    moved = {n: p.size + (beta or p.low / 2.0) * (p.updates - mean) for n, p in paces.items()}
    return {
        name: replace(pace, size=moved[name]) if pace.low <= moved[name] <= pace.high else pace
        for name, pace in paces.items()
    }


def _mean(values: Collection[float]) -> float:
    return sum(values) / max(1, len(values))
