"""What changed between two benches by more than chance.

The values of a line of the table, over its seeds, scatter around their mean. The scatter of all
lines of one quantity (on one executor, or of one script), before and now, is pooled into a standard
deviation s with d degrees of freedom: of differences of logarithms for times, rates and bytes, for
noise is a share of the value there, and of plain differences for metrics, which are shares already.
With m comparisons in the table a line is worse if the difference of its means exceeds

    t(1 - 0.05 / m; d) * s * sqrt(1 / n_before + 1 / n_now)

so that about one table in twenty calls anything worse that is not. A line that scatters more than
the pool has its own deviation in the place of s. Besides, the difference must exceed `FLOOR`,
because two benches on one machine differ by more than the seeds of one (heat, neighbours, where
memory lies), and the median must lie outside the range of before. Where no line has two values the
noise is not known: differences beyond `BLIND` are told, and the table says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.special import stdtrit

from daskxml.bench.summary import Center, Names, Values, center

Scale = Literal["share", "ratio"]
FALSE_ALARMS = 0.05  # of a whole table, in each direction
FLOOR: dict[Scale, float] = {"share": 0.002, "ratio": 0.03}
BLIND: dict[Scale, float] = {"share": 0.02, "ratio": 0.15}


@dataclass(frozen=True, kw_only=True)
class Judged:
    """How a quantity is judged.

    Attributes
    ----------
    larger_is_better
        Or smaller.
    scale
        ``share``: differences count as they are; ``ratio``: in proportion to the value.
    by_clock
        It says nothing on another machine.
    """

    larger_is_better: bool
    scale: Scale
    by_clock: bool


@dataclass(frozen=True, kw_only=True)
class Noise:
    """A pooled standard deviation, and its degrees of freedom; with 0 of them it is not known."""

    deviation: float
    degrees: int


@dataclass(frozen=True, kw_only=True)
class Change:
    """One quantity of one line, before and now.

    Attributes
    ----------
    difference
        Of the means, now less before: as a share of before for a ratio.
    threshold
        What a difference must exceed, in the same unit.
    verdict
        ``worse``, ``better``, or ``same``: not more than chance.
    is_ratio
        Difference and threshold are shares of the value before.
    is_blind
        The noise is not known.
    """

    names: Names
    quantity: str
    before: Center
    now: Center
    difference: float
    threshold: float
    verdict: Literal["worse", "better", "same"]
    is_ratio: bool
    is_blind: bool


def judged(quantity: str, executor: str) -> Judged | None:
    """Return how a figure of a run is judged, None for one that is only told.

    Examples
    --------
    >>> judged("P@1", "cluster")
    Judged(larger_is_better=True, scale='share', by_clock=False)
    >>> judged("train s", "simulate").by_clock, judged("train s", "cluster").by_clock
    (False, True)
    """
    is_real = executor == "cluster"
    if quantity.startswith("s to ") or quantity in ("train s", "in all s"):
        return Judged(larger_is_better=False, scale="ratio", by_clock=is_real)
    if quantity == "rows/s":
        return Judged(larger_is_better=True, scale="ratio", by_clock=is_real)
    if quantity in ("training loss", "lowest loss", "memory MiB"):
        return Judged(larger_is_better=False, scale="ratio", by_clock=False)
    if "@" in quantity:
        return Judged(larger_is_better=True, scale="share", by_clock=False)
    return None


def pooled_noise(groups: Iterable[Sequence[float]]) -> Noise:
    """Pool the scatter of groups of values around the mean of each.

    Examples
    --------
    >>> pooled_noise([[1.0, 3.0], [10.0, 10.0], [7.0]])
    Noise(deviation=1.0, degrees=2)
    """
    squares, degrees = 0.0, 0
    for values in groups:
        mean = sum(values) / len(values)
        squares += sum((value - mean) ** 2 for value in values)
        degrees += len(values) - 1
    return Noise(deviation=math.sqrt(squares / degrees) if degrees else 0.0, degrees=degrees)


def threshold(before: int, now: int, noise: Noise, scale: Scale, comparisons: int) -> float:
    """Return the difference of means that chance alone hardly exceeds.

    Parameters
    ----------
    before, now
        How many values there are.
    noise
        Of the differences.
    comparisons
        In the whole table.

    Examples
    --------
    >>> noise = Noise(deviation=0.01, degrees=8)
    >>> round(threshold(3, 3, noise, "share", comparisons=1), 4)
    0.0152
    >>> threshold(1, 1, Noise(deviation=0.0, degrees=0), "ratio", comparisons=1)
    0.15
    """
    if not noise.degrees:
        return BLIND[scale]
    quantile = float(stdtrit(noise.degrees, 1.0 - FALSE_ALARMS / max(1, comparisons)))
    spread = noise.deviation * math.sqrt(1 / before + 1 / now)
    return max(FLOOR[scale], quantile * spread)


def compare(
    before: Values, now: Values, judge: Callable[[Names, str], Judged | None]
) -> list[Change]:
    """Compare every quantity that both have and that is judged.

    Parameters
    ----------
    judge
        Tells of a line and a quantity how it is judged.

    Examples
    --------
    >>> line = ("a", "demo", "2", "cluster")
    >>> slower = compare({line: {"train s": [10.0, 10.1, 9.9]}}, {line: {"train s": [12.0, 12.1]}},
    ...                  lambda names, quantity: judged(quantity, names[-1]))
    >>> [(change.verdict, round(change.difference, 2)) for change in slower]
    [('worse', 0.21)]
    """
    found = {
        (names, quantity): how
        for names, line in now.items()
        for quantity in line
        if quantity in before.get(names, {}) and (how := judge(names, quantity)) is not None
    }
    pools: dict[tuple[str, str], list[Sequence[float]]] = {}
    for (names, quantity), how in found.items():
        pools.setdefault(_pool(names, quantity), []).extend(
            _scaled(values[names][quantity], how.scale) for values in (before, now)
        )
    noises = {pool: pooled_noise(groups) for pool, groups in pools.items()}
    return [
        _change(names, quantity, before, now, how, noises[_pool(names, quantity)], len(found))
        for (names, quantity), how in found.items()
    ]


def _pool(names: Names, quantity: str) -> tuple[str, str]:
    """Return what has its noise in common: an executor's runs, or a script's rows."""
    return (names[-1] if len(names) == 4 else names[0], quantity)


def _scaled(values: Sequence[float], scale: Scale) -> list[float]:
    if scale == "share":
        return list(values)
    return [math.log(max(value, 1e-12)) for value in values]


def _change(
    names: Names,
    quantity: str,
    before: Values,
    now: Values,
    how: Judged,
    noise: Noise,
    comparisons: int,
) -> Change:
    old, new = before[names][quantity], now[names][quantity]
    old_scaled, new_scaled = _scaled(old, how.scale), _scaled(new, how.scale)
    own = pooled_noise([old_scaled, new_scaled])
    wider = Noise(deviation=max(noise.deviation, own.deviation), degrees=noise.degrees)
    limit = threshold(len(old), len(new), wider, how.scale, comparisons)
    difference = sum(new_scaled) / len(new) - sum(old_scaled) / len(old)
    was, is_ = center(old), center(new)
    is_beyond = abs(difference) > limit and not was.least <= is_.median <= was.greatest
    is_gain = (difference > 0) == how.larger_is_better
    return Change(
        names=names,
        quantity=quantity,
        before=was,
        now=is_,
        difference=difference if how.scale == "share" else math.expm1(difference),
        threshold=limit if how.scale == "share" else math.expm1(limit),
        verdict="same" if not is_beyond else "better" if is_gain else "worse",
        is_ratio=how.scale == "ratio",
        is_blind=not noise.degrees,
    )
