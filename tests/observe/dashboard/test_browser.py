"""The page in a real browser, during a real run that loses a worker."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client

from harness.browser import CHROMIUM, Browser, opened_browser
from harness.watched_run import Started, until, updates_sent

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

CHARTS = (
    "metric_time", "metric_megabatches", "loss_time", "loss_megabatches", "sent_mib", "batch_rows",
    "updates", "lr", "rows_per_s", "busy", "weight", "timeline",
)  # fmt: skip
# How many points a chart draws: of its lines, or of its bars.
POINTS = """
(name => {
  const sources = Bokeh.documents[0].get_model_by_name(name).renderers.map((it) => it.data_source)
  return Math.max(...sources.map((source) => source.data.xs
    ? source.data.xs.reduce((sum, line) => sum + line.length, 0) : source.get_length()))
})("NAME")
"""
TEXT = "Bokeh.documents[0].get_model_by_name('NAME').text"
# The button in the page, or null; and whether a root of the page takes any room.
HEIGHT = """
(name => Bokeh.index.find_one_by_id(Bokeh.documents[0].get_model_by_name(name).id)
  .el.getBoundingClientRect().height)("NAME")
"""
# Pixels of a chart that are not empty, which is what one sees.
INK = """
(name => {
  const view = Bokeh.index.find_one_by_id(Bokeh.documents[0].get_model_by_name(name).id)
  const canvas = view.canvas_view.primary.canvas
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data
  return pixels.filter((value, place) => place % 4 == 3 && value > 0).length
})("NAME")
"""


@pytest.fixture
def browser() -> Iterator[Browser]:
    with opened_browser() as opened:
        yield opened


def points(browser: Browser, name: str) -> Any:
    return browser.wait_for(POINTS.replace("NAME", name))


def wait_for_words(browser: Browser, name: str, words: str) -> None:
    browser.wait_for(f"{TEXT.replace('NAME', name)}.includes({words!r})", within_s=60)


@pytest.mark.slow
def test_a_run_is_watched_that_loses_a_worker(
    browser: Browser, client: Client, start: Callable[..., Started], tmp_path: Path
) -> None:
    started = start(run={"name": "watched"})
    started.go_on(3)
    browser.open(started.url, width=1440)
    for name in CHARTS:
        assert points(browser, name) > 0, name
    for name in ("metric_time", "loss_megabatches", "rows_per_s", "timeline"):
        assert browser.wait_for(INK.replace("NAME", name)) > 500, name
    assert browser.evaluate("document.querySelector('.navbar a[href=daskxml]') !== null")
    wait_for_words(browser, "headline", "watched")
    wait_for_words(browser, "headline", "rows/s")

    victim = next(iter(client.run(os.getpid).values()))
    os.kill(victim, signal.SIGKILL)
    wait_for_words(browser, "events", " lost")
    wait_for_words(browser, "events", "joined")  # it is started again

    stall(browser, client, started)
    shown = points(browser, "loss_time")
    browser.wait_for(f"{POINTS.replace('NAME', 'loss_time')} > {shown}")  # it goes on

    started.end()
    wait_for_words(browser, "headline", "ended: enough")
    browser.open(started.url, width=800, dark=True)  # opened late: the whole story is there
    wait_for_words(browser, "events", " lost")
    assert points(browser, "loss_time") > 3
    browser.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 20_000
    assert browser.problems == []


def stall(browser: Browser, client: Client, started: Started) -> None:
    """Stop the browser for a while: the run continues, and nothing is piled up for the page."""
    processes = psutil.Process(browser.pid).children(recursive=True)
    for process in processes:
        process.suspend()
    sent = max(client.run_on_scheduler(updates_sent))
    started.go_on(8)
    assert max(client.run_on_scheduler(updates_sent)) <= sent + 1
    for process in processes:
        process.resume()
    until(lambda: max(client.run_on_scheduler(updates_sent)) > sent + 1)


@pytest.mark.slow
def test_a_page_follows_the_newest_run_unless_one_is_asked_for(
    browser: Browser, start: Callable[..., Started]
) -> None:
    first = start(run={"name": "first"})
    first.go_on(1)
    browser.open(f"{first.url}?run=nonsense")
    wait_for_words(browser, "headline", "first")
    second = start(run={"name": "second"})  # the page that follows the newest run goes over to it
    wait_for_words(browser, "headline", "second")
    browser.open(f"{first.url}?run={first.name}")
    wait_for_words(browser, "headline", "first")
    wait_for_words(browser, "headline", f"?run={second.name}")
    assert browser.problems == []


@pytest.mark.slow
def test_one_mega_batch_is_no_line_and_three_are_charts(
    browser: Browser, start: Callable[..., Started]
) -> None:
    evil = "<img src=x onerror='window.hacked=1'>"
    one = start(training={"megabatches": 1}, run={"name": evil})
    browser.open(one.url)
    wait_for_words(browser, "headline", "ended: megabatches")
    wait_for_words(browser, "headline", "P@1")
    for name in ("metric_time", "loss_time", "batch_rows", "sent_mib"):
        assert browser.evaluate(HEIGHT.replace("NAME", name)) == 0, name
    assert browser.evaluate("typeof window.hacked") == "undefined"

    two = start()
    two.go_on(3)
    for name in ("metric_time", "loss_time", "timeline"):
        assert browser.wait_for(INK.replace("NAME", name), within_s=60) > 500, name
    assert browser.problems == []
