"""What changed between two benches by more than chance: t-tests with a pooled deviation.

The deviation s of a quantity is pooled over all rows of one executor, or of one script, before and
now, and has d degrees of freedom. Differences of times, rates and bytes are of logarithms, because
their noise is proportional to the value; differences of metrics are plain. With m comparisons in
the table, a row is worse if the difference of its means exceeds

    t(1 - 0.05 / m; d) * s * sqrt(1 / n_before + 1 / n_now)

(Bonferroni), so that about one table in twenty reports a false alarm. Pooling is what makes three
seeds enough: a test of each row by itself (`scipy.stats.ttest_ind`) has four degrees of freedom,
and finds half of the changes that this one does.

Deviations from the plain test: a row that scatters more than the pool has its own deviation in the
place of s. The difference must also exceed `FLOOR`, because two benches on one machine differ by
more than the seeds of one (temperature, other processes, memory layout), and the median must lie
outside the earlier range. If no row has two values the noise is unknown: only differences beyond
`BLIND` are reported, and the table says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from scipy import stats

from daskxml.cli.bench.figures import RowNames, Samples, Summary, summarize

Scale = Literal["share", "ratio"]
FALSE_ALARMS = 0.05  # of a whole table, in each direction
FLOOR: dict[Scale, float] = {"share": 0.002, "ratio": 0.03}
BLIND: dict[Scale, float] = {"share": 0.02, "ratio": 0.15}


@dataclass(frozen=True, kw_only=True)
class MetricSpec:
    """How a quantity is compared.

    Attributes
    ----------
    larger_is_better
        Otherwise smaller is.
    scale
        ``share``: plain differences; ``ratio``: in proportion to the value.
    by_clock
        Whether it depends on the machine.
    """

    larger_is_better: bool
    scale: Scale
    by_clock: bool


class Noise(NamedTuple):
    """A pooled standard deviation and its degrees of freedom; it is unknown if they are 0."""

    deviation: float
    degrees: int


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One quantity of one row, before and now.

    Attributes
    ----------
    difference
        Of the means, now minus before; relative to before for a ratio.
    threshold
        What the difference must exceed, in the same unit.
    verdict
        ``same`` if the difference may be chance.
    is_ratio
        Whether difference and threshold are relative to the value before.
    is_blind
        Whether the noise is unknown.
    """

    names: RowNames
    quantity: str
    before: Summary
    now: Summary
    difference: float
    threshold: float
    verdict: Literal["worse", "better", "same"]
    is_ratio: bool
    is_blind: bool


def metric_spec(quantity: str, executor: str) -> MetricSpec | None:
    """Return how a figure of a run is compared, None if it is not.

    Examples
    --------
    >>> metric_spec("P@1", "cluster")
    MetricSpec(larger_is_better=True, scale='share', by_clock=False)
    >>> metric_spec("train s", "simulate").by_clock, metric_spec("train s", "cluster").by_clock
    (False, True)
    """
    is_real = executor == "cluster"
    if quantity.startswith("s to ") or quantity in ("train s", "in all s"):
        return MetricSpec(larger_is_better=False, scale="ratio", by_clock=is_real)
    if quantity == "rows/s":
        return MetricSpec(larger_is_better=True, scale="ratio", by_clock=is_real)
    if quantity in ("training loss", "lowest loss", "memory MiB"):
        return MetricSpec(larger_is_better=False, scale="ratio", by_clock=False)
    if "@" in quantity:
        return MetricSpec(larger_is_better=True, scale="share", by_clock=False)
    return None


def compare(
    before: Samples, now: Samples, spec_of: Callable[[RowNames, str], MetricSpec | None]
) -> list[Comparison]:
    """Compare every quantity that both tables have and that has a specification.

    Parameters
    ----------
    spec_of
        Returns how a quantity of a row is compared.

    Examples
    --------
    >>> row = ("a", "demo", "2", "cluster")
    >>> slower = compare({row: {"train s": [10.0, 10.1, 9.9]}}, {row: {"train s": [12.0, 12.1]}},
    ...                  lambda names, quantity: metric_spec(quantity, names[-1]))
    >>> [(change.verdict, round(change.difference, 2)) for change in slower]
    [('worse', 0.21)]
    """
    specs = {
        (names, quantity): spec
        for names, row in now.items()
        for quantity in row
        if quantity in before.get(names, {}) and (spec := spec_of(names, quantity)) is not None
    }
    pools: dict[tuple[str, str], list[Sequence[float]]] = {}
    for (names, quantity), spec in specs.items():
        pools.setdefault(_pool(names, quantity), []).extend(
            _scaled(table[names][quantity], spec.scale) for table in (before, now)
        )
    noises = {pool: pooled_noise(groups) for pool, groups in pools.items()}
    return [
        _compare(names, quantity, before, now, spec, noises[_pool(names, quantity)], len(specs))
        for (names, quantity), spec in specs.items()
    ]


def _pool(names: RowNames, quantity: str) -> tuple[str, str]:
    """Return what shares its noise: the runs of an executor, or the rows of a script."""
    return (names[-1] if len(names) == 4 else names[0], quantity)


def _scaled(values: Sequence[float], scale: Scale) -> list[float]:
    if scale == "share":
        return list(values)
    return [math.log(max(value, 1e-12)) for value in values]


def pooled_noise(groups: Iterable[Sequence[float]]) -> Noise:
    """Pool the deviations of groups of values from their means.

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
    return Noise(math.sqrt(squares / degrees) if degrees else 0.0, degrees)


def _compare(
    names: RowNames,
    quantity: str,
    before: Samples,
    now: Samples,
    spec: MetricSpec,
    noise: Noise,
    comparisons: int,
) -> Comparison:
    old, new = before[names][quantity], now[names][quantity]
    old_scaled, new_scaled = _scaled(old, spec.scale), _scaled(new, spec.scale)
    own = pooled_noise([old_scaled, new_scaled])
    wider = Noise(max(noise.deviation, own.deviation), noise.degrees)
    limit = threshold(len(old), len(new), wider, spec.scale, comparisons)
    difference = sum(new_scaled) / len(new) - sum(old_scaled) / len(old)
    was, is_ = summarize(old), summarize(new)
    is_beyond = abs(difference) > limit and not was.least <= is_.median <= was.greatest
    is_gain = (difference > 0) == spec.larger_is_better
    return Comparison(
        names=names,
        quantity=quantity,
        before=was,
        now=is_,
        difference=difference if spec.scale == "share" else math.expm1(difference),
        threshold=limit if spec.scale == "share" else math.expm1(limit),
        verdict="same" if not is_beyond else "better" if is_gain else "worse",
        is_ratio=spec.scale == "ratio",
        is_blind=not noise.degrees,
    )


def threshold(before: int, now: int, noise: Noise, scale: Scale, comparisons: int) -> float:
    """Return the difference of means that chance alone hardly exceeds.

    Parameters
    ----------
    before, now
        Numbers of values.
    noise
        Of single values.
    comparisons
        In the whole table.

    Examples
    --------
    >>> round(threshold(3, 3, Noise(0.01, 8), "share", comparisons=1), 4)
    0.0152
    >>> threshold(1, 1, Noise(0.0, 0), "ratio", comparisons=1)
    0.15
    """
    if not noise.degrees:
        return BLIND[scale]
    quantile = float(stats.t.ppf(1.0 - FALSE_ALARMS / comparisons, noise.degrees))
    return max(FLOOR[scale], quantile * (noise.deviation * math.sqrt(1 / before + 1 / now)))
