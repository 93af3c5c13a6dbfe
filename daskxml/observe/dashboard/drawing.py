"""Charts as Bokeh draws them, live: each is drawn again as its run goes on, and may be zoomed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from bokeh import models
from bokeh.palettes import Viridis256
from bokeh.plotting import figure

from daskxml.cluster.timeline import Work
from daskxml.observe.charts import MEGABATCHES, Chart
from daskxml.observe.html import TEMPLATES

HEIGHT, NUMBER = 210, "0,0.[0000]"
# Okabe and Ito (2008), without black and yellow: distinct for the colour-blind, on light and dark.
DISTINCT = ("#2586c8", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8c6bb1", "#7f7f7f")
DRAWN_WORK = 2000  # pieces of work
WORK = {
    "training": "#3f8fd0", "training together": "#8c6bb1", "merge": "#e69f00",
    "evaluation": "#009e73", "checkpoint": "#d55e00", "start": "#9a9a9a",
}  # fmt: skip
UNPACK = (TEMPLATES / "unpack.js").read_text()
# The names of tasks on Dask's dashboard, to their place in ``WORK``.
TASKS = {"lease": 0, "gang": 1, "merge": 2, "eval": 3, "save": 4, "start": 5, "load": 5}


def colors(count: int) -> list[str]:
    """Return a colour for each of so many lines: distinct ones for few, shades for many.

    Examples
    --------
    >>> colors(2), len(set(colors(32)))
    (['#2586c8', '#e69f00'], 32)
    """
    if count <= len(DISTINCT):
        return list(DISTINCT[:count])
    return [Viridis256[60 + place * 180 // count] for place in range(count)]


class LiveChart:
    """A figure of a `Chart`.

    Parameters
    ----------
    chart
        As it is before there is any data; the names of its series are those of its legend.
    x_range
        That of all charts with the same axis: what is zoomed in one is zoomed in all.
    """

    def __init__(self, chart: Chart, x_range: models.DataRange1d) -> None:
        self.figure = _figure(chart.caption, chart.x_label, x_range=x_range, name=chart.name)
        self.figure.visible = False  # until there is a line to draw
        if chart.from_zero:
            self.figure.y_range.start, self.figure.y_range.range_padding = 0, 0.2
        self.lines = models.ColumnDataSource({name: [] for name in ("xs", "ys", "name", "color")})
        self.lines.js_on_change("tags", models.CustomJS(code=UNPACK))
        drawn = self.figure.multi_line(
            "xs", "ys", source=self.lines, line_color="color", line_width=2, line_alpha=0.85
        )
        tip = [
            ("", "@name"),
            (chart.x_label, "$data_x{0,0.[00]}"),
            (chart.title, f"$data_y{{{NUMBER}}}"),
        ]
        self.figure.add_tools(
            models.HoverTool(renderers=[drawn], tooltips=tip, line_policy="nearest")
        )
        x_range.renderers = [*x_range.renderers, drawn]
        items = [
            models.LegendItem(label=line.name, renderers=[drawn], index=number)
            for number, line in enumerate(chart.series)
        ]
        if len(items) > 1:
            _add_legend(self.figure, items)

    def draw(self, chart: Chart) -> None:
        """Show the chart as it is now, once there is a line to draw."""
        is_line = any(len(line.finite) > 1 for line in chart.series)
        self.figure.visible = is_line and not chart.is_empty
        points = [line.points for line in chart.series]
        x, y = np.concatenate([np.empty((0, 2)), *points]).T.astype(np.float32, order="C")
        names, shades = [line.name for line in chart.series], colors(len(points))
        self.lines.tags = [x, y, [*map(len, points)], names, shades]  # what `unpack.js` reads


def _figure(title: str, x_label: str, **options: Any) -> figure:
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
    chart.axis.formatter = models.NumeralTickFormatter(format=NUMBER)
    chart.xaxis.ticker.min_interval = 1 if x_label == MEGABATCHES else 0
    chart.xgrid.visible = False
    chart.axis.minor_tick_line_color = None
    chart.axis.axis_line_color = None
    chart.min_border_right = 18
    chart.margin = 0
    for model in (chart, chart.x_range, chart.y_range):
        model.syncable = False  # else the browser sends every new axis to the scheduler
    return chart


def _add_legend(chart: figure, items: Sequence[models.LegendItem]) -> None:
    """Put a legend above a chart, not over its data."""
    legend = models.Legend(items=[*items], orientation="horizontal", ncols=3, margin=0, padding=2)
    legend.border_line_color = legend.background_fill_color = None
    chart.add_layout(legend, "above")


class LiveTimeline:
    """What each worker did in the last seconds, as bars."""

    def __init__(self) -> None:
        ranges = {"x_range": models.Range1d(-60, 0), "y_range": models.Range1d(-0.6, 0.6)}
        chart = self.figure = _figure(
            "Work of each worker", "seconds ago", name="timeline", **ranges
        )
        chart.min_border_left = 30
        self.work = models.ColumnDataSource(
            {name: [] for name in ("place", "left", "right", "what")}
        )
        mapper = models.LinearColorMapper(palette=[*WORK.values()], low=-0.5, high=len(WORK) - 0.5)
        bars = chart.hbar(
            y="place", left="left", right="right", height=0.72, source=self.work,
            fill_color={"field": "what", "transform": mapper}, line_color=None,
        )  # fmt: skip
        nowhere = [float("nan")]
        _add_legend(chart, [
            models.LegendItem(label=name, renderers=[
                chart.scatter(nowhere, nowhere, marker="square", size=9, color=color)
            ])
            for name, color in WORK.items()
        ])  # fmt: skip
        tip = [("what", "@what{custom}"), ("from", "@left{0.00} s"), ("to", "@right{0.00} s")]
        formatters = {"@what": models.CustomJSHover(code=f"return {list(WORK)}[value]")}
        chart.add_tools(models.HoverTool(renderers=[bars], tooltips=tip, formatters=formatters))
        chart.xaxis.formatter = models.CustomJSTickFormatter(code="return `${-tick}`")
        chart.ygrid.visible = False
        chart.yaxis.ticker = models.FixedTicker(ticks=[])

    def name_workers(self, workers: Sequence[str]) -> None:
        """Give every worker a line."""
        axis = self.figure.yaxis[0]
        axis.ticker.ticks = list(range(len(workers)))
        axis.major_label_overrides = dict(enumerate(workers))
        self.figure.y_range.end = max(1, len(workers)) - 0.4
        self.figure.height = max(260, min(640, 60 + 18 * len(workers)))

    def draw(
        self, work: Iterable[Work], workers: Sequence[str], end_s: float, long_s: float
    ) -> None:
        """Show the ``long_s`` seconds before ``end_s``."""
        self.work.data = work_columns(work, workers, end_s, long_s)
        self.figure.x_range.start = -long_s


def work_columns(
    work: Iterable[Work], workers: Sequence[str], end_s: float, long_s: float
) -> Mapping[str, Any]:
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
        "place": np.array([places[piece.worker] for piece in found], dtype=np.float64),
        "left": spans[:, 0],
        "right": spans[:, 1],
        "what": np.array([TASKS[piece.what] for piece in found], dtype=np.uint8),
    }
