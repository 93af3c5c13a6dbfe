"""The page: one document for each browser that looks, fed while it keeps up.

The browser confirms every update, and gets the next one only then: what is slow, hidden or gone
costs nothing. Updates are also spaced so that making them takes a small share of the time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import distributed
from bokeh.document import Document
from bokeh.models import CustomJS, Div
from jinja2 import Environment, FileSystemLoader

from daskxml.dashboard import columns
from daskxml.dashboard.figures import Charts, colors
from daskxml.dashboard.headline import headline
from daskxml.dashboard.html import events_html, headline_html, legend_html
from daskxml.dashboard.record import Record

PERIOD_MS = 500
SHARE = 0.008  # of the time, at most, that goes into the making of updates, for all pages
TEMPLATES = Path(__file__).parent / "templates"

# Colours of the charts for the browser's theme, now and whenever it changes.
PAINT = """
const dark = window.matchMedia("(prefers-color-scheme: dark)")
const paint = () => {
  const text = dark.matches ? "#c5ccd5" : "#3a424d", line = dark.matches ? "#343a43" : "#e3e6ea"
  for (const chart of charts) {
    chart.title.setv({text_color: text}, {sync: false})
    for (const part of [...chart.below, ...chart.left]) {
      part.setv({axis_label_text_color: text, major_label_text_color: text,
                 major_tick_line_color: line}, {sync: false})
    }
    for (const part of chart.center) {
      if ("grid_line_color" in part) part.setv({grid_line_color: line}, {sync: false})
    }
    for (const part of [...chart.above, ...chart.center]) {
      if ("label_text_color" in part) {
        part.setv({label_text_color: text, background_fill_color: null}, {sync: false})
      }
    }
  }
}
dark.addEventListener("change", paint)
paint()
heard.tags = [0]
"""
CONFIRM = """
if (cb_obj.tags[1] === "reload") window.location.reload()
else heard.tags = [cb_obj.tags[0]]
"""


class Page:
    """One browser's view of one run.

    Parameters
    ----------
    records
        Every run that there is, by name, oldest first; read at each update.
    doc
        What the browser shows.
    wanted
        The run to show; "" follows the newest.
    """

    _open: ClassVar[set[Page]] = set()  # all that this process shows

    def __init__(self, records: Mapping[str, Record], doc: Document, wanted: str) -> None:
        self.records, self.doc, self.follows = records, doc, wanted not in records
        self.record = records[next(reversed(list(records))) if self.follows else wanted]
        self.charts = Charts(metrics=_metrics(self.record))
        css = (TEMPLATES / "words.css").read_text()
        self.headline, self.legend, self.events = (
            Div(name=name, stylesheets=[css], sizing_mode="stretch_width", margin=0)
            for name in ("headline", "legend", "events")
        )
        self._open.add(self)
        doc.on_session_destroyed(lambda context: self._open.discard(self))
        self._sent, self._heard = 0, -1
        self._not_before_s = 0.0
        self._shown: tuple[int, ...] = ()
        self._workers: list[str] = []
        self._lay_out()

    def _lay_out(self) -> None:
        doc = self.doc
        for name, chart in self.charts.figures.items():
            chart.name = name
        with doc.models.freeze():  # else all models are counted again with every root
            for root in (*self.charts.figures.values(), self.headline, self.legend, self.events):
                doc.add_root(root)
        self.events.on_change("tags", self._hear)
        confirm = CustomJS(args={"heard": self.events}, code=CONFIRM)
        self.headline.js_on_change("tags", confirm)
        args = {"charts": list(self.charts.figures.values()), "heard": self.events}
        doc.js_on_event("document_ready", CustomJS(args=args, code=PAINT))
        doc.title = f"daskxml: {self.record.run}"
        doc.add_periodic_callback(self.update, PERIOD_MS)

    def _hear(self, name: str, old: Any, new: Sequence[Any]) -> None:
        is_first = self._heard < 0
        self._heard = int(new[0])
        if is_first:
            self.update()

    def update(self) -> None:
        """Send what is new, if the browser has what was sent before."""
        began_s = time.thread_time()
        if self._heard != self._sent or time.monotonic() < self._not_before_s:
            return
        newest = next(reversed(list(self.records.values())), self.record)
        if self.follows and newest is not self.record:
            return self._confirm("reload")
        self.record.update()
        self._send()
        self._confirm()
        took_s = time.thread_time() - began_s
        self._not_before_s = time.monotonic() + took_s * len(self._open) / SHARE

    def _confirm(self, *more: str) -> None:
        self._sent += 1
        self.headline.tags = [self._sent, *more]

    def _send(self) -> None:
        record, charts = self.record, self.charts
        now_s = record.ended_s or time.time()
        self.headline.text = headline_html(headline(record, now_s), self.records.values())
        marks = (record.version, len(record.memory), record.memory.seen)
        if marks[0] not in self._shown[:1]:
            self._send_names()
            self._send_megabatches()
        if marks != self._shown:
            lines = columns.memory_columns(record, self._workers)
            charts.memory.sent.data = lines | {"color": colors(len(self._workers))}
            charts.figures["device_mib"].visible = columns.has_device(record.memory)
        if marks != self._shown or not record.is_over:
            self._send_work(now_s)
        self._shown = marks

    def _send_names(self) -> None:
        record = self.record
        workers = columns.worker_names(record)
        shades, count = colors(len(workers)), columns.worker_count(record)
        self.legend.text = legend_html(workers, shades, record.lost, count)
        self.events.text = events_html(record.words)
        if workers != self._workers:
            self._workers = workers
            axis = self.charts.timeline.yaxis[0]
            axis.ticker.ticks = list(range(len(workers)))
            axis.major_label_overrides = dict(enumerate(workers))
            self.charts.timeline.y_range.end = max(1, len(workers)) - 0.4
            self.charts.timeline.height = max(260, min(640, 60 + 18 * len(workers)))

    def _send_megabatches(self) -> None:
        record, charts = self.record, self.charts
        charts.learning.data = columns.learning_columns(record)
        charts.scores.data = columns.score_columns(record, charts.metrics)
        charts.perturbed.data = columns.perturbed_columns(record)
        lines = columns.worker_columns(record, self._workers)
        charts.workers.sent.data = lines | {"color": colors(len(self._workers))}

    def _send_work(self, now_s: float) -> None:
        long_s = columns.window_s(self.record)
        work = self.record.activity.recent(now_s - long_s, now_s)
        found = columns.work_columns(work, self._workers, now_s, long_s)
        self.charts.work.data = found
        self.charts.timeline.x_range.start = -long_s


def _metrics(record: Record) -> tuple[str, ...]:
    """Return what the chart of metrics shows: precision at every rank, and the run's target."""
    names = [f"P@{k}" for k in record.config.evaluation.k]
    limits = record.config.training
    return tuple(dict.fromkeys([*names, *([limits.target_metric] if limits.target else [])]))


def document(records: Mapping[str, Record], variables: Mapping[str, Any], doc: Document) -> None:
    """Make the document of a browser that has come.

    Parameters
    ----------
    records
        Every run that there is, at least one.
    variables
        What Dask's templates ask for: the pages in the navigation bar, and so on.
    """
    asked = doc.session_context.request.arguments.get("run", [b""])
    doc.template = _templates().get_template("daskxml.html")
    doc.template_variables.update(variables)
    doc.template_variables["daskxml_css"] = (TEMPLATES / "page.css").read_text()
    Page(records, doc, asked[0].decode(errors="replace"))


def _templates() -> Environment:
    dask_templates = Path(distributed.__file__).parent / "http" / "templates"
    return Environment(loader=FileSystemLoader([TEMPLATES, dask_templates]))
