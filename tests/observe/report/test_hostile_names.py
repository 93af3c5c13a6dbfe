"""Names that are code are text in a real browser, in a report and in the page of the dashboard."""

import json
from pathlib import Path

import pytest

from daskxml.cluster.event_log import EventLog
from daskxml.observe.dashboard.page import details_html, events_html, headline_html, legend_html
from daskxml.observe.notebook import run_html
from daskxml.observe.report import Comparison, read_runs
from harness.browser import CHROMIUM, Browser, opened_browser
from harness.run_events import series_of, started

EVIL = "<img src=x onerror='window.hacked=1'>"
IS_SHOWN = f"document.body.innerText.includes({json.dumps(EVIL)})"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


def report_page(run_dir: Path, folder: Path) -> Path:
    place = folder / EVIL
    run_dir.rename(place)
    for name, before in (("run.toml", '"first"'), ("history.jsonl", '"1"')):
        path = place / name
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, json.dumps(EVIL)))
    return Comparison.of(read_runs([place])).write(folder / "report")


def dashboard_page(folder: Path) -> Path:
    def add_events(log: EventLog) -> None:
        started(log, [EVIL])
        log.event("worker", event="lost", worker=EVIL)
        log.event("warning", text=EVIL)
        log.state(EVIL)

    series = series_of(add_events, run={"name": EVIL}, data={"train": [EVIL]})
    page = folder / "dashboard.html"
    parts = [
        headline_html(series, [series, series], series.begun_s),
        events_html(series.lines),
        legend_html([EVIL], ["#000000"], series.view.lost, 1),
        details_html(series),
        run_html([], {EVIL + "@1": 0.5}, EVIL, EVIL),
    ]
    page.write_text(f"<meta charset=utf-8><body>{''.join(parts)}</body>")
    return page


def test_names_that_are_code_are_text_in_a_browser(run_dir: Path, tmp_path: Path) -> None:
    pages = [report_page(run_dir, tmp_path), dashboard_page(tmp_path)]
    raw = tmp_path / "raw.html"
    raw.write_text(f"<body>{EVIL}</body>")
    with opened_browser() as browser:
        assert was_run(browser, raw)  # what would be seen of a name that is not escaped
        for page in pages:
            browser.open(page.as_uri())
            browser.wait_for(IS_SHOWN)
            assert browser.evaluate("typeof window.hacked") == "undefined"
            assert browser.evaluate("document.querySelectorAll('img').length") == 0


def was_run(browser: Browser, page: Path) -> bool:
    browser.open(page.as_uri())
    return bool(browser.wait_for("window.hacked === 1"))
