"""The charts of a report, from the histories of its runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from daskxml.observe.chart import Chart, Points, Series, bars, thin
from daskxml.observe.report.runs import StoredRun
from daskxml.observe.run_view import (
    Row,
    Worker,
    by_frequency,
    computed_rows_per_s,
    elapsed,
    mean_busy_s,
    phases,
)
from daskxml.observe.wording import compact

TIME = "training and merging, s"
MEGABATCHES = "mega-batches"
MOST_LINES = 12  # of workers; more become a band with its median
_MOST_MARKS, _MOST_BARS = 80, 24


def comparison(runs: Sequence[StoredRun], metric: str, level: float | None) -> list[Chart]:
    """Return the charts that show all runs over each other; ``level`` of the metric is marked."""
    charts = []
    for quantity, y_label, value, target in (
        (metric, metric, lambda row: row["metrics"].get(metric), level),
        ("Loss", "mean loss of the mega-batch's rows", _loss, None),
    ):
        for axis, x_label, places in (
            ("time", TIME, lambda run: elapsed(run.history)),
            ("mega-batches", MEGABATCHES, _megabatches),
        ):
            charts.append(
                Chart(
                    name=f"{'loss' if quantity == 'Loss' else 'metric'}_{axis.replace('-', '')}",
                    title=f"{quantity} against {axis}",
                    x_label=x_label,
                    y_label=y_label,
                    series=_run_series(runs, places, value),
                    target=target,
                    target_name=f"{metric} of {target:.4g}" if target is not None else "",
                )
            )
    return [*charts, phases_chart(runs), busy_chart(runs), *frequency_charts(runs)]


def _loss(row: Row) -> float | None:
    """Return the mean loss; None for label trees, which have none."""
    return row.get("loss")


def _megabatches(run: StoredRun) -> list[float]:
    return [float(row["megabatch"]) for row in run.history]


def _run_series(
    runs: Sequence[StoredRun],
    places: Callable[[StoredRun], list[float]],
    value: Callable[[Row], float | None],
) -> tuple[Series, ...]:
    """Return a series for every run; a run without values keeps its place, and so its colour."""
    found = []
    for run in runs:
        pairs = zip(places(run), map(value, run.history), strict=True)
        points = thin([(x, y) for x, y in pairs if y is not None])
        found.append(Series(name=run.name, points=points))
    return tuple(found)


def phases_chart(runs: Sequence[StoredRun]) -> Chart:
    """Return where the time of every run went."""
    return Chart(
        name="phases",
        title="Time by phase",
        x_label="seconds; computing and waiting are the mean worker's",
        bars=bars({run.name: phases(run.history) for run in runs if run.history}),
    )


def busy_chart(runs: Sequence[StoredRun]) -> Chart:
    """Return how busy the workers of every run were, mega-batch by mega-batch."""
    return Chart(
        name="utilisation",
        title="Utilisation",
        x_label=MEGABATCHES,
        y_label="busy share of the mean worker in training, %",
        series=_run_series(runs, _megabatches, _busy_percent),
        from_zero=True,
    )


def _busy_percent(row: Row) -> float | None:
    return 100.0 * mean_busy_s(row) / row["train_s"] if row["train_s"] and row["workers"] else None


def frequency_charts(runs: Sequence[StoredRun]) -> list[Chart]:
    """Return how good the ranking is for rare and for frequent labels."""
    groups = [group for run in runs for group in by_frequency(run.history)]
    if not groups:
        return []
    leasts = sorted({group.least for group in groups})
    ks = " or ".join(str(k) for k in sorted({group.k for group in groups}))
    return [
        Chart(
            name=f"frequency_{name.lower()}",
            title=f"{name} by label frequency",
            x_label="training rows of the label: at least",
            y_label=f"{of_what}, at the first {ks}",
            series=tuple(
                Series(name=run.name, points=_frequency_points(run, name, leasts)) for run in runs
            ),
            from_zero=True,
            x_names=tuple(map(compact, leasts)),
        )
        for name, of_what in (
            ("P", "share of the ranked labels that are true"),
            ("Recall", "share of the true labels that are ranked"),
        )
    ]


def _frequency_points(run: StoredRun, name: str, leasts: Sequence[int]) -> Points:
    shares = ((group, group.precision if name == "P" else group.recall)
              for group in by_frequency(run.history))  # fmt: skip
    return tuple((float(leasts.index(group.least)), y) for group, y in shares if y is not None)


# ------------------------------------------------------------------- one run's workers


def worker_charts(run: StoredRun, number: int) -> list[Chart]:
    """Return the charts of one run's workers; ``number`` makes the names of their files."""
    marked = _heaviest_where_perturbed(run)
    charts = [
        Chart(
            name=f"run{number}_{name}",
            title=title,
            x_label=MEGABATCHES,
            y_label=label,
            series=_worker_series(run, value, marked if name == "weights" else {}),
            from_zero=True,
            mark_meaning="weights perturbed" if name == "weights" else "",
        )
        for name, title, label, value in _WORKER_CHARTS
    ]
    return [*charts, _worker_time(run, number)]


def _key(name: str) -> Callable[[Worker], float | None]:
    return lambda worker: worker.get(name)


_WORKER_CHARTS: tuple[tuple[str, str, str, Callable[[Worker], float | None]], ...] = (
    ("batch_rows", "Batch size", "rows of a batch", _key("batch_rows")),
    ("weights", "Merge weight", "share of the merged model", _key("weight")),
    ("updates", "Updates", "steps in the mega-batch", _key("updates")),
    ("lr", "Learning rate", "before the schedule", _key("lr")),
    ("rows_per_s", "Throughput", "rows a second while computing", computed_rows_per_s),
)


def _worker_series(
    run: StoredRun, value: Callable[[Worker], float | None], marked: Mapping[str, Points]
) -> tuple[Series, ...]:
    """Return a series for every worker; where they are many, their median in the band of all."""
    points = {name: _points(run, name, value) for name in run.workers}
    if len(points) > MOST_LINES:
        marks = sorted(point for found in marked.values() for point in found)
        return (_median(points, tuple(marks)),)
    return tuple(
        Series(name=f"worker {name}", points=thin(found), marked=marked.get(name, ()))
        for name, found in points.items()
    )


def _heaviest_where_perturbed(run: StoredRun) -> dict[str, Points]:
    """Return the heaviest worker's weight where weights were perturbed, by worker.

    Of many mega-batches some are taken, evenly, no more than can be distinguished.
    """
    rows = [row for row in run.history if row.get("perturbed") and row["workers"]]
    marked: dict[str, Points] = {}
    for row in rows[:: max(1, -(-len(rows) // _MOST_MARKS))]:
        weights = {name: worker.get("weight", 0.0) for name, worker in row["workers"].items()}
        name = max(weights, key=lambda name: weights[name])
        marked[name] = (*marked.get(name, ()), (float(row["megabatch"]), weights[name]))
    return marked


def _points(run: StoredRun, name: str, value: Callable[[Worker], float | None]) -> Points:
    found = (
        (float(row["megabatch"]), value(row["workers"][name]))
        for row in run.history
        if name in row["workers"]
    )
    return tuple((x, float(y)) for x, y in found if y is not None)


def _median(series: Mapping[str, Points], marked: Points) -> Series:
    by_megabatch: dict[float, list[float]] = {}
    for points in series.values():
        for x, y in points:
            by_megabatch.setdefault(x, []).append(y)
    points = thin([(x, statistics.median(ys)) for x, ys in sorted(by_megabatch.items())])
    band = tuple((min(by_megabatch[x]), max(by_megabatch[x])) for x, _ in points)
    name = f"median and range of {len(series)} workers"
    return Series(name=name, points=points, band=band, marked=marked)


def _worker_time(run: StoredRun, number: int) -> Chart:
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
        name=f"run{number}_worker_time",
        title="Workers' time in training" + of_all * (len(run.workers) > _MOST_BARS),
        x_label="seconds",
        bars=totals or None,
    )
