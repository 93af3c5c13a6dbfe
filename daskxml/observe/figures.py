"""All charts of runs: of the dashboard's page, of reports, and in notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from daskxml.observe.chart import Chart, Points, Series, bars, thin
from daskxml.observe.course import OF_WORKERS, Course, Point
from daskxml.observe.run_view import by_frequency, phases
from daskxml.observe.stored_runs import StoredRun
from daskxml.observe.wording import compact

TIME, MEGABATCHES = "training and merging, s", "mega-batches"
MOST_LINES = 12  # of workers in a report; more become a band with its median
_MOST_MARKS, _MOST_BARS = 80, 24
Value = Callable[[Point], float]
_AXES: tuple[tuple[str, str, str, Value], ...] = (
    ("time", "time", TIME, lambda point: point.until_s),
    ("megabatches", MEGABATCHES, MEGABATCHES, lambda point: float(point.megabatch)),
)
Floats = NDArray[np.float64]


def learning_charts(
    runs: Sequence[Course],
    metrics: Sequence[str],
    level: float | None = None,
    behind: Sequence[Course] = (),
) -> list[Chart]:
    """Return metrics and loss, each against time and against mega-batches.

    Parameters
    ----------
    runs, metrics
        One run with any metrics, or runs with one metric; a run without values keeps its colour.
    level
        Of the metric, which is marked.
    behind
        Other runs, in the background.
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
            behind=tuple(Series(name=r.name, points=_metric(r, x, metrics[0])) for r in behind),
        )
        for axis, against, x_label, x in _AXES
    ]  # fmt: skip
    losses = [
        Chart(
            name=f"loss_{axis}", title="Loss", against=against, x_label=x_label,
            y_label="mean loss of the mega-batch's rows", series=_each(runs, x, _loss),
            behind=_each(behind, x, _loss),
        )
        for axis, against, x_label, x in _AXES
    ]  # fmt: skip
    return [*scores, *losses]


def _loss(point: Point) -> float:
    return point.loss


def _metric(run: Course, x: Value, name: str) -> Points:
    return _points(run.evaluated, x, lambda point: point.metrics.get(name, np.nan))


def _each(runs: Sequence[Course], x: Value, y: Value) -> tuple[Series, ...]:
    return tuple(Series(name=run.name, points=_points(run.points, x, y)) for run in runs)


def _points(points: Iterable[Point], x: Value, y: Value) -> Points:
    found = ((x(point), float(y(point))) for point in points)
    return tuple(pair for pair in found if np.isfinite(pair[1]))


def busy_chart(runs: Sequence[Course]) -> Chart:
    """Return how busy the workers of every run were, mega-batch by mega-batch."""
    label = "busy share of the mean worker in training, %"
    return _by_megabatch(runs, "utilisation", "Utilisation", label, lambda p: p.busy_percent)


def sent_chart(runs: Sequence[Course]) -> Chart:
    """Return what all workers of every run have sent in every mega-batch."""
    title = "Sent by all in a mega-batch"
    return _by_megabatch(runs, "sent_mib", title, "MiB", lambda p: p.sent_mib)


def _by_megabatch(runs: Sequence[Course], name: str, title: str, y_label: str, y: Value) -> Chart:
    return Chart(
        name=name, title=title, x_label=MEGABATCHES, y_label=y_label, from_zero=True,
        series=_each(runs, _AXES[1][-1], y),
    )  # fmt: skip


# ---------------------------------------------------------------------------- workers


def worker_charts(run: Course, workers: Sequence[str], most_lines: int = MOST_LINES) -> list[Chart]:
    """Return a chart for each of `OF_WORKERS`, with a line for each worker.

    The median in the band of all is drawn where they are more than ``most_lines``. Merges with
    perturbed weights are marked at the heaviest worker.
    """
    points = list(run.points)
    values = _by_worker(points, workers, len(OF_WORKERS))
    xs = [float(point.megabatch) for point in points]
    perturbed = [number for number, point in enumerate(points) if point.perturbed]
    perturbed = perturbed[:: max(1, -(-len(perturbed) // _MOST_MARKS))] if workers else []
    return [
        Chart(
            name=name, title=title, x_label=MEGABATCHES, y_label=y_label, from_zero=True,
            series=_lines(workers, xs, of_workers, perturbed if name == "weight" else (),
                          most_lines),
            mark_meaning="weights perturbed" if name == "weight" else "",
        )
        for (name, (title, y_label, _)), of_workers in zip(OF_WORKERS.items(), values, strict=True)
    ]  # fmt: skip


class _OfWorkers(Protocol):
    @property
    def workers(self) -> tuple[str, ...]: ...
    @property
    def values(self) -> Floats: ...


def _by_worker(points: Sequence[_OfWorkers], workers: Sequence[str], count: int) -> Floats:
    """Return ``(count, workers, points)`` values, NaN where a worker took no part."""
    found = np.full((count, len(workers), len(points)), np.nan)
    places = {name: place for place, name in enumerate(workers)}
    for number, point in enumerate(points):
        rows = [row for row, name in enumerate(point.workers) if name in places]
        columns = [places[point.workers[row]] for row in rows]
        found[:, columns, number] = point.values[rows].T
    return found


def _lines(
    workers: Sequence[str],
    xs: Sequence[float],
    values: Floats,
    marked: Sequence[int],
    most_lines: int,
) -> tuple[Series, ...]:
    """Return the lines of ``(workers, points)`` values, marked at the highest of some points."""
    heaviest = np.nan_to_num(values[:, marked]).argmax(axis=0) if marked else []
    marks = [(place, (xs[i], float(values[place, i])))
             for place, i in zip(heaviest, marked, strict=True)]  # fmt: skip
    if len(workers) > most_lines:
        return (_median(len(workers), xs, values, tuple(mark for _, mark in marks)),)
    return tuple(
        Series(
            name=f"worker {name}",
            points=tuple(zip(xs, values[place].tolist(), strict=True)),
            marked=tuple(mark for at, mark in marks if at == place),
        )
        for place, name in enumerate(workers)
    )


def _median(count: int, xs: Sequence[float], values: Floats, marked: Points) -> Series:
    is_known = np.isfinite(values).any(axis=0)
    known = values[:, is_known]
    median = np.nanmedian(known, axis=0).tolist() if is_known.any() else []
    places = np.asarray(xs)[is_known].tolist()
    edges = {x: (float(np.nanmin(column)), float(np.nanmax(column)))
             for x, column in zip(places, known.T, strict=True)}  # fmt: skip
    points = thin(list(zip(places, median, strict=True)))
    name = f"median and range of {count} workers"
    return Series(name=name, points=points, band=tuple(edges[x] for x, _ in points), marked=marked)


class MemorySample(NamedTuple):
    """What a run's workers use at one moment.

    ``values`` is ``(workers, 3)`` float64: bytes in use on the host and on GPUs, NaN where unknown,
    and bytes sent to others since the start of the run.
    """

    at_s: float
    workers: tuple[str, ...]
    values: Floats


def memory_charts(
    samples: Sequence[MemorySample], workers: Sequence[str], begun_s: float
) -> list[Chart]:
    """Return each worker's memory and traffic against the time since ``begun_s``."""
    xs = [sample.at_s - begun_s for sample in samples]
    host, device, sent = _by_worker(samples, workers, 3) / 2**20
    rates = np.full_like(sent, np.nan)
    rates[:, 1:] = np.diff(sent, axis=1) / np.maximum(np.diff(xs), 1e-9)
    return [
        Chart(
            name=name, title=title, x_label="seconds since the start", y_label=unit,
            series=_lines(workers, xs, values, (), len(workers)), from_zero=True,
        )
        for name, title, unit, values in (
            ("host_mib", "Memory", "MiB", host),
            ("device_mib", "Memory on GPUs", "MiB", device),
            ("sent_mib_per_s", "Sent to others", "MiB/s", rates),
        )
    ]  # fmt: skip


# ---------------------------------------------------------------------------- reports


def comparison(runs: Sequence[StoredRun], metric: str, level: float | None) -> list[Chart]:
    """Return the charts that show all runs over each other; ``level`` of the metric is marked."""
    courses = [run.course for run in runs]
    learning = learning_charts(courses, [metric], level)
    return [*learning, phases_chart(runs), busy_chart(courses), *frequency_charts(runs)]


def phases_chart(runs: Sequence[StoredRun]) -> Chart:
    """Return where the time of every run went."""
    return Chart(
        name="phases",
        title="Time by phase",
        x_label="seconds; computing and waiting are the mean worker's",
        bars=bars({run.name: phases(run.history) for run in runs if run.history}),
    )


def frequency_charts(runs: Sequence[StoredRun]) -> list[Chart]:
    """Return how good the ranking is for rare and for frequent labels."""
    groups = {run.name: by_frequency(run.history) for run in runs}
    found = [group for of_run in groups.values() for group in of_run]
    leasts = sorted({group["least_training_rows"] for group in found})
    ks = " or ".join(str(k) for k in sorted({group["k"] for group in found}))
    return [
        Chart(
            name=f"frequency_{key}",
            title=f"{title} by label frequency",
            x_label="training rows of the label: at least",
            y_label=f"{of_what}, at the first {ks}",
            series=tuple(
                Series(name=name, points=tuple(
                    (float(leasts.index(group["least_training_rows"])), group[key])
                    for group in of_run
                    if group[key] is not None
                ))
                for name, of_run in groups.items()
            ),
            from_zero=True,
            x_names=tuple(map(compact, leasts)),
        )
        for key, title, of_what in (
            ("precision", "P", "share of the ranked labels that are true"),
            ("recall", "Recall", "share of the true labels that are ranked"),
        )
        if found
    ]  # fmt: skip


def worker_time_chart(run: StoredRun) -> Chart:
    """Return how long every worker computed and waited while the others trained."""
    totals = {
        f"worker {name}": {
            part: sum(
                row["workers"][name].get(f"{key}_s", 0.0)
                for row in run.history
                if name in row["workers"]
            )
            for part, key in (("computing", "busy"), ("waiting", "idle"))
        }
        for name in run.workers[:_MOST_BARS]
    }
    of_all = f", the first {_MOST_BARS} of {len(run.workers)}"
    return Chart(
        name="worker_time",
        title="Workers' time in training" + of_all * (len(run.workers) > _MOST_BARS),
        x_label="seconds",
        bars=totals or None,
    )
