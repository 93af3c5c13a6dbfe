"""What a chart shows: lines over an axis, or bars made of parts; and their colours.

Colours are those of Okabe and Ito (2008), which the colour-blind can distinguish; from the seventh
series on dashes distinguish them too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from daskxml.observe.wording import rounded

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ("none", "7 3", "2 3", "9 3 2 3")
MOST_POINTS = 600  # of a series: more than a chart has pixels to distinguish
_NAMED = 4  # series whose values are told one by one
_TINY = 1e-300  # steps of smaller ranges would be 0
Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True)
class Series:
    """A named line.

    Attributes
    ----------
    name
        What the legend calls it.
    points
        Pairs of x and y, x rising; NaN interrupts the line, or is left out where many are `thin`.
    marked
        Those of the points that get a mark, which ``mark_meaning`` explains in the legend.
    band
        Lower and upper edge at every point, where the line stands for many; or empty.
    """

    name: str
    points: Points
    marked: Points = ()
    band: tuple[tuple[float, float], ...] = ()

    @property
    def finite(self) -> Points:
        """The points that can be drawn."""
        return tuple(point for point in self.points if math.isfinite(point[1]))


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Lines over common axes, or stacked bars.

    Attributes
    ----------
    name
        Unique among the charts of a page.
    title, against
        What is shown, and what against, where that is not always mega-batches.
    x_label, y_label
        The quantities of the axes, with their units.
    series
        Drawn in this order, each in its own colour and dash; empty where there are bars.
    behind
        Series of other runs, drawn in grey; only where a page is live.
    bars
        By the name of the bar, its parts by their names; every bar has the same names.
    target, target_name
        A level that gets a line of its own, or None; its name in the legend.
    from_zero
        The vertical axis begins at 0.
    mark_meaning
        What marked points are.
    x_names
        Names of x = 0, 1, 2, ..., which are shown in their place; or empty.
    """

    name: str
    title: str
    x_label: str
    y_label: str = ""
    against: str = ""
    series: tuple[Series, ...] = ()
    behind: tuple[Series, ...] = ()
    bars: Mapping[str, Mapping[str, float]] | None = None
    target: float | None = None
    target_name: str = "target"
    from_zero: bool = False
    mark_meaning: str = ""
    x_names: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        """The title, with what is shown against."""
        return f"{self.title} against {self.against}" if self.against else self.title

    @property
    def caption(self) -> str:
        """The title with its unit, for drawings without a label at the vertical axis."""
        return self.heading if self.against or not self.y_label else f"{self.title}, {self.y_label}"

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(line.finite for line in self.series) and not self.bars

    @property
    def numbers(self) -> str | None:
        """The values of lines that never change, which need no axes; None if there is more to see.

        Where all of them are 0, or there is none, there is nothing to say: ``""``.

        Examples
        --------
        >>> lines = [Series(name=n, points=((0.0, y), (1.0, y))) for n, y in (("a", 64), ("b", 32))]
        >>> [Chart(name="c", title="", x_label="", series=tuple(lines[:n])).numbers for n in (1, 2)]
        ['64', '64 (a), 32 (b)']
        """
        has_more = self.bars or self.x_names or self.target is not None
        if has_more or any(line.band for line in self.series):
            return None
        values = {line.name: {y for _, y in line.finite} for line in self.series}
        if any(len(found) > 1 for found in values.values()):
            return None
        known = [(found.pop(), name) for name, found in values.items() if found]
        numbers = sorted({value for value, _ in known})
        if not any(numbers):
            return ""
        if len(numbers) == 1:
            return rounded(numbers[0])
        if len(known) <= _NAMED:
            return ", ".join(f"{rounded(value)} ({name})" for value, name in known)
        return f"{rounded(numbers[0])} to {rounded(numbers[-1])}"

    @property
    def longest(self) -> float:
        """The greatest sum of a bar's parts."""
        return max((sum(bar.values()) for bar in (self.bars or {}).values()), default=0.0)

    @property
    def needs_legend(self) -> bool:
        """Whether the title does not suffice: it does for one series, unless that has a band.

        Examples
        --------
        >>> series = (Series(name="a", points=()),)
        >>> Chart(name="c", title="", x_label="", series=series).needs_legend
        False
        """
        return len(self.series) > 1 or any(line.band for line in self.series)

    def ranges(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return the least and the greatest x and y of all series; bands and target count.

        Examples
        --------
        >>> Chart(name="c", title="", x_label="", series=(
        ...     Series(name="a", points=((0.0, 1.0), (4.0, 3.0))),)).ranges()
        ((0.0, 4.0), (1.0, 3.0))
        """
        points = [point for line in self.series for point in line.finite]
        ys = [y for _, y in points]
        ys += [edge for line in self.series for pair in line.band for edge in pair]
        ys += [
            level for level in (self.target, 0.0 if self.from_zero else None) if level is not None
        ]
        xs = [x for x, _ in points]
        return (min(xs), max(xs)), (min(ys), max(ys))


def bars(totals: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return bars that all have the parts of any, in the order in which they first come.

    Examples
    --------
    >>> bars({"a": {"x": 1.0}, "b": {"y": 2.0}})
    {'a': {'x': 1.0, 'y': 0.0}, 'b': {'x': 0.0, 'y': 2.0}}
    """
    parts = list(dict.fromkeys(part for bar in totals.values() for part in bar))
    return {name: {part: bar.get(part, 0.0) for part in parts} for name, bar in totals.items()}


def thin(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> Points:
    """Return at most ``most`` points that draw the same: of each stretch its ends and extremes.

    Parameters
    ----------
    points
        Pairs of x and y; those that are no finite numbers are left out.
    most
        At least 8.

    Examples
    --------
    >>> thin([(0.0, 1.0), (1.0, float("nan")), (2.0, 3.0)])
    ((0.0, 1.0), (2.0, 3.0))
    >>> len(thin([(float(x), x % 7.0) for x in range(10_000)])) <= MOST_POINTS
    True
    """
    finite = [point for point in points if math.isfinite(point[0]) and math.isfinite(point[1])]
    if len(finite) <= most:
        return tuple(finite)
    stretches = most // 4
    edges = [len(finite) * i // stretches for i in range(stretches + 1)]
    kept: list[tuple[float, float]] = []
    for start, stop in itertools.pairwise(edges):
        places = range(start, stop)
        low = min(places, key=lambda i: finite[i][1])
        high = max(places, key=lambda i: finite[i][1])
        kept += [finite[i] for i in sorted({start, low, high, stop - 1})]
    return tuple(kept)


def shorten(name: str, longest: int) -> str:
    """Return a name with its middle left out where it is too long.

    Examples
    --------
    >>> shorten("tcp://10.0.0.1:40001", 9)
    'tcp:…0001'
    """
    if len(name) <= longest:
        return name
    half = (longest - 1) // 2
    return f"{name[: longest - 1 - half]}…{name[-half:]}"


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round values that span ``low`` to ``high``: 1, 2 or 5 times a power of ten apart.

    Examples
    --------
    >>> ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> ticks(3.0, 3.0)
    [2.5, 3.0, 3.5]
    """
    if not high - low > _TINY:
        pad = abs(low) / 6 if abs(low) > _TINY else 1.0
        low, high = low - pad, high + pad
        about = 2
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * size for size in (1, 2, 5, 10) if power * size >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = max(0, -math.floor(math.log10(step)))
    return [round(i * step, digits) + 0.0 for i in range(first, last + 1)]
