"""The scheduler plugin that watches runs: it keeps a series of each, and shows them.

It works beside `daskxml.cluster.scheduler_plugin.RunSchedulerPlugin`, which only calls it for every
run that starts. All its errors are logged, and no run is affected.

The page ``/daskxml`` is in the HTTP server of Dask's dashboard, with a link in its navigation bar.
Dask has no interface for further pages. What is used of it: the scheduler's `http_application`
takes applications at any time, `distributed.dashboard.core.BokehApplication` makes one as Dask
makes its own, and the list of pages that its templates show can be added to.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from distributed import Scheduler, SchedulerPlugin
from tornado.ioloop import IOLoop, PeriodicCallback

from daskxml.cluster.event_log import EventLog
from daskxml.cluster.run_driver import RunDriver
from daskxml.cluster.timeline import Timeline
from daskxml.cluster.worker_plugin import PLUGIN
from daskxml.config import RunConfig
from daskxml.observe.run_view import Course, Event, RunView
from daskxml.observe.wording import event_lines
from daskxml.session.stopping import limits_of

logger = logging.getLogger(__name__)

PAGE = "daskxml"
POLL_MS = 2000  # between readings of events, whether or not a page is open
KEPT = 20  # runs that are over
NO_BOKEH = (
    "the scheduler has no Bokeh, so there is no page to watch the run on: install "
    "'bokeh>=3.1' in its environment and start it again"
)
LINES = 200  # of text


class RunSeries:
    """What the dashboard keeps of one run: its whole course, in bounded memory.

    It reads the run's event log at its own pace, and outlives the run, whose other memory is freed
    when the run is forgotten.

    Parameters
    ----------
    run, config
        Its name and its run file.
    log, timeline
        Its events, released when it ends, and the work of its workers.
    out
        Its directory, as the workers see it; "" if it has none.

    Attributes
    ----------
    view, course
        The state of the run, and what its charts show.
    lines
        The latest events: when (seconds since the epoch), and a line of text.
    version
        Changes with everything that is shown, except for work.
    """

    def __init__(
        self, run: str, config: RunConfig, log: EventLog, timeline: Timeline, out: str = ""
    ) -> None:
        self.run, self.config, self.timeline, self.out = run, config, timeline, out
        self.begun_s = time.time()
        self.view = RunView(limits=limits_of(config))
        self.course = Course(self.title, is_bounded=True)
        self.lines: deque[tuple[float, str]] = deque(maxlen=LINES)
        self.version = 0
        self._log: EventLog | None = log
        self._read = 0

    @property
    def title(self) -> str:
        """The run's name in its run file, or that of its algorithm."""
        return self.config.run.name or self.config.algorithm

    def now_s(self) -> float:
        """Return the time up to which the run is shown: now, or when it ended."""
        return float(self.view.ended["at_s"]) if self.view.ended else time.time()

    def update(self) -> None:
        """Read the new events of the log."""
        if self._log is None:
            return
        for event in self._log.events[self._read :]:
            self._read += 1
            self._apply(event)
        self.view.apply(self._log.status)
        if self.view.is_over:
            self._log = None

    def give_up(self) -> None:
        """End the series of a run that is gone without an ``ended`` event."""
        self.update()
        if not self.view.is_over:
            self._apply({"kind": "ended", "at_s": time.time(), "reason": "given up"})
            self._log = None

    def _apply(self, event: Event) -> None:
        self.version += 1
        self.lines.extend((event["at_s"], line) for line in event_lines(event))
        self.view.apply(event)
        self.course.apply(event, self.view)


class DashboardPlugin(SchedulerPlugin):
    """The series of a scheduler's runs, and its page ``/daskxml``.

    Attributes
    ----------
    series
        By the run's name, oldest first: those under way, and the last that are over.
    site
        The page; None while there is no run to show, or no dashboard.
    """

    name = "daskxml-dashboard"
    idempotent = True  # every client registers it; the first one stays

    async def start(self, scheduler: Scheduler) -> None:
        """Watch every run from now on."""
        self.scheduler, self.runs = scheduler, scheduler.plugins[PLUGIN]
        self.series: dict[str, RunSeries] = {}
        self.site: Site | None = None
        self._polling = PeriodicCallback(self.poll, POLL_MS)
        for driver in self.runs.drivers.values():
            self.watch(driver)
        self.runs.watchers.append(self.watch)

    async def before_close(self) -> None:
        """Take the page away."""
        self._polling.stop()
        if self.watch in self.runs.watchers:
            self.runs.watchers.remove(self.watch)
        if self.site is not None:
            self.site.close()

    def watch(self, driver: RunDriver) -> None:
        """Keep a series of a run, and show it."""
        try:
            log, timeline = driver.event_log, driver.group.timeline
            out = driver.run_dir or ""
            self.series[driver.run] = RunSeries(driver.run, driver.config, log, timeline, out)
            self._polling.start()
            dask_pages = [page for page in self.scheduler.http_application.applications
                          if hasattr(page, "app_paths")]  # fmt: skip
            if self.site is None and dask_pages:
                self.site = Site(self.scheduler, self.series, dask_pages[0].prefix)
            if self.site is not None:
                log.event("page", path=self.site.path)
            elif not has_bokeh():
                log.event("warning", text=NO_BOKEH)
        except Exception:
            logger.exception("run %s cannot be watched", driver.run)

    def poll(self) -> None:
        """Bring the series up to date."""
        try:
            for run, series in self.series.items():
                series.update()
                if not series.view.is_over and run not in self.runs.drivers:
                    series.give_up()
            over = [run for run, series in self.series.items() if series.view.is_over]
            if len(over) == len(self.series):
                self._polling.stop()
            for run in over[:-KEPT]:
                del self.series[run]
        except Exception:
            logger.exception("the records of runs cannot be brought up to date")


class Site:
    """The page of a scheduler that has a dashboard.

    Parameters
    ----------
    scheduler
        Its dashboard is on.
    series
        Every run that there is, by name; read whenever the page is.
    prefix
        What the paths of Dask's pages begin with: "" or like "/user/me".
    """

    def __init__(self, scheduler: Scheduler, series: Mapping[str, RunSeries], prefix: str) -> None:
        from bokeh.core.property.validation import validate
        from distributed.dashboard.core import BokehApplication
        from distributed.dashboard.scheduler import template_variables

        from daskxml.observe.dashboard.page import document

        self._server = scheduler.http_application
        self._variables = template_variables(scheduler)

        def show(scheduler: Scheduler, variables: Mapping[str, Any], doc: Any) -> None:
            validate(True)
            document(series, variables, doc)

        # One switch for all threads, which Dask's pages turn off and back: those of two schedulers
        # of a process can leave it off, and then no page is made any more, but for error 500.
        validate(True)
        self._page = BokehApplication({f"/{PAGE}": show}, scheduler, prefix, self._variables)
        self._page.initialize(IOLoop.current())
        self._page.start()
        self._server.add_application(self._page)
        self._variables["pages"].append(PAGE)
        self.path = f"{prefix}/{PAGE}"

    def close(self) -> None:
        """Take the page and its link away."""
        self._variables["pages"].remove(PAGE)
        self._server.applications.remove(self._page)
        self._page.stop()


def has_bokeh() -> bool:
    """Whether Bokeh can be imported."""
    try:
        import bokeh  # noqa: F401 - it may be installed and broken
    except ImportError:
        return False
    return True
