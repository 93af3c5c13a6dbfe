"""The page and the table of a search, from its trials alone."""

from __future__ import annotations

import csv
from html.parser import HTMLParser

from daskxml.observe.chart import Chart
from daskxml.observe.report.search import TrialRecord, best_trial, charts, write_search

TRIALS = [
    TrialRecord(
        number=0,
        state="complete",
        settings={"strategy.lr": 0.001, "model.hidden": [8]},
        value=0.5,
        evaluations={1: 0.25, 2: 0.5},
        epochs=2.0,
        seconds=3.5,
    ),
    TrialRecord(
        number=1,
        state="pruned",
        settings={"strategy.lr": 1.0, "model.hidden": [16]},
        value=0.125,
        evaluations={1: 0.125},
    ),
    TrialRecord(
        number=2,
        state="failed",
        settings={"strategy.lr": 0.1, "model.hidden": [8]},
        problem="<the loss> is not finite",
    ),
    TrialRecord(
        number=3,
        state="complete",
        settings={"strategy.lr": 0.01, "model.hidden": [8]},
        value=0.75,
        evaluations={2: 0.75},
    ),
    TrialRecord(number=4, state="running", settings={}),
]


class Texts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.texts.append(" ".join(data.split()))


def test_the_page_tells_the_best_and_all_trials(tmp_path):
    write_search(tmp_path, TRIALS, "P@1")
    page = (tmp_path / "index.html").read_text()
    reader = Texts()
    reader.feed(page)
    assert "The best: trial 3, P@1 0.7500" in reader.texts
    assert "2 complete, 1 pruned, 1 failed, 1 running." in reader.texts
    assert "<the loss> is not finite" in reader.texts
    assert page.count("<svg") == 4  # in their order, curves, two settings
    rows = list(csv.DictReader((tmp_path / "trials.csv").read_text().splitlines()))
    assert [row["P@1"] for row in rows] == ["0.5", "0.125", "", "0.75", ""]
    assert [row["model.hidden"] for row in rows] == ["[8]", "[16]", "[8]", "[8]", ""]
    assert best_trial(TRIALS) is TRIALS[3]


def test_a_search_without_a_complete_trial_has_a_page(tmp_path):
    write_search(tmp_path, TRIALS[4:], "P@1")
    assert "No trial is complete yet." in (tmp_path / "index.html").read_text()
    assert best_trial(TRIALS[4:]) is None


def test_charts_show_values_in_order_and_by_setting():
    order, curves, rate, hidden = charts(TRIALS, ["strategy.lr", "model.hidden"], "P@1")
    points = {line.name: line.points for line in order.series}
    assert points == {
        "complete": ((0.0, 0.5), (3.0, 0.75)),
        "pruned": ((1.0, 0.125),),
        "best so far": ((0.0, 0.5), (3.0, 0.75)),
    }
    assert [line.name for line in curves.series[:2]] == ["trial 3", "trial 0"]
    assert rate.x_label == "strategy.lr, as a power of 10"
    assert rate.series[0].points == ((-3.0, 0.5), (-2.0, 0.75))
    assert hidden.x_label == "model.hidden: 0 is [16], 1 is [8]"
    assert hidden.series[1].points == ((0.0, 0.125),)
    assert not any(line.is_joined for line in rate.series)
    assert all(isinstance(chart, Chart) for chart in (order, curves, rate, hidden))
