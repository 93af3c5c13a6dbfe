"""The scheduler plugin that watches runs: it keeps their records, and shows them.

It stands beside `daskxml.runtime.scheduler.RunsPlugin`, which knows nothing of it but that it wants
to hear of runs that start. Whatever goes wrong in here is logged, and no run notices.
"""

from __future__ import annotations

import logging
import math
import time

import numpy as np
from distributed import Client, Scheduler, SchedulerPlugin
from tornado.ioloop import PeriodicCallback

from daskxml.dashboard.prometheus import export, withdraw
from daskxml.dashboard.record import Memory, Record
from daskxml.dashboard.site import Site, explain_missing, has_dashboard
from daskxml.dashboard.task_stream import draw_work
from daskxml.runtime.activity import Work
from daskxml.runtime.driver import Driver
from daskxml.runtime.seats import PLUGIN

logger = logging.getLogger(__name__)

LOOK_MS = 2000  # between looks at runs and at memory, whether or not anybody watches
KEPT = 20  # runs that are over


def dismiss(client: Client, run: str | None = None) -> list[str]:
    """Let a cluster's dashboard forget a run that is over, or all that are.

    The page and its link go with the last run; a run under way stays.

    Parameters
    ----------
    client
        A synchronous client of the cluster.
    run
        Its name, as the page shows it; None for all.

    Returns
    -------
    The names of the runs that are forgotten.
    """
    return list(client.sync(client.scheduler.daskxml_dismiss, run=run))


class DashboardPlugin(SchedulerPlugin):
    """The records of a scheduler's runs, its page ``/daskxml``, and its figures in ``/metrics``.

    Attributes
    ----------
    records
        By the run's name, oldest first: those under way, and the last that are over.
    site
        The page; None while there is no run to show, or no dashboard.
    """

    name = "daskxml-dashboard"
    idempotent = True  # every client registers it; the first one stays

    async def start(self, scheduler: Scheduler) -> None:
        """Watch every run from now on."""
        self.scheduler, self.runs = scheduler, scheduler.plugins[PLUGIN]
        self.records: dict[str, Record] = {}
        self.site: Site | None = None
        self._drivers: dict[str, Driver] = {}  # of runs under way
        self._looking = PeriodicCallback(self.look, LOOK_MS)
        scheduler.handlers["daskxml_dismiss"] = self.dismiss
        export(self)
        for driver in self.runs.drivers.values():
            self.watch(driver)
        self.runs.watchers.append(self.watch)

    async def before_close(self) -> None:
        """Take the page away, and the figures."""
        self._looking.stop()
        if self.watch in self.runs.watchers:
            self.runs.watchers.remove(self.watch)
        withdraw(self)
        self._take_down()

    async def dismiss(self, run: str | None = None) -> list[str]:
        """Forget a run that is over, or all of them; return which. The page goes with the last."""
        self._look()
        over = [name for name, record in self.records.items() if record.is_over]
        gone = [name for name in over if run in (None, name)]
        for name in gone:
            del self.records[name]
        if not self.records:
            self._take_down()
        return gone

    def _take_down(self) -> None:
        if self.site is not None:
            self.site.close()
            self.site = None

    def watch(self, driver: Driver) -> None:
        """Keep a record of a run, and show it."""
        try:
            record = Record(driver.run, driver.config, driver.journal, driver.crew.activity)
            self.records[driver.run], self._drivers[driver.run] = record, driver
            driver.crew.activity.watchers.append(lambda work: self._draw(driver, work))
            self._looking.start()
            self._show(driver)
        except Exception:
            logger.exception("run %s cannot be watched", driver.run)

    def _draw(self, driver: Driver, work: Work) -> None:
        try:
            hand = driver.crew.hands.get(work.worker)
            if hand is not None:
                draw_work(self.scheduler, driver.run, hand.address, work)
        except Exception:
            logger.exception("Dask's task stream does not show all of run %s", driver.run)

    def _show(self, driver: Driver) -> None:
        if self.site is None and has_dashboard(self.scheduler):
            self.site = Site(self.scheduler, self.records)
        if self.site is not None:
            driver.journal.event("page", path=self.site.path)
        elif missing := explain_missing():
            driver.journal.event("warning", text=missing)

    def look(self) -> None:
        """Bring the records up to date."""
        try:
            self._look()
        except Exception:
            logger.exception("the records of runs cannot be brought up to date")

    def _look(self) -> None:
        for run, driver in list(self._drivers.items()):
            record = self.records[run]
            record.update()
            if not record.is_over and run not in self.runs.drivers:
                record.give_up()
            if record.is_over:
                del self._drivers[run]
            elif driver.crew.hands:
                record.sample(self._measure(driver))
        if not self._drivers:
            self._looking.stop()
        over = [run for run, record in self.records.items() if record.is_over]
        for run in over[:-KEPT]:
            del self.records[run]

    def _measure(self, driver: Driver) -> Memory:
        """Return what the run's workers use, as their last heartbeats told."""
        hands = list(driver.crew.hands.values())
        states = [self.scheduler.workers.get(hand.address) for hand in hands]
        told = [state.metrics if state is not None else {} for state in states]
        sent = driver.crew.activity.sent_bytes
        return Memory(
            at_s=time.time(),
            workers=tuple(hand.name for hand in hands),
            host_bytes=np.array([it.get("memory", math.nan) for it in told], dtype=np.float64),
            device_bytes=np.array(
                [it.get("gpu_memory_used", math.nan) for it in told], dtype=np.float64
            ),
            sent_bytes=np.array([sent[hand.name] for hand in hands], dtype=np.float64),
        )
