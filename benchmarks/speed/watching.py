"""Watching: what an open page, and a scrape every second, cost the scheduler during a run.

Four real workers whose batches are sleeps, so that the load on the scheduler is the same whatever
else the machine does, run Adaptive SGD through the real runtime. The CPU time of the scheduler's
process is read from /proc in turns with nobody watching, with the page open in Chromium, and with
``/metrics`` scraped every second; reported are medians, as shares of a core, and differences to
nobody watching.

    python benchmarks/speed/watching.py [--window 30] [--rounds 3]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
from distributed import Client, Scheduler

import daskxml
import dispatch
from daskxml.data.synthetic import SyntheticSpec, write_xml
from dispatch import BATCH_ROWS, SPEEDS, sleep_through_batches

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import write_result

SETTLE_S = 5.0
SETTINGS = {
    "strategy": {"batch_max": BATCH_ROWS, "batch_min": BATCH_ROWS, "megabatch_batches": 400},
    "training": {"megabatches": 1_000_000},
    "evaluation": {"every": 5},
}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


@contextlib.contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command as long as the block goes on."""
    null = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=null, stderr=null) as started:
        try:
            yield started
        finally:
            started.terminate()


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[tuple[Client, int]]:
    """Start a scheduler in a process of its own, and workers; give a client and its process id."""
    file, local = str(folder / "scheduler.json"), ("--host", "127.0.0.1")
    start = (sys.executable, "-m", "distributed.cli.dask_scheduler", *local, "--port", "0")
    options = ("--scheduler-file", file, "--dashboard-address", "127.0.0.1:0")
    work = (sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", file, *local)
    quiet = ("--no-dashboard", "--nthreads", "1", "--local-directory", str(folder))
    with contextlib.ExitStack() as stack:
        scheduler = stack.enter_context(process(*start, *options))
        for number in range(len(SPEEDS)):
            stack.enter_context(process(*work, *quiet, "--name", str(number)))
        client = stack.enter_context(Client(scheduler_file=file, timeout="30s"))
        client.wait_for_workers(len(SPEEDS))
        yield client, scheduler.pid


@contextlib.contextmanager
def running(client: Client, folder: Path) -> Iterator[str]:
    """Train in the background as long as the block goes on; give the page's address."""
    spec = SyntheticSpec(rows=5000, test_rows=100, features=200, labels=50, seed=1)
    train, test = (write_xml(folder / f"{part}.txt", spec, part) for part in ("train", "test"))
    cloudpickle.register_pickle_by_value(dispatch)  # which the workers cannot import
    client.run(sleep_through_batches, {str(i): speed for i, speed in enumerate(SPEEDS)})
    events: list[Any] = []
    begun = threading.Event()

    def record(event: Any) -> None:
        events.append(event)
        if event["kind"] == "megabatch":
            begun.set()

    where = {"client": client, "train": train, "test": test, "on_event": record}
    thread = threading.Thread(target=lambda: daskxml.train(SETTINGS, **where))
    thread.start()
    begun.wait(300.0)
    try:
        yield next(event["dashboard"] for event in events if event["kind"] == "started")
    finally:
        client.run_on_scheduler(stop)
        thread.join()


def stop(dask_scheduler: Scheduler) -> None:
    """End every run."""
    for driver in dask_scheduler.plugins["daskxml"].drivers.values():
        driver.stop("measured")


def updates_sent(dask_scheduler: Scheduler) -> int:
    """Return how many updates the open pages have been sent."""
    page = dask_scheduler.plugins["daskxml-dashboard"].site._page
    documents = [session.document for session in page.get_sessions("/daskxml")]
    found = [list(it.get_model_by_name("headline").tags) for it in documents if it.roots]
    return sum(tags[0] for tags in found if tags)


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def share(pid: int, window_s: float, each_second: Callable[[], object]) -> float:
    """Return the share of a core that a process takes for a while."""
    time.sleep(SETTLE_S)
    began_s, before_s = time.monotonic(), cpu_s(pid)
    while (spent_s := time.monotonic() - began_s) < window_s:
        each_second()
        time.sleep(min(1.0, window_s - spent_s))
    return (cpu_s(pid) - before_s) / (time.monotonic() - began_s)


@contextlib.contextmanager
def opened(url: str, folder: Path) -> Iterator[None]:
    """Keep a page open in Chromium."""
    assert CHROMIUM is not None
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
    places = (f"--user-data-dir={folder / 'browser'}", "--remote-debugging-port=0")
    with process(CHROMIUM, *options, *places, "--window-size=1440,2000", url):
        yield


def measure(window_s: float, rounds: int) -> dict[str, list[float]]:
    """Return the shares of a core for each way of watching; and updates a second of the page."""
    found: dict[str, list[float]] = {"nobody": [], "page": [], "scrape": [], "updates_per_s": []}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with cluster(folder) as (client, pid), running(client, folder) as url:
            metrics = url.removesuffix("daskxml") + "metrics"
            for _ in range(rounds):
                found["nobody"].append(share(pid, window_s, lambda: None))
                scrape = share(pid, window_s, lambda: urllib.request.urlopen(metrics).read())
                found["scrape"].append(scrape)
                with opened(url, folder):
                    time.sleep(SETTLE_S)  # the making of the document is another matter
                    before, began_s = client.run_on_scheduler(updates_sent), time.monotonic()
                    found["page"].append(share(pid, window_s, lambda: None))
                    sent = client.run_on_scheduler(updates_sent) - before
                    found["updates_per_s"].append(sent / (time.monotonic() - began_s))
    return found


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--window", type=float, default=30.0, help="seconds of a measurement")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if CHROMIUM is None:
        sys.exit("no Chromium: install it to measure what an open page costs")
    found = measure(options.window, options.rounds)
    nobody = statistics.median(found["nobody"])
    rows = [
        {
            "watched by": way,
            "scheduler CPU": statistics.median(found[way]),
            "more than nobody": statistics.median(found[way]) - nobody,
            "updates/s": statistics.median(found["updates_per_s"]) if way == "page" else None,
        }
        for way in ("nobody", "page", "scrape")
    ]
    write_result("watching", rows, window_s=options.window, rounds=options.rounds, measured=found)


if __name__ == "__main__":
    main()
