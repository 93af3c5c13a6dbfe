"""Runs of a real cluster, watched: pages that come and go, consumers that are slow, two at once."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bokeh.client import ClientSession, pull_session
from distributed import Client, Scheduler

import daskxml
from daskxml.cluster.scheduler_plugin import RunSchedulerPlugin
from daskxml.observe.dashboard import DashboardPlugin
from daskxml.observe.dashboard.plugin import KEPT
from harness.watched_run import Started, forget, is_missing, read, until, updates_sent

Start = Callable[..., Started]
NO_BOKEH = 'raise ImportError("there is no Bokeh here")\n'


def confirm(session: ClientSession, update: int) -> None:
    """Tell that an update has been drawn."""
    session.document.get_model_by_name("events").tags = [update]
    session.force_roundtrip()


def prefixes(dask_scheduler: Scheduler) -> set[str]:
    return {name for name in dask_scheduler.task_prefixes if name.startswith("daskxml")}


@pytest.mark.slow
def test_two_runs_are_watched_at_once_and_stay_readable(client: Client, start: Start) -> None:
    link = str(client.dashboard_link)
    assert is_missing(link.replace("/status", "/daskxml"))
    assert 'href="daskxml"' not in read(link)
    first, second = start(run={"name": "one"}), start(run={"name": "two"})
    assert first.url == second.url == link.replace("/status", "/daskxml")
    client.register_plugin(DashboardPlugin())  # once more: the first one stays
    assert read(link).count('href="daskxml"') == 1
    first.go_on(3)
    second.go_on(3)
    for started in (first, second):
        assert read(f"{started.url}?run={started.name}")
    assert first.end().reason == "enough"
    assert second.end().reason == "enough"

    def states(dask_scheduler: Scheduler) -> dict[str, tuple[str, int]]:
        plugin = dask_scheduler.plugins["daskxml-dashboard"]
        plugin.poll()
        return {run: (it.view.state, len(it.course.points)) for run, it in plugin.series.items()}

    ended = {run: ending for run, (ending, points) in client.run_on_scheduler(states).items()}
    assert ended == dict.fromkeys((first.name, second.name), "ended: enough")
    assert 'href="daskxml"' in read(link)  # a run that is over is still to be seen
    assert "daskxml-leases" in client.run_on_scheduler(prefixes)
    assert "daskxml-eval" in client.run_on_scheduler(prefixes)
    client.run_on_scheduler(forget)  # as when the scheduler ends
    assert is_missing(link.replace("/status", "/daskxml"))
    assert 'href="daskxml"' not in read(link)


@pytest.mark.slow
def test_a_page_that_is_slow_or_closed_gets_nothing_and_the_run_goes_on(
    client: Client, start: Start
) -> None:
    started = start()
    started.go_on(1)
    slow, closed = pull_session(url=started.url), pull_session(url=started.url)
    for session in (slow, closed):  # as a browser does that shows the page
        confirm(session, 0)
    until(lambda: client.run_on_scheduler(updates_sent) == [1, 1])
    closed.close()
    started.go_on(10)
    assert set(client.run_on_scheduler(updates_sent)) == {1}  # the first was never confirmed
    confirm(slow, 1)
    until(lambda: max(client.run_on_scheduler(updates_sent)) == 2)
    slow.close()
    run = started.end()
    assert [row["megabatch"] for row in run.history] == list(range(1, len(run.history) + 1))


@pytest.mark.slow
def test_a_scheduler_without_bokeh(
    data: dict[str, Path], values: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "bokeh").mkdir()
    (tmp_path / "bokeh" / "__init__.py").write_text(NO_BOKEH)
    package = Path(daskxml.__file__).parents[1]
    paths = {"PYTHONPATH": f"{tmp_path}:{package}:{os.environ.get('PYTHONPATH', '')}"}
    place, file = ["--host", "127.0.0.1", "--port", "0"], tmp_path / "scheduler.json"
    dashboard = ["--dashboard-address", "127.0.0.1:0", "--scheduler-file", str(file)]
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", *place, *dashboard]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    scheduler = subprocess.Popen(command, env=os.environ | paths, **quiet)  # type: ignore[call-overload]
    worker = None
    try:
        until(file.exists)
        with Client(scheduler_file=str(file)) as client:
            worker_command = [sys.executable, "-m", "distributed.cli.dask_worker", *place[:2]]
            options = ["--scheduler-file", str(file), "--no-dashboard", "--nthreads", "1"]
            worker = subprocess.Popen([*worker_command, *options], cwd=tmp_path, **quiet)  # type: ignore[call-overload]
            values |= {"training": {"megabatches": 3}}
            events: list[Any] = []
            run = daskxml.train(values, client=client, train=data["train"], on_event=events.append)
        assert len(run.history) == 3
        warnings = [event["text"] for event in events if event["kind"] == "warning"]
        (warning,) = warnings
        assert "no Bokeh" in warning
        assert "install 'bokeh>=3.1'" in warning
        assert "page" not in [event["kind"] for event in events]
    finally:
        for process in filter(None, (worker, scheduler)):
            process.terminate()
            process.wait(20)


def test_only_the_last_runs_that_are_over_are_kept(client: Client) -> None:
    client.register_plugin(RunSchedulerPlugin())
    client.register_plugin(DashboardPlugin())

    def many(dask_scheduler: Scheduler, count: int) -> tuple[list[str], bool]:
        from types import SimpleNamespace

        from daskxml.cluster.event_log import EventLog
        from daskxml.cluster.timeline import Timeline
        from daskxml.config import load_run_config

        plugin = dask_scheduler.plugins["daskxml-dashboard"]
        config = load_run_config({"training": {"epochs": 1}})
        for number in range(count):
            event_log, group = EventLog(), SimpleNamespace(timeline=Timeline(), hands={})
            run = SimpleNamespace(run=f"r{number}", config=config, event_log=event_log, group=group)
            run.run_dir, run.stop = None, event_log.end_well
            plugin.runs.drivers[run.run] = run
            plugin.watch(run)
            if number % 2:
                event_log.end_well("epochs")
            del plugin.runs.drivers[run.run]  # half of them without a word
        plugin.poll()
        return list(plugin.series), plugin._polling.is_running()

    left, is_polling = client.run_on_scheduler(many, count=KEPT + 7)
    assert left == [f"r{number}" for number in range(7, KEPT + 7)]
    assert not is_polling  # no run is under way
    client.run_on_scheduler(forget)


def loops() -> int:
    """Return how many of Dask's event loops run in this process."""
    return sum(thread.name == "IO loop" for thread in threading.enumerate())


def test_a_local_cluster_behind_a_prefix(data: dict[str, Path], values: dict[str, Any]) -> None:
    values |= {"training": {"megabatches": 6}, "run": {"name": "behind"}}
    values["cluster"] |= {"workers": 1, "dashboard_prefix": "/user/me/"}
    pages: list[str] = []

    def read_pages(event: Any) -> None:
        if event["kind"] == "started":
            link = event["dashboard"]
            assert link.endswith("/user/me/daskxml")
            pages.extend([read(link), read(link.replace("daskxml", "status"))])
            script = re.search(r'src="(/user/me/static/js/bokeh[^"]*)"', pages[0])
            assert script is not None
            pages.append(read(link.replace("/user/me/daskxml", script[1])))

    before = loops()
    daskxml.train(values, train=data["train"], on_event=read_pages, dashboard=True)
    assert loops() == before  # the cluster's own ended with it, and so did what was shown there
    page, status, script = pages
    assert 'href="daskxml"' in page
    assert 'href="daskxml"' in status
    assert "Bokeh" in script
    assert not re.findall(r'(?:src|href)="(?:https?:)?//(?!dask.org|docs.dask.org)', page)
