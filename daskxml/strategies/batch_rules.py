"""Batch size scaling: what the next batch sizes are, from what the workers did with the last ones.

The aim is that of Algorithm 1 of Ma, Rusu, Wu and Sim, "Adaptive Elastic Training for Sparse Deep
Learning on Heterogeneous Multi-GPU Servers", 2021: all workers make equally many updates between
two merges. With u_i the updates of worker i, t_i its seconds of work an update, b_i its batch size:

=============  =====================================================================================
rule           next size
=============  =====================================================================================
``speed``      ``b_i (T / t_i)^g_i``, T the geometric mean of all t_i; then all sizes by one factor,
               so that the largest is b_max. With g_i = 1 and a time in proportion to the rows this
               is b_max times a worker's speed over the fastest one's
``sign``       one fixed step up where u_i is above the mean, one down where it is below
``paper``      Algorithm 1 as printed: ``b_i + beta (u_i - mean u)``; a step that would leave the
               bounds is skipped
=============  =====================================================================================

``speed`` alone is not drawn to either bound by noise: counts of updates are whole numbers and end
with the last lease, seconds are neither; and one worker always has b_max. The exponent g_i is 1 at
first; it is halved, down to 1/8, where a size would go back, and grows by half where it goes on, so
that it averages noise and still follows a change. ``sign`` is what the authors' published code does
(https://github.com/YMA33/HeteroGPU, ``GPUGDScheduler.cu``; a part of their system): there steps are
of b_min rows, and a size that has reached a bound stays. The study that chose the default:
docs/decisions/strategies.md.

A worker without an update since the last merge keeps its size. Pools are compared with the
replicas: one that cannot keep up would drive these to their upper bounds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

GROWTH, SHRINKING, LEAST_GAIN = 1.5, 0.5, 1 / 8


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
    gain
        ``g_i`` of its last step, with the sign of that step; 0: there was none.
    """

    size: float
    low: float = 1.0
    high: float = math.inf
    updates: float = 0.0
    busy_s: float = 0.0
    is_pool: bool = False
    gain: float = 0.0

    def sized(self, size: float) -> Pace:
        """Return it with another size, within its bounds."""
        return replace(self, size=min(max(size, self.low), self.high))


Paces = Mapping[str, Pace]


def _compared(paces: Paces) -> Collection[Pace]:
    """Return those that set the pace: replicas, or pools where there is nothing else."""
    return [pace for pace in paces.values() if not pace.is_pool] or paces.values()


def by_speed(paces: Paces) -> dict[str, Pace]:
    """Make all workers take the same time for a batch; one of them has its upper bound.

    Examples
    --------
    >>> fast = Pace(size=64.0, high=64, updates=50, busy_s=50.0)
    >>> sized = by_speed({"a": fast, "b": replace(fast, busy_s=100.0)})
    >>> {name: round(pace.size, 6) for name, pace in sized.items()}
    {'a': 64.0, 'b': 32.0}
    """
    timed = {n: p for n, p in paces.items() if p.updates and p.busy_s}
    if not timed:
        return dict(paces)
    times = {name: math.log(pace.busy_s / pace.updates) for name, pace in timed.items()}
    mean = _mean([math.log(pace.busy_s / pace.updates) for pace in _compared(timed)])
    moved = {name: _moved(pace, mean - times[name]) for name, pace in timed.items()}
    reference = _compared(moved)
    factor = 1.0
    if not any(pace.is_pool for pace in reference):
        factor = min(pace.high for pace in reference) / max(pace.size for pace in reference)
    return {**paces, **{name: pace.sized(pace.size * factor) for name, pace in moved.items()}}


def _moved(pace: Pace, change: float) -> Pace:
    """Return a worker whose size's logarithm has made a part of a change, before bounds."""
    gain = abs(pace.gain) or 1.0
    if change * pace.gain > 0.0:
        gain = min(1.0, gain * GROWTH)
    elif change * pace.gain < 0.0:
        gain = max(LEAST_GAIN, gain * SHRINKING)
    kept = math.copysign(gain, change or pace.gain or 1.0)
    return replace(pace, size=pace.size * math.exp(gain * change), gain=kept)


def by_sign(paces: Paces, beta: float) -> dict[str, Pace]:
    """Step by ``beta`` rows, or half a worker's lower bound, towards the mean of the updates.

    Examples
    --------
    >>> pace = Pace(size=32.0, low=8, high=64, updates=8)
    >>> sized = by_sign({"a": pace, "b": replace(pace, updates=2)}, 4.0)
    >>> {name: pace.size for name, pace in sized.items()}
    {'a': 36.0, 'b': 28.0}
    """
    mean = _mean([pace.updates for pace in _compared(paces)])
    steps = {name: beta or pace.low / 2.0 for name, pace in paces.items()}
    signs = {n: (p.updates > mean) - (p.updates < mean) for n, p in paces.items()}
    return {name: pace.sized(pace.size + signs[name] * steps[name]) for name, pace in paces.items()}


def as_printed(paces: Paces, beta: float) -> dict[str, Pace]:
    """Algorithm 1, with ``beta`` or half of a worker's lower bound.

    Examples
    --------
    >>> pace = Pace(size=32.0, low=8, high=64, updates=6)
    >>> sized = as_printed({"a": pace, "b": replace(pace, updates=2)}, 4.0)
    >>> {name: pace.size for name, pace in sized.items()}
    {'a': 40.0, 'b': 24.0}
    """
    mean = _mean([pace.updates for pace in _compared(paces)])
    if not any(pace.updates for pace in paces.values()):
        return dict(paces)
    moved = {n: p.size + (beta or p.low / 2.0) * (p.updates - mean) for n, p in paces.items()}
    return {
        name: replace(pace, size=moved[name]) if pace.low <= moved[name] <= pace.high else pace
        for name, pace in paces.items()
    }


def _mean(values: Collection[float]) -> float:
    return sum(values) / max(1, len(values))
