"""From histories to charts: what every picture of a report shows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from daskxml.charts import Chart, Line, bars
from daskxml.charts.chart import Points, thin
from daskxml.reports.runs import Row, RunRecord
from daskxml.reports.targets import elapsed

TIME = "training and merging, s"
MEGABATCHES = "mega-batches"
MOST_LINES = 12  # of workers; more become a band with its median
_MOST_MARKS, _MOST_BARS = 80, 24


def comparison(runs: Sequence[RunRecord], metric: str, level: float | None) -> list[Chart]:
    """Return the charts that show all runs over each other; ``level`` of the metric is marked."""
    ways = [("time", TIME, _seconds), ("megabatches", MEGABATCHES, _megabatches)]
    charts = []
    for name, label, place in ways:
        charts.append(
            Chart(
                name=f"metric_{name}",
                title=f"{metric} against {name.replace('megab', 'mega-b')}",
                x_label=label,
                y_label=metric,
                lines=_lines(runs, place, lambda row: row["metrics"].get(metric)),
                target=level,
                target_name=f"{metric} of {level:.4g}" if level is not None else "",
            )
        )
    for name, label, place in ways:
        charts.append(
            Chart(
                name=f"loss_{name}",
                title=f"Loss against {name.replace('megab', 'mega-b')}",
                x_label=label,
                y_label="mean loss of the mega-batch's rows",
                lines=_lines(runs, place, lambda row: row.get("loss")),
            )
        )
    return [*charts, phases_chart(runs), busy_chart(runs)]


def _seconds(run: RunRecord) -> list[float]:
    return elapsed(run.history)


def _megabatches(run: RunRecord) -> list[float]:
    return [float(row["megabatch"]) for row in run.history]


def _lines(
    runs: Sequence[RunRecord],
    place: Callable[[RunRecord], list[float]],
    value: Callable[[Row], float | None],
) -> tuple[Line, ...]:
    """Return a line for every run; a run without values keeps its place, and so its colour."""
    lines = []
    for run in runs:
        pairs = zip(place(run), map(value, run.history), strict=True)
        lines.append(Line(name=run.name, points=thin([(x, y) for x, y in pairs if y is not None])))
    return tuple(lines)


def phases(run: RunRecord) -> dict[str, float]:
    """Return the seconds of a run by what they were spent on.

    ``training`` is the mean worker's computing and ``waiting`` the rest of the training phases;
    ``other`` is between the phases: leases on their way, checkpoints, lost workers.

    Examples
    --------
    >>> row = {"train_s": 3.0, "merge_s": 0.5, "eval_s": 1.0, "wall_s": 5.0,
    ...        "workers": {"a": {"busy_s": 2.0}, "b": {"busy_s": 3.0}}}
    >>> phases(RunRecord(name="r", directory=None, history=(row,)))
    {'computing': 2.5, 'waiting': 0.5, 'merging': 0.5, 'evaluating': 1.0, 'other': 0.5}
    """
    history = run.history
    train_s = sum(row["train_s"] for row in history)
    computed_s = sum(_mean_busy(row) for row in history)
    merge_s = sum(row["merge_s"] for row in history)
    eval_s = sum(row.get("eval_s", 0.0) for row in history)
    wall_s = history[-1].get("wall_s", 0.0) if history else 0.0
    return {
        "computing": computed_s,
        "waiting": max(0.0, train_s - computed_s),
        "merging": merge_s,
        "evaluating": eval_s,
        "other": max(0.0, wall_s - train_s - merge_s - eval_s),
    }


def _mean_busy(row: Row) -> float:
    busy = [worker.get("busy_s", 0.0) for worker in row["workers"].values()]
    return min(sum(busy) / len(busy), row["train_s"]) if busy else 0.0


def phases_chart(runs: Sequence[RunRecord]) -> Chart:
    """Return where the time of every run went."""
    return Chart(
        name="phases",
        title="Time by phase",
        x_label="seconds; computing and waiting are the mean worker's",
        bars=bars({run.name: phases(run) for run in runs if run.history}),
    )


def busy_chart(runs: Sequence[RunRecord]) -> Chart:
    """Return how busy the workers of every run were, mega-batch by mega-batch."""
    return Chart(
        name="utilisation",
        title="Utilisation",
        x_label=MEGABATCHES,
        y_label="busy share of the mean worker in training, %",
        lines=_lines(runs, _megabatches, _busy_percent),
        from_zero=True,
    )


def _busy_percent(row: Row) -> float | None:
    return 100.0 * _mean_busy(row) / row["train_s"] if row["train_s"] and row["workers"] else None


# ------------------------------------------------------------------- one run's workers


def worker_charts(run: RunRecord, number: int) -> list[Chart]:
    """Return the charts of one run's workers; ``number`` makes the names of their files."""
    charts = [
        Chart(
            name=f"run{number}_{name}",
            title=title,
            x_label=MEGABATCHES,
            y_label=label,
            lines=worker_lines(run, value),
            from_zero=True,
            mark_meaning="weights perturbed" if name == "weights" else "",
        )
        for name, title, label, value in _WORKER_CHARTS
    ]
    return [*charts, _worker_time(run, number)]


def _weight(worker: Any) -> float | None:
    return worker.get("weight")


_WORKER_CHARTS: tuple[tuple[str, str, str, Callable[[Any], float | None]], ...] = (
    ("batch_rows", "Batch size", "rows of a batch", lambda worker: worker.get("batch_rows")),
    ("weights", "Merge weight", "share of the merged model", _weight),
    ("updates", "Updates", "steps in the mega-batch", lambda worker: worker.get("updates")),
    ("lr", "Learning rate", "before the schedule", lambda worker: worker.get("lr")),
    (
        "rows_per_s",
        "Throughput",
        "rows a second while computing",
        lambda worker: worker.get("rows", 0) / worker["busy_s"] if worker.get("busy_s") else None,
    ),
)


def worker_lines(run: RunRecord, value: Callable[[Any], float | None]) -> tuple[Line, ...]:
    """Return a line for every worker; where they are many, their median in the band of all."""
    series = {name: _series(run, name, value) for name in run.workers}
    marked = _heaviest_where_perturbed(run) if value is _weight else {}
    if len(series) > MOST_LINES:
        points = sorted(point for points in marked.values() for point in points)
        return (_median_line(series, points),)
    return tuple(
        Line(name=f"worker {name}", points=thin(points), marked=tuple(marked.get(name, ())))
        for name, points in series.items()
    )


def _heaviest_where_perturbed(run: RunRecord) -> dict[str, list[tuple[float, float]]]:
    """Return the heaviest worker's weight where weights were perturbed: one mark a mega-batch.

    Of many mega-batches some are taken, evenly, no more than can be told apart.
    """
    rows = [row for row in run.history if row.get("perturbed") and row["workers"]]
    marked: dict[str, list[tuple[float, float]]] = {}
    for row in rows[:: max(1, -(-len(rows) // _MOST_MARKS))]:
        weights = {name: worker.get("weight", 0.0) for name, worker in row["workers"].items()}
        name = max(weights, key=lambda name: weights[name])
        point = float(row["megabatch"]), weights[name]
        marked.setdefault(name, []).append(point)
    return marked


def _series(run: RunRecord, name: str, value: Callable[[Any], float | None]) -> Points:
    found = (
        (float(row["megabatch"]), value(row["workers"][name]))
        for row in run.history
        if name in row["workers"]
    )
    return tuple((x, float(y)) for x, y in found if y is not None)


def _median_line(series: dict[str, Points], marked: Sequence[tuple[float, float]]) -> Line:
    by_megabatch: dict[float, list[float]] = {}
    for points in series.values():
        for x, y in points:
            by_megabatch.setdefault(x, []).append(y)
    middle = [(x, statistics.median(ys)) for x, ys in sorted(by_megabatch.items())]
    points = thin(middle)
    band = tuple((min(by_megabatch[x]), max(by_megabatch[x])) for x, _ in points)
    name = f"median and range of {len(series)} workers"
    return Line(name=name, points=points, band=band, marked=tuple(marked))


def _worker_time(run: RunRecord, number: int) -> Chart:
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
