"""The charts of the page, and the columns that they draw, from a run's series.

Where there is a line for each worker, a column is an array with a row for each worker, and NaN
where a worker took no part, which interrupts its line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from bokeh.models import (
    ColumnDataSource,
    CustomJS,
    CustomJSHover,
    CustomJSTickFormatter,
    DataRange1d,
    FixedTicker,
    GlyphRenderer,
    HoverTool,
    Legend,
    LegendItem,
    LinearColorMapper,
    NumeralTickFormatter,
    Range1d,
)
from bokeh.palettes import Viridis256
from bokeh.plotting import figure
from numpy.typing import NDArray

from daskxml.cluster.timeline import Work
from daskxml.observe.dashboard.series import WORKER_VALUES, MemorySample, RunSeries
from daskxml.observe.run_view import spent_s
from daskxml.strategies.protocol import natural_order

HEIGHT = 210
NOWHERE = float("nan")
# Okabe and Ito (2008), without black and yellow: distinct for the colour-blind, on light and dark.
DISTINCT = ("#2586c8", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8c6bb1", "#7f7f7f")
WORK_COLORS = ("#3f8fd0", "#8c6bb1", "#e69f00", "#009e73", "#d55e00", "#9a9a9a")
# Of the charts: titles, and how their numbers are written.
WORKER_TITLES = {
    "batch_rows": ("Batch size (rows)", "0,0"),
    "updates": ("Updates in a mega-batch", "0,0"),
    "lr": ("Learning rate", "0.[0000]"),
    "rows_per_s": ("Throughput (rows a second)", "0,0"),
    "busy_share": ("Busy in training", "0%"),
    "weight": ("Weight in the merge", "0.00"),
}
MEMORY_TITLES = {
    "host_mib": ("Memory of each worker (MiB)", "0,0"),
    "device_mib": ("Memory on GPUs (MiB)", "0,0"),
    "sent_mib_per_s": ("Sent to others (MiB/s)", "0.0"),
}
LOSS = "Training loss"
SENT = "Sent in a mega-batch, by all (MiB)"
TIME = "seconds since the start"
MEGABATCH = "mega-batch"

# In the browser an array with a row for each worker becomes a list of lines, for `multi_line`.
UNPACK = """
const packed = cb_obj.data, lines = {worker: packed.worker, color: packed.color}
const workers = packed.worker.length
for (const name of names) {
  const flat = packed[name], points = workers ? flat.length / workers : 0
  lines[name] = Array.from({length: workers}, (_, row) =>
    Array.from({length: points}, (_, point) => flat[row * points + point]))
}
target.setv({data: lines}, {sync: false})
"""
Columns = dict[str, Any]
Titles = Mapping[str, tuple[str, str]]
Floats = NDArray[np.floating[Any]]

DRAWN_WORKERS, DRAWN_WORK = 32, 2000  # workers with lines, and pieces of work
OTHER_RUNS = 8  # the newest, drawn behind the run that is shown
MEGABATCHES, LONGEST_S = 30, 60.0  # of work that are shown
MIB = 2.0**20
WEIGHT = list(WORKER_VALUES).index("weight")
WORK = ("training", "training together", "merge", "evaluation", "checkpoint", "start")
# The names of tasks on Dask's dashboard, to their place in ``WORK``.
TASKS = {"lease": 0, "gang": 1, "merge": 2, "eval": 3, "save": 4, "start": 5, "load": 5}


def worker_names(series: RunSeries) -> list[str]:
    """Return the workers that have lines, in natural order; those present take precedence."""
    known, lost = _known(series), series.view.lost
    present = [name for name in known if name not in lost]
    gone = [name for name in known if name in lost]
    return sorted((present + gone)[:DRAWN_WORKERS], key=natural_order)


def worker_count(series: RunSeries) -> int:
    """Return how many workers there are that could have lines."""
    return max(len(_known(series)), len(series.view.row.get("workers", ())))


def _known(series: RunSeries) -> dict[str, None]:
    known = dict.fromkeys(map(str, series.view.started.get("workers", ())))
    for point in series.megabatches:
        known |= dict.fromkeys(point.workers)
    return known


def learning_columns(series: RunSeries) -> Columns:
    """Return ``megabatch``, ``wall_s``, ``loss`` and ``sent_mib`` of the mega-batches."""
    points = list(series.megabatches)
    return {
        "megabatch": _floats(point.megabatch for point in points),
        "wall_s": _floats(point.wall_s for point in points),
        "loss": _floats(point.loss for point in points),
        "sent_mib": _floats(point.sent_bytes / MIB for point in points),
    }


def _floats(values: Iterable[float]) -> Floats:
    return np.fromiter(values, dtype=np.float64)


def score_columns(series: RunSeries, metrics: Sequence[str]) -> Columns:
    """Return ``megabatch``, ``wall_s`` and a column for each metric, of the evaluations."""
    points = list(series.evaluations)
    return {
        "megabatch": _floats(point.megabatch for point in points),
        "wall_s": _floats(point.wall_s for point in points),
        **{name: _floats(point.metrics.get(name, np.nan) for point in points) for name in metrics},
    }


def other_columns(others: Sequence[RunSeries], metric: str) -> Columns:
    """Return the courses of other runs: a line of each, of its loss and of one metric."""
    points = [list(series.megabatches) for series in others]
    scores = [list(series.evaluations) for series in others]
    return {
        "run": [series.title for series in others],
        "megabatch": [_floats(point.megabatch for point in line) for line in points],
        "wall_s": [_floats(point.wall_s for point in line) for line in points],
        "loss": [_floats(point.loss for point in line) for line in points],
        "score_megabatch": [_floats(point.megabatch for point in line) for line in scores],
        "score_wall_s": [_floats(point.wall_s for point in line) for line in scores],
        "score": [_floats(point.metrics.get(metric, np.nan) for point in line) for line in scores],
    }


def worker_columns(series: RunSeries, workers: Sequence[str]) -> Columns:
    """Return ``(workers, points)`` arrays: ``xs`` (mega-batches) and each of ``WORKER_VALUES``."""
    points = list(series.megabatches)
    values = np.full((len(WORKER_VALUES), len(workers), len(points)), np.nan, dtype=np.float32)
    places = {name: place for place, name in enumerate(workers)}
    for number, point in enumerate(points):
        rows = [row for row, name in enumerate(point.workers) if name in places]
        columns = [places[point.workers[row]] for row in rows]
        values[:, columns, number] = point.values[rows].T
    megabatches = [[point.megabatch for point in points]] * len(workers)
    xs = np.array(megabatches, dtype=np.float32).reshape(len(workers), len(points))
    return {"worker": list(workers), "xs": xs, **dict(zip(WORKER_VALUES, values, strict=True))}


def perturbed_columns(series: RunSeries) -> Columns:
    """Return ``megabatch`` of the merges whose weights were perturbed, and ``level`` to mark at."""
    points = list(series.megabatches)
    found = _floats(point.megabatch for point in points if point.perturbed)
    highest = max((float(point.values[:, WEIGHT].max(initial=0)) for point in points), default=0.0)
    return {"megabatch": found, "level": np.full(len(found), highest / 30)}


def memory_columns(series: RunSeries, workers: Sequence[str]) -> Columns:
    """Return ``(workers, samples)`` arrays: ``xs`` (seconds since the start), and three more.

    ``host_mib`` and ``device_mib`` are in use, ``sent_mib_per_s`` is what went to other workers.
    """
    samples = list(series.memory)
    at_s = _floats(sample.at_s - series.begun_s for sample in samples)
    sent = _by_worker(samples, workers, "sent_bytes")
    took_s = np.maximum(np.diff(at_s), 1e-9)
    rates = np.full_like(sent, np.nan)
    rates[:, 1:] = np.diff(sent, axis=1) / took_s
    found = {
        "xs": np.broadcast_to(at_s, (len(workers), len(samples))),
        "host_mib": _by_worker(samples, workers, "host_bytes") / MIB,
        "device_mib": _by_worker(samples, workers, "device_bytes") / MIB,
        "sent_mib_per_s": rates / MIB,
    }
    narrow = {name: values.astype(np.float32) for name, values in found.items()}
    return {"worker": list(workers), **narrow}


def _by_worker(samples: Sequence[MemorySample], workers: Sequence[str], name: str) -> Floats:
    """Return ``(workers, samples)`` float64."""
    places = {name: place for place, name in enumerate(workers)}
    found = np.full((len(workers), len(samples)), np.nan)
    for number, sample in enumerate(samples):
        for worker, value in zip(sample.workers, getattr(sample, name), strict=True):
            if worker in places:
                found[places[worker], number] = value
    return found


def window_s(series: RunSeries) -> float:
    """Return how many seconds of work are shown: some mega-batches, from 2 s to a minute."""
    row = series.view.row
    took_s = spent_s(row) + row["eval_s"] if row else LONGEST_S
    return float(np.clip(MEGABATCHES * took_s, 2.0, LONGEST_S))


def work_columns(
    work: Iterable[Work], workers: Sequence[str], end_s: float, long_s: float
) -> Columns:
    """Return bars of the ``long_s`` seconds before ``end_s``.

    Columns ``place`` (of the worker), ``left`` and ``right`` (seconds before the end, so negative)
    and ``what`` (place in ``WORK``).

    Examples
    --------
    >>> bars = work_columns([Work("a", "eval", 5.0, 8.0)], ["b", "a"], 10.0, 4.0)
    >>> {name: column.tolist() for name, column in bars.items()}
    {'place': [1.0], 'left': [-4.0], 'right': [-2.0], 'what': [3]}
    """
    places = {name: place for place, name in enumerate(workers)}
    found = [
        piece
        for piece in work
        if piece.what in TASKS and piece.worker in places and piece.end_s > end_s - long_s
    ][-DRAWN_WORK:]
    spans = np.array([(piece.begin_s, piece.end_s) for piece in found]).reshape(-1, 2) - end_s
    spans = np.clip(spans, -long_s, 0.0)
    return {
        "place": _floats(places[piece.worker] for piece in found),
        "left": spans[:, 0],
        "right": spans[:, 1],
        "what": np.array([TASKS[piece.what] for piece in found], dtype=np.uint8),
    }


def colors(count: int) -> list[str]:
    """Return a colour for each of so many workers: distinct ones for few, shades for many.

    Examples
    --------
    >>> colors(2), len(set(colors(32)))
    (['#2586c8', '#e69f00'], 32)
    """
    if count <= len(DISTINCT):
        return list(DISTINCT[:count])
    return [Viridis256[60 + place * 180 // count] for place in range(count)]


def _source(*columns: str) -> ColumnDataSource:
    return ColumnDataSource({name: [] for name in columns})


class WorkerLines:
    """A line for each worker: arrays that are sent, and lists that are drawn."""

    def __init__(self, names: Sequence[str]) -> None:
        columns = ("worker", "color", *names)
        self.sent, self.drawn = _source(*columns), _source(*columns)
        self.drawn.tags = [self.sent]  # else it would not be in the document, nor in the browser
        args = {"names": list(names), "target": self.drawn}
        self.sent.js_on_change("data", CustomJS(args=args, code=UNPACK))

    def chart(self, title: str, column: str, x_label: str, y_format: str, **options: Any) -> figure:
        """Return a chart of one column against ``xs``."""
        chart = _chart(title, x_label, y_format, **options)
        drawn = chart.multi_line(
            "xs", column, source=self.drawn, line_color="color", line_width=1.8, line_alpha=0.85
        )
        tip = [("worker", "@worker"), (x_label, "$data_x{0,0}"), (title, f"$data_y{{{y_format}}}")]
        chart.add_tools(HoverTool(renderers=[drawn], tooltips=tip, line_policy="nearest"))
        return chart


def _chart(title: str, x_label: str, y_format: str, **options: Any) -> figure:
    chart = figure(
        title=title,
        height=HEIGHT,
        sizing_mode="stretch_width",
        tools="box_zoom,xpan,xzoom_out,reset",
        active_drag="box_zoom",
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        output_backend="canvas",
        **options,
    )
    chart.toolbar.autohide, chart.toolbar.logo = True, None
    chart.xaxis.axis_label, chart.axis.axis_label_text_font_style = x_label, "normal"
    chart.xaxis.formatter = NumeralTickFormatter(format="0,0.[0]")
    chart.yaxis.formatter = NumeralTickFormatter(format=y_format)
    chart.xaxis.ticker.min_interval = 1 if x_label == MEGABATCH else 0
    chart.xgrid.visible = False
    chart.axis.minor_tick_line_color = None
    chart.axis.axis_line_color = None
    chart.min_border_right = 18
    chart.margin = 0
    for model in (chart, chart.x_range, chart.y_range):
        model.syncable = False  # else the browser sends every new axis to the scheduler
    return chart


def _add_legend(chart: figure, items: Mapping[str, GlyphRenderer]) -> Legend:
    """Put a legend above a chart, not over its data."""
    entries = [LegendItem(label=name, renderers=[drawn]) for name, drawn in items.items()]
    legend = Legend(items=entries, orientation="horizontal", margin=0, padding=2)
    legend.border_line_color = legend.background_fill_color = None
    chart.add_layout(legend, "above")
    return legend


class Charts:
    """The figures of a page, by their names in its template, and the sources of their columns.

    Parameters
    ----------
    metrics
        Those that have a line; of the first, other runs have one as well.
    """

    def __init__(self, metrics: Sequence[str]) -> None:
        self.metrics = metrics
        self.learning = _source("megabatch", "wall_s", "loss", "sent_mib")
        self.scores = _source("megabatch", "wall_s", *metrics)
        self.perturbed = _source("megabatch", "level")
        self.others = _source(
            "run", "megabatch", "wall_s", "loss", "score_megabatch", "score_wall_s", "score"
        )
        self.other_items: list[LegendItem] = []  # which are shown where there are other runs
        # Charts over the same axis have one range: what is zoomed in one is zoomed in all.
        self.ranges = {name: DataRange1d(renderers=[]) for name in ("megabatch", "wall_s", "xs")}
        self.work = _source("place", "left", "right", "what")
        self.workers = WorkerLines(("xs", *WORKER_VALUES))
        self.memory = WorkerLines(("xs", "host_mib", "device_mib", "sent_mib_per_s"))
        self.timeline = self._timeline()
        self.charts: dict[str, figure] = {
            **self._learning(),
            "timeline": self.timeline,
            **self._per_worker(),
            **self._resources(),
        }
        for chart in self.charts.values():
            if chart.x_range in self.ranges.values():  # they span the run that is shown
                own = (
                    renderer
                    for renderer in chart.renderers
                    if renderer.data_source is not self.others
                )
                chart.x_range.renderers = [*chart.x_range.renderers, *own]

    def _learning(self) -> dict[str, figure]:
        return {
            "metric_time": self._metric("wall_s", TIME),
            "metric_megabatch": self._metric("megabatch", MEGABATCH),
            "loss_time": self._line(LOSS, "wall_s", "loss", TIME, "0.00[00]"),
            "loss_megabatch": self._line(LOSS, "megabatch", "loss", MEGABATCH, "0.00[00]"),
        }

    def _metric(self, x: str, label: str) -> figure:
        chart = _chart("Metrics of the rows evaluated", label, "0.00[00]", x_range=self.ranges[x])
        others, items = self._others(chart, f"score_{x}", "score"), {}
        for name, color in zip(self.metrics, colors(len(self.metrics)), strict=True):
            items[name] = chart.line(x, name, source=self.scores, line_color=color, line_width=2)
            dots = chart.scatter(x, name, source=self.scores, color=color, size=3)
            tip = [(name, f"@{{{name}}}{{0.0000}}"), (label, f"@{x}{{0,0}}")]
            chart.add_tools(HoverTool(renderers=[dots], tooltips=tip))
        item = _add_legend(chart, items | {"other runs": others}).items[-1]
        item.visible = False
        self.other_items.append(item)
        return chart

    def _line(self, title: str, x: str, y: str, label: str, y_format: str) -> figure:
        chart = _chart(title, label, y_format, x_range=self.ranges[x])
        if y == "loss":
            self._others(chart, x, y)
        drawn = chart.line(x, y, source=self.learning, line_color=DISTINCT[0], line_width=2)
        tip = [(title, f"@{y}{{0,0.0000}}"), (label, f"@{x}{{0,0}}")]
        chart.add_tools(HoverTool(renderers=[drawn], tooltips=tip, mode="vline"))
        return chart

    def _others(self, chart: figure, x: str, y: str) -> GlyphRenderer:
        """Draw other runs behind the one that is shown."""
        drawn = chart.multi_line(
            x, y, source=self.others, line_color="#8a929c", line_width=1.2, line_alpha=0.6
        )
        chart.add_tools(HoverTool(renderers=[drawn], tooltips=[("run", "@run"), (y, "$data_y")]))
        return drawn

    def _timeline(self) -> figure:
        ranges = {"x_range": Range1d(-60, 0), "y_range": Range1d(-0.6, 0.6)}
        chart = _chart("Work of each worker", "seconds ago", "0", **ranges)
        chart.min_border_left = 30
        mapper = LinearColorMapper(palette=WORK_COLORS, low=-0.5, high=len(WORK) - 0.5)
        bars = chart.hbar(
            y="place", left="left", right="right", height=0.72, source=self.work,
            fill_color={"field": "what", "transform": mapper}, line_color=None,
        )  # fmt: skip
        samples = {
            name: chart.scatter([NOWHERE], [NOWHERE], marker="square", size=9, color=color)
            for name, color in zip(WORK, WORK_COLORS, strict=True)
        }
        _add_legend(chart, samples)
        code = f"return {list(WORK)}[value]"
        tip = [("what", "@what{custom}"), ("from", "@left{0.00} s"), ("to", "@right{0.00} s")]
        formatters = {"@what": CustomJSHover(code=code)}
        chart.add_tools(HoverTool(renderers=[bars], tooltips=tip, formatters=formatters))
        chart.xaxis.formatter = CustomJSTickFormatter(code="return `${-tick}`")
        chart.ygrid.visible = False
        chart.yaxis.ticker = FixedTicker(ticks=[])
        return chart

    def _per_worker(self) -> dict[str, figure]:
        found = {
            name: self.workers.chart(
                title, name, MEGABATCH, y_format, x_range=self.ranges["megabatch"]
            )
            for name, (title, y_format) in WORKER_TITLES.items()
        }
        for chart in found.values():
            chart.y_range.start, chart.y_range.range_padding = 0, 0.2
        found["busy_share"].y_range.end = 1.02
        marks = found["weight"].scatter(
            "megabatch", "level", source=self.perturbed, marker="triangle", size=6, color="#d55e00"
        )
        _add_legend(found["weight"], {"perturbed": marks})
        return found

    def _resources(self) -> dict[str, figure]:
        found = {
            name: self.memory.chart(title, name, TIME, y_format, x_range=self.ranges["xs"])
            for name, (title, y_format) in MEMORY_TITLES.items()
        }
        found["sent_mib"] = self._line(SENT, "megabatch", "sent_mib", MEGABATCH, "0,0.0")
        for chart in found.values():
            chart.y_range.start, chart.y_range.range_padding = 0, 0.2
        return found
