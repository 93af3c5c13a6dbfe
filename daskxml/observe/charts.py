"""All charts of runs: of the dashboard's page, of reports, and in notebooks.

A chart is lines over an axis, or bars made of parts. It is drawn live by
`daskxml.observe.dashboard.drawing`, and as part of a page by `daskxml.observe.html`. Colours are
those of Okabe and Ito (2008), which the colour-blind can distinguish; from the seventh series on
dashes distinguish them too.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from daskxml.observe.run_view import OF_WORKERS, Course, Point, phases

if TYPE_CHECKING:
    from daskxml.observe.report import StoredRun

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ("none", "7 3", "2 3", "9 3 2 3")
MOST_POINTS = 600  # of a series: more than a chart has pixels to distinguish
_TINY = 1e-300  # steps of smaller ranges would be 0
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """A named line.

    Attributes
    ----------
    name
        What the legend calls it.
    points
        ``(n, 2)`` float64, x and y, x rising; NaN interrupts the line, or is left out where many
        are `thin`.
    """

    name: str
    points: Floats

    def __post_init__(self) -> None:  # pairs will do, and none
        points = np.asarray(self.points, dtype=np.float64).reshape(-1, 2)
        object.__setattr__(self, "points", points)

    @functools.cached_property
    def finite(self) -> Floats:
        """The points that can be drawn."""
        return self.points[np.isfinite(self.points[:, 1])]


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
    bars
        By the name of the bar, its parts by their names; every bar has the same names.
    target, target_name
        A level that gets a line of its own, or None; its name in the legend.
    from_zero
        The vertical axis begins at 0.
    """

    name: str
    title: str
    x_label: str
    y_label: str = ""
    against: str = ""
    series: tuple[Series, ...] = ()
    bars: Mapping[str, Mapping[str, float]] | None = None
    target: float | None = None
    target_name: str = "target"
    from_zero: bool = False

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
        """Whether there is nothing to draw; zeros alone do not apply to the run."""
        return not self.bars and not any(line.finite[:, 1].any() for line in self.series)

    @property
    def longest(self) -> float:
        """The greatest sum of a bar's parts."""
        return max((sum(bar.values()) for bar in (self.bars or {}).values()), default=0.0)

    def ranges(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return the least and the greatest x and y of all series; the target counts.

        Examples
        --------
        >>> Chart(name="c", title="", x_label="", series=(
        ...     Series(name="a", points=((0.0, 1.0), (4.0, 3.0))),)).ranges()
        ((0.0, 4.0), (1.0, 3.0))
        """
        xs, ys = np.concatenate([line.finite for line in self.series]).T.tolist()
        ys += [
            level for level in (self.target, 0.0 if self.from_zero else None) if level is not None
        ]
        return (min(xs), max(xs)), (min(ys), max(ys))


def thin(points: Floats, most: int = MOST_POINTS) -> Floats:
    """Return at most ``most`` points that draw the same: of each stretch its ends and extremes.

    Parameters
    ----------
    points
        ``(n, 2)``, x and y; those that are no finite numbers are left out.
    most
        At least 8.

    Examples
    --------
    >>> thin(np.array([(0.0, 1.0), (1.0, np.nan), (2.0, 3.0)])).tolist()
    [[0.0, 1.0], [2.0, 3.0]]
    >>> len(thin(np.array([(x, x % 7.0) for x in range(10_000)]))) <= MOST_POINTS
    True
    """
    finite = points[np.isfinite(points).all(axis=1)]
    if len(finite) <= most:
        return finite
    kept: set[int] = set()
    edges = np.linspace(0, len(finite), most // 4 + 1).astype(np.int64).tolist()
    for start, stop in itertools.pairwise(edges):
        ys = finite[start:stop, 1]
        kept |= {start, start + int(ys.argmin()), start + int(ys.argmax()), stop - 1}
    return finite[sorted(kept)]


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


# ------------------------------------------------------------------------ runs over each other


TIME, MEGABATCHES = "training and merging, s", "mega-batches"
MOST_WORKERS = 24  # in the charts of a report
_number = operator.attrgetter("megabatch")
Value = Callable[[Point], float]
_AXES: tuple[tuple[str, str, str, Value], ...] = (
    ("time", "time", TIME, lambda point: point.until_s),
    ("megabatches", MEGABATCHES, MEGABATCHES, _number),
)


def learning_charts(
    runs: Sequence[Course], metrics: Sequence[str], level: float | None = None
) -> list[Chart]:
    """Return metrics and loss, each against time and against mega-batches.

    Parameters
    ----------
    runs, metrics
        One run with any metrics, or runs with one metric; a run without values keeps its colour.
    level
        Of the metric, which is marked.
    """
    target_name = f"{metrics[0]} of {level:.4g}" if level is not None else ""
    label = metrics[0] if len(metrics) == 1 else ""
    scores = [
        Chart(
            name=f"metric_{axis}", title=", ".join(metrics), against=against, x_label=x_label,
            y_label=label, target=level, target_name=target_name,
            series=tuple(
                Series(name=name if len(metrics) > 1 else run.name, points=_metric(run, x, name))
                for run in runs
                for name in metrics
            ),
        )
        for axis, against, x_label, x in _AXES
    ]  # fmt: skip
    losses = [
        Chart(
            name=f"loss_{axis}", title="Loss", against=against, x_label=x_label,
            y_label="mean loss of the mega-batch's rows", series=_each(runs, x, lambda p: p.loss),
        )
        for axis, against, x_label, x in _AXES
    ]  # fmt: skip
    return [*scores, *losses]


def _metric(run: Course, x: Value, name: str) -> Floats:
    return _points(run.evaluated, x, lambda point: point.metrics.get(name, np.nan))


def _each(runs: Sequence[Course], x: Value, y: Value) -> tuple[Series, ...]:
    return tuple(Series(name=run.name, points=_points(run.points, x, y)) for run in runs)


def _points(points: Iterable[Point], x: Value, y: Value) -> Floats:
    return np.array([(x(point), y(point)) for point in points if math.isfinite(y(point))])


def busy_chart(runs: Sequence[Course]) -> Chart:
    """Return how busy the workers of every run were, mega-batch by mega-batch."""
    label = "busy share of the mean worker in training, %"
    lines = _each(runs, _number, lambda point: point.busy_percent)
    return _by_megabatch("utilisation", "Utilisation", label, lines)


def sent_chart(runs: Sequence[Course]) -> Chart:
    """Return what all workers of every run have sent in every mega-batch."""
    lines = _each(runs, _number, lambda point: point.sent_mib)
    return _by_megabatch("sent_mib", "Sent by all in a mega-batch", "MiB", lines)


def _by_megabatch(name: str, title: str, y_label: str, lines: Iterable[Series]) -> Chart:
    return Chart(
        name=name, title=title, x_label=MEGABATCHES, y_label=y_label, from_zero=True,
        series=tuple(lines),
    )  # fmt: skip


# ---------------------------------------------------------------------------- workers


def worker_charts(run: Course, workers: Sequence[str]) -> list[Chart]:
    """Return a chart for each of `OF_WORKERS`, with a line for each worker."""
    xs, absent = [point.megabatch for point in run.points], [None] * len(OF_WORKERS)
    values = np.array(  # (points, workers, len(OF_WORKERS)): NaN where a worker took no part
        [[point.workers.get(worker, absent) for worker in workers] for point in run.points],
        dtype=np.float64,
    ).reshape(len(xs), len(workers), len(OF_WORKERS))
    return [
        _by_megabatch(name, title, y_label, (
            Series(name=f"worker {worker}", points=np.stack([xs, values[:, row, column]], axis=1))
            for row, worker in enumerate(workers)
        ))
        for column, (name, (title, y_label, _)) in enumerate(OF_WORKERS.items())
    ]  # fmt: skip


# ---------------------------------------------------------------------------- reports


def comparison(runs: Sequence[StoredRun], metric: str, level: float | None) -> list[Chart]:
    """Return the charts that show all runs over each other; ``level`` of the metric is marked."""
    courses = [run.course for run in runs]
    return [*learning_charts(courses, [metric], level), phases_chart(runs), busy_chart(courses)]


def phases_chart(runs: Sequence[StoredRun]) -> Chart:
    """Return where the time of every run went."""
    return Chart(
        name="phases",
        title="Time by phase",
        x_label="seconds; computing and waiting are the mean worker's",
        bars={run.name: phases(run.history) for run in runs if run.history},
    )
