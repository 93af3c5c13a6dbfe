"""The page: one document for each browser, updated while the browser keeps up.

The browser confirms every update, and gets the next one only then: what is slow, hidden or gone
costs nothing. Updates are also spaced so that making them takes a small share of the time. All
names that users or workers have given are escaped, by the templates of `daskxml.observe.html`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar

import distributed
import numpy as np
from bokeh.document import Document
from bokeh.models import CustomJS, DataRange1d, Div
from jinja2 import Environment, FileSystemLoader

from daskxml.observe.charts import Chart, learning_charts, sent_chart, worker_charts
from daskxml.observe.dashboard.drawing import LiveChart, LiveTimeline, colors
from daskxml.observe.html import TEMPLATES, render
from daskxml.observe.run_view import rows_per_s, spent_s
from daskxml.observe.wording import duration, limit_label
from daskxml.strategies.protocol import natural_order

if TYPE_CHECKING:
    from daskxml.observe.dashboard.plugin import RunSeries

PERIOD_MS = 500
SHARE = 0.008  # of the time, at most, that goes into the making of updates, for all pages
DRAWN_WORKERS = 32  # workers with lines
MEGABATCHES, LONGEST_S = 30, 60.0  # of work that are shown
CREDENTIALS = re.compile(r"(?<=://)[^/\s\"']+@")

CONFIRM = "cb_obj.tags[1] ? window.location.reload() : confirmed.tags = [cb_obj.tags[0]]"


class Page:
    """One browser's view of one run.

    Parameters
    ----------
    all_series
        Every run that there is, by name, oldest first; read at each update.
    doc
        What the browser shows.
    wanted
        The run to show; "" follows the newest.
    """

    _open: ClassVar[set[Page]] = set()  # all that this process shows

    def __init__(self, all_series: Mapping[str, RunSeries], doc: Document, wanted: str) -> None:
        self.all_series, self.doc, self.follows = all_series, doc, wanted not in all_series
        self.series = list(all_series.values())[-1] if self.follows else all_series[wanted]
        ranges: dict[str, DataRange1d] = {}
        self.charts = {
            chart.name: LiveChart(
                chart, ranges.setdefault(chart.x_label, DataRange1d(renderers=[]))
            )
            for chart in page_charts(self.series, [])
        }
        self.timeline = LiveTimeline()
        css = (TEMPLATES / "texts.css").read_text()
        self.headline, self.legend, self.events, self.details = (
            Div(name=name, stylesheets=[css], sizing_mode="stretch_width", margin=0)
            for name in ("headline", "legend", "events", "details")
        )
        self.headline.text = headline_html(self.series, all_series.values(), self.series.now_s())
        self._open.add(self)
        doc.on_session_destroyed(lambda context: self._open.discard(self))
        self._sent, self._confirmed = 0, -1
        self._not_before_s = 0.0
        self._shown = -1  # version of the series
        self._workers: list[str] = []
        self._lay_out()

    def _lay_out(self) -> None:
        doc = self.doc
        figures = [self.timeline.figure, *(chart.figure for chart in self.charts.values())]
        texts = (self.headline, self.legend, self.events, self.details)
        with doc.models.freeze():  # else all models are counted again with every root
            for root in (*figures, *texts):
                doc.add_root(root)
        self.events.on_change("tags", self._on_confirm)
        confirm = CustomJS(args={"confirmed": self.events}, code=CONFIRM)
        self.headline.js_on_change("tags", confirm)
        args = {"charts": figures, "confirmed": self.events}
        doc.js_on_event(
            "document_ready", CustomJS(args=args, code=(TEMPLATES / "paint.js").read_text())
        )
        doc.title = f"daskxml: {self.series.run}"
        doc.add_periodic_callback(self.update, PERIOD_MS)

    def _on_confirm(self, name: str, old: Any, new: Sequence[Any]) -> None:
        is_first = self._confirmed < 0
        self._confirmed = int(new[0])
        if is_first:
            self.update()

    def update(self) -> None:
        """Send what is new, if the browser has what was sent before."""
        began_s = time.thread_time()
        if self._confirmed != self._sent or time.monotonic() < self._not_before_s:
            return
        newest = [self.series, *self.all_series.values()][-1]
        if self.follows and newest is not self.series:
            return self._number("reload")
        self.series.update()
        self._send()
        self._number()
        took_s = time.thread_time() - began_s
        # Those that are closed stay open for a while, but do not confirm what they were sent last.
        others = sum(page._confirmed == page._sent for page in self._open)
        self._not_before_s = time.monotonic() + took_s * (1 + others) / SHARE

    def _number(self, *more: str) -> None:
        """Number the update, for the browser to confirm."""
        self._sent += 1
        self.headline.tags = [self._sent, *more]

    def _send(self) -> None:
        series, now_s = self.series, self.series.now_s()
        self.headline.text = headline_html(series, self.all_series.values(), now_s)
        is_new = series.version != self._shown
        if is_new:
            self._send_texts()
            for chart in page_charts(series, self._workers):
                self.charts[chart.name].draw(chart)
        if is_new or not series.view.is_over:
            long_s = window_s(series)
            work = series.timeline.recent(now_s - long_s, now_s)
            self.timeline.draw(work, self._workers, now_s, long_s)
        self._shown = series.version

    def _send_texts(self) -> None:
        series = self.series
        workers, known = worker_names(series)
        shades = colors(len(workers))
        self.legend.text = legend_html(workers, shades, series.view.lost, known)
        self.events.text = events_html(series.lines)
        self.details.text = details_html(series)
        if workers != self._workers:
            self._workers = workers
            self.timeline.name_workers(workers)


def page_charts(series: RunSeries, workers: Sequence[str]) -> list[Chart]:
    """Return the charts of learning, then those of the workers.

    Parameters
    ----------
    series
        The run that is shown.
    workers
        Those of its workers that have lines.
    """
    course = series.course
    learning = learning_charts([course], _metrics(series))
    return [*learning, *worker_charts(course, workers), sent_chart([course])]


def worker_names(series: RunSeries) -> tuple[list[str], int]:
    """Return the workers that have lines, in natural order, and how many could have.

    Those present take precedence.
    """
    lost, started = series.view.lost, map(str, series.view.started.get("workers", ()))
    known = dict.fromkeys([*started, *series.course.workers])
    first = sorted(known, key=lambda name: name in lost)[:DRAWN_WORKERS]
    count = max(len(known), len(series.view.row.get("workers", ())))
    return sorted(first, key=natural_order), count


def window_s(series: RunSeries) -> float:
    """Return how many seconds of work are shown: some mega-batches, from 2 s to a minute."""
    row = series.view.row
    took_s = spent_s(row) + row["eval_s"] if row else LONGEST_S
    return float(np.clip(MEGABATCHES * took_s, 2.0, LONGEST_S))


def _metrics(series: RunSeries) -> tuple[str, ...]:
    """Return what the chart of metrics shows: precision at every rank, and the run's target."""
    names = [f"P@{k}" for k in series.config.evaluation.k]
    limits = series.config.training
    return tuple(dict.fromkeys([*names, *([limits.target_metric] if limits.target else [])]))


def document(
    all_series: Mapping[str, RunSeries], variables: Mapping[str, Any], doc: Document
) -> None:
    """Fill the document of a browser that has connected.

    Parameters
    ----------
    all_series
        Every run that there is, at least one.
    variables
        Of Dask's templates: the pages in the navigation bar, and so on.
    """
    asked = doc.session_context.request.arguments.get("run", [b""])
    folders = [TEMPLATES, Path(distributed.__file__).parent / "http" / "templates"]
    doc.template = Environment(loader=FileSystemLoader(folders)).get_template("daskxml.html")
    doc.template_variables.update(variables)
    for name in ("page", "texts"):
        doc.template_variables[f"{name}_css"] = (TEMPLATES / f"{name}.css").read_text()
    page = Page(all_series, doc, asked[0].decode(errors="replace"))
    doc.template_variables["first"] = page.headline.text


def headline_html(series: RunSeries, all_series: Iterable[RunSeries], now_s: float) -> str:
    """Return a run at a glance, with links to the other runs, newest first.

    Parameters
    ----------
    series, all_series
        The run that is shown, and all that there are, oldest first.
    now_s
        The moment it is shown at, in seconds since the epoch.
    """
    view = series.view
    progress, left_s = view.progress(), view.left_s(now_s)
    left = "" if left_s is None else f", about {duration(left_s)} left"
    return render(
        "headline.html.jinja",
        shown=series,
        data=data_label(series),
        progress=1.0 if progress is None else progress,
        facts={
            "progress": limit_label(view) + left,
            "time": duration(now_s - series.begun_s),
            "speed": f"{rows_per_s(view.row) or 0.0:,.0f} rows/s",
            "best": best_label(series) or "not evaluated yet",
        },
        others=[each for each in reversed(list(all_series)) if each.run != series.run],
    )


def data_label(series: RunSeries) -> str:
    """Return the name of the run's data set, or of its files, and their size once it is known."""
    data, started = series.config.data, series.view.started
    names = [PurePosixPath(path).name for path in data.train]
    name = data.card or (names[0] if names else "matrices")
    if len(names) > 1 and not data.card:
        name += f" and {len(names) - 1} more"
    if not started:
        return name
    sizes = (f"{started[column]:,} {column}" for column in ("rows", "features", "labels"))
    return f"{name}: {', '.join(sizes)}"


def best_label(series: RunSeries) -> str:
    """Return the best value of the metric that the run aims at, or of another; or ``""``."""
    best = series.view.best
    name = series.view.metric if series.view.metric in best else next(iter(best), "")
    if not name:
        return ""
    value, megabatch = best[name]
    what = "tree" if "pieces" in series.view.row else "mega-batch"
    return f"{name} {value:.4f} ({what} {megabatch:,})"


def legend_html(
    workers: Sequence[str], colors: Sequence[str], lost: Mapping[str, None], count: int
) -> str:
    """Return which colour is which worker's.

    Parameters
    ----------
    workers, colors
        Those that have lines, and their colours.
    lost
        Workers that are gone.
    count
        Workers of the run, of which some may have no line.
    """
    shown = zip(workers, colors, strict=True)
    return render("legend.html.jinja", workers=shown, lost=lost, hidden=count - len(workers))


def events_html(lines: Iterable[tuple[float, str]]) -> str:
    """Return lines of text with their times (seconds since the epoch), the latest first."""
    shown = [
        (time.strftime("%H:%M:%S", time.localtime(at_s)), text)
        for at_s, text in reversed(list(lines))
    ]
    return render("events.html.jinja", lines=shown)


def details_html(series: RunSeries) -> str:
    """Return a run's files, the stages of its rows, and its settings, each to be opened.

    Names and passwords in URLs are left out.
    """
    data = series.config.data
    paths = [
        ("directory", series.out),
        *(("training rows", path) for path in data.train),
        *(("test rows", path) for path in data.test),
        ("weights", data.weights),
    ]
    return render(
        "details.html.jinja",
        paths=[(name, CREDENTIALS.sub("", path)) for name, path in paths if path],
        stages=series.view.stages,
        settings=CREDENTIALS.sub("", series.config.to_toml()),
    )
