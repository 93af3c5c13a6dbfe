"""Runs in the background, and what their dashboard serves."""

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from distributed import Client, Scheduler

import daskxml

WITHIN_S = 30.0


def stop(dask_scheduler: Scheduler, run: str) -> None:
    """End a run at a merge."""
    dask_scheduler.plugins["daskxml"].drivers[run].stop("enough")


class Started:
    """A run in the background.

    Attributes
    ----------
    events
        Its events so far.
    result
        The `daskxml.Run`, once it is over.
    """

    def __init__(self, client: Client, values: dict[str, Any], **arguments: Any) -> None:
        self.client, self.events = client, list[Any]()
        self.result: daskxml.Run | None = None
        arguments |= {"client": client, "on_event": self.events.append}
        self._thread = threading.Thread(target=self._train, args=(values, arguments))
        self._thread.start()

    def _train(self, values: dict[str, Any], arguments: dict[str, Any]) -> None:
        self.result = daskxml.train(values, **arguments)

    def event(self, kind: str) -> Any:
        """Return the first event of a kind, when it comes."""
        return until(lambda: next((it for it in self.events if it["kind"] == kind), None))

    @property
    def name(self) -> str:
        """The run's name."""
        return str(self.event("started")["run"])

    @property
    def url(self) -> str:
        """Where it is watched."""
        return str(self.event("started")["dashboard"])

    @property
    def megabatches(self) -> int:
        """How many are done."""
        return sum(event["kind"] == "megabatch" for event in list(self.events))

    def go_on(self, megabatches: int) -> None:
        """Wait until so many more are done."""
        wanted = self.megabatches + megabatches
        until(lambda: self.megabatches >= wanted)

    def end(self) -> daskxml.Run:
        """Stop it, and return what came out."""
        self.client.run_on_scheduler(stop, run=self.name)
        self._thread.join(WITHIN_S)
        assert self.result is not None
        return self.result


def until(found: Callable[[], Any]) -> Any:
    """Return what a function returns, once that is true."""
    deadline_s = time.monotonic() + WITHIN_S
    while not (value := found()):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return value


def read(url: str) -> str:
    """Return a page."""
    with urllib.request.urlopen(url, timeout=20) as answer:
        text: str = answer.read().decode()
    return text


def is_missing(url: str) -> bool:
    """Whether there is no such page."""
    try:
        read(url)
    except urllib.error.HTTPError as error:
        return error.code == 404
    return False


def updates_sent(dask_scheduler: Scheduler) -> list[int]:
    """Return how many updates each page that is open has been sent."""
    page = dask_scheduler.plugins["daskxml-dashboard"].site._page
    documents = [session.document for session in page.get_sessions("/daskxml")]
    found = [doc.get_model_by_name("headline").tags for doc in documents if doc.roots]
    return [tags[0] if tags else 0 for tags in found]


def forget(dask_scheduler: Scheduler) -> None:
    """Take the page away with its runs, so that the next test has a scheduler like a new one."""
    plugin = dask_scheduler.plugins.get("daskxml-dashboard")
    if plugin is not None:
        plugin.poll()
        plugin.series.clear()
        if plugin.site is not None:
            plugin.site.close()
            plugin.site = None
