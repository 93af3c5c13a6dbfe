"""The scheduler plugin that watches runs: it keeps a series of each, and shows them.

It works beside `daskxml.cluster.scheduler_plugin.RunSchedulerPlugin`, which only calls it for every
run that starts. All its errors are logged, and no run is affected.

The page ``/daskxml`` is in the HTTP server of Dask's dashboard, with a link in its navigation bar.
Dask has no interface for further pages. What is used of it: the scheduler's `http_application`
takes applications at any time, `distributed.dashboard.core.BokehApplication` makes one as Dask
makes its own, and the list of pages that its templates show can be added to.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from distributed import Scheduler, SchedulerPlugin
from tornado.ioloop import IOLoop, PeriodicCallback

from daskxml.cluster.run_driver import RunDriver
from daskxml.cluster.worker_plugin import PLUGIN
from daskxml.observe.dashboard.prometheus import export, withdraw
from daskxml.observe.dashboard.series import RunSeries
from daskxml.observe.figures import MemorySample

logger = logging.getLogger(__name__)

PAGE = "daskxml"
POLL_MS = 2000  # between readings of events and of memory, whether or not a page is open
KEPT = 20  # runs that are over
STOPPED = "stop"  # the reason that a run has ended, as by ``daskxml stop``
NO_BOKEH = (
    "the scheduler has no Bokeh, so there is no page to watch the run on: install "
    "'bokeh>=3.1' in its environment and start it again"
)


class DashboardPlugin(SchedulerPlugin):
    """The series of a scheduler's runs, its page ``/daskxml``, and its figures in ``/metrics``.

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
        self._drivers: dict[str, RunDriver] = {}  # of runs under way
        self._polling = PeriodicCallback(self.poll, POLL_MS)
        export(self)
        for driver in self.runs.drivers.values():
            self.watch(driver)
        self.runs.watchers.append(self.watch)

    async def before_close(self) -> None:
        """Take the page away, and the figures."""
        self._polling.stop()
        if self.watch in self.runs.watchers:
            self.runs.watchers.remove(self.watch)
        withdraw(self)
        if self.site is not None:
            self.site.close()

    def watch(self, driver: RunDriver) -> None:
        """Keep a series of a run, and show it."""
        try:
            log, timeline = driver.event_log, driver.group.timeline
            control = driver.config.dashboard.control
            self.series[driver.run] = RunSeries(
                driver.run, driver.config, log, timeline, driver.run_dir or "",
                functools.partial(driver.stop, STOPPED) if control else None,
            )  # fmt: skip
            self._drivers[driver.run] = driver
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
            self._poll()
        except Exception:
            logger.exception("the records of runs cannot be brought up to date")

    def _poll(self) -> None:
        for run, driver in list(self._drivers.items()):
            series = self.series[run]
            series.update()
            if not series.view.is_over and run not in self.runs.drivers:
                series.give_up()
            if series.view.is_over:
                del self._drivers[run]
            elif driver.group.workers:
                series.memory.append(self._measure(driver))
        if not self._drivers:
            self._polling.stop()
        over = [run for run, series in self.series.items() if series.view.is_over]
        for run in over[:-KEPT]:
            del self.series[run]

    def _measure(self, driver: RunDriver) -> MemorySample:
        """Return what the run's workers use, from their last heartbeats."""
        workers = list(driver.group.workers.values())
        states = [self.scheduler.workers.get(worker.address) for worker in workers]
        metrics = [state.metrics if state is not None else {} for state in states]
        sent = driver.group.timeline.sent_bytes
        values = [
            (used.get("memory", math.nan), used.get("gpu_memory_used", math.nan), sent[worker.name])
            for used, worker in zip(metrics, workers, strict=True)
        ]
        names = tuple(worker.name for worker in workers)
        return MemorySample(time.time(), names, np.array(values, dtype=np.float64))


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
