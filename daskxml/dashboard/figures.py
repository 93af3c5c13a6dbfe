"""The charts of the page, and the columns that they draw; none knows how these come about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bokeh.models import (
    ColumnDataSource,
    CustomJS,
    CustomJSHover,
    CustomJSTickFormatter,
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

from daskxml.dashboard.columns import WORK
from daskxml.dashboard.record import FIGURES

HEIGHT = 210
NOWHERE = float("nan")
# Okabe and Ito (2008), without black and yellow: told apart by the colour-blind, on light and dark.
DISTINCT = ("#2586c8", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8c6bb1", "#7f7f7f")
WORK_COLORS = ("#3f8fd0", "#8c6bb1", "#e69f00", "#009e73", "#d55e00", "#9a9a9a")
TIME = "seconds since the start"
MEGABATCH = "mega-batch"

# What the browser does with an array of a row for each worker: a list of lines, for `multi_line`.
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


class Lines:
    """A line for each worker: arrays that are sent, and lists that are drawn."""

    def __init__(self, names: Sequence[str]) -> None:
        empty: dict[str, Any] = {name: [] for name in ("worker", "color", *names)}
        self.sent, self.drawn = ColumnDataSource(empty), ColumnDataSource(empty)
        self.drawn.tags = [self.sent]  # or the document, and the browser, would not know of it
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
        tools="xpan,box_zoom,reset",
        active_drag=None,
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
    chart.xgrid.visible = False
    chart.axis.minor_tick_line_color = None
    chart.axis.axis_line_color = None
    chart.min_border_right = 18
    chart.margin = 0
    for model in (chart, chart.x_range, chart.y_range):
        model.syncable = False  # or the browser would tell the scheduler of every new axis
    return chart


def _add_legend(chart: figure, items: Mapping[str, GlyphRenderer]) -> None:
    """Say above a chart, not over its data, what is what."""
    entries = [LegendItem(label=name, renderers=[drawn]) for name, drawn in items.items()]
    legend = Legend(items=entries, orientation="horizontal", margin=0, padding=2)
    legend.border_line_color = legend.background_fill_color = None
    chart.add_layout(legend, "above")


@dataclass(kw_only=True)
class Charts:
    """Every chart by its name in the page's template, and the sources of their columns."""

    metrics: tuple[str, ...]
    learning: ColumnDataSource = field(init=False)
    scores: ColumnDataSource = field(init=False)
    perturbed: ColumnDataSource = field(init=False)
    work: ColumnDataSource = field(init=False)
    workers: Lines = field(init=False)
    memory: Lines = field(init=False)
    figures: dict[str, figure] = field(init=False)
    timeline: figure = field(init=False)

    def __post_init__(self) -> None:
        columns = ("megabatch", "wall_s", "loss", "sent_mib")
        self.learning = ColumnDataSource({name: [] for name in columns})
        self.scores = ColumnDataSource({n: [] for n in ("megabatch", "wall_s", *self.metrics)})
        self.perturbed = ColumnDataSource({"megabatch": [], "level": []})
        self.work = ColumnDataSource({name: [] for name in ("place", "left", "right", "what")})
        self.workers = Lines(("xs", *FIGURES))
        self.memory = Lines(("xs", "host_mib", "device_mib", "sent_mib_per_s"))
        self.timeline = self._timeline()
        self.figures = {
            **self._learning(),
            "timeline": self.timeline,
            **self._per_worker(),
            **self._resources(),
        }

    def _learning(self) -> dict[str, figure]:
        return {
            "metric_time": self._metric("wall_s", TIME),
            "metric_megabatch": self._metric("megabatch", MEGABATCH),
            "loss_time": self._line("Training loss", "wall_s", "loss", TIME, "0.00"),
            "loss_megabatch": self._line("Training loss", "megabatch", "loss", MEGABATCH, "0.00"),
        }

    def _metric(self, x: str, label: str) -> figure:
        chart = _chart("Metrics of the rows evaluated", label, "0.00")
        items = {}
        for name, color in zip(self.metrics, colors(len(self.metrics)), strict=True):
            items[name] = chart.line(x, name, source=self.scores, line_color=color, line_width=2)
            dots = chart.scatter(x, name, source=self.scores, color=color, size=3)
            tip = [(name, f"@{{{name}}}{{0.0000}}"), (label, f"@{x}{{0,0}}")]
            chart.add_tools(HoverTool(renderers=[dots], tooltips=tip))
        _add_legend(chart, items)
        return chart

    def _line(self, title: str, x: str, y: str, label: str, y_format: str) -> figure:
        chart = _chart(title, label, y_format)
        drawn = chart.line(x, y, source=self.learning, line_color=DISTINCT[0], line_width=2)
        tip = [(title, f"@{y}{{0,0.0000}}"), (label, f"@{x}{{0,0}}")]
        chart.add_tools(HoverTool(renderers=[drawn], tooltips=tip, mode="vline"))
        return chart

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
        lines = self.workers
        found = {
            "batch_rows": lines.chart("Batch size (rows)", "batch_rows", MEGABATCH, "0,0"),
            "updates": lines.chart("Updates in a mega-batch", "updates", MEGABATCH, "0,0"),
            "lr": lines.chart("Learning rate", "lr", MEGABATCH, "0.[0000]"),
            "rows_per_s": lines.chart("Throughput (rows a second)", "rows_per_s", MEGABATCH, "0,0"),
            "busy_share": lines.chart("Busy in training", "busy_share", MEGABATCH, "0%"),
            "weight": lines.chart("Weight in the merge", "weight", MEGABATCH, "0.00"),
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
            "host_mib": self.memory.chart("Memory of each worker (MiB)", "host_mib", TIME, "0,0"),
            "device_mib": self.memory.chart("Memory on GPUs (MiB)", "device_mib", TIME, "0,0"),
            "sent": self.memory.chart("Sent to others (MiB/s)", "sent_mib_per_s", TIME, "0.0"),
            "moved": self._line(
                "Sent in a mega-batch, by all (MiB)", "megabatch", "sent_mib", MEGABATCH, "0,0.0"
            ),
        }
        for chart in found.values():
            chart.y_range.start, chart.y_range.range_padding = 0, 0.2
        found["device_mib"].visible = False  # until a worker tells of a device
        return found
