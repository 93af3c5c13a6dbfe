"""A run at a glance, at every stage of it."""

import re

import pytest
from bokeh.document import Document

from daskxml.cluster.event_log import EventLog
from daskxml.observe.dashboard.page import (
    Page,
    best_label,
    data_label,
    details_html,
    events_html,
    headline_html,
    legend_html,
)
from daskxml.observe.wording import limit_label
from harness.run_events import row, series_of, started, trained


def headline(series, now_s):
    """Return the texts of a headline, in their order."""
    return re.findall(r"[^<>]+(?=<)", headline_html(series, [series], now_s))


def test_before_anything_is_known():
    series = series_of(lambda log: log.state("loading"), data={"train": ["/d/a.txt"]})
    assert (series.view.state, data_label(series), best_label(series)) == ("loading", "a.txt", "")
    assert (series.view.progress(), series.view.left_s(series.begun_s + 3)) == (0.0, None)
    texts = headline(series, series.begun_s + 3)
    assert "adaptive-sgd" in texts
    assert {"epoch 0.00 of 10", "3 s", "0 rows/s", "not evaluated yet"} <= set(texts)


def test_in_the_middle():
    def add_events(log: EventLog) -> None:
        started(log)
        trained(log, 20)
        log.state("merging", epoch=2.5)

    series = series_of(add_events, run={"name": "first"}, data={"train": ["/d/a.txt", "/d/b.txt"]})
    now_s = series.view.row_at_s + 10.0
    assert (series.title, series.view.state) == ("first", "merging")
    assert data_label(series) == "a.txt and 1 more: 2,000 rows, 300 features, 60 labels"
    assert series.view.progress() == 0.25
    assert series.view.left_s(now_s) == pytest.approx(50.0 * 3)  # 50 s for a quarter
    assert best_label(series) == "P@1 0.2000 (mega-batch 20)"
    series.view.row = {**series.view.row, "pieces": 3}
    assert best_label(series) == "P@1 0.2000 (tree 20)"
    texts = headline(series, now_s)
    assert {"epoch 2.50 of 10, about 2 min 30 s left", f"{200 / 1.5:,.0f} rows/s"} <= set(texts)


@pytest.mark.parametrize(
    ("limits", "progress", "label"),
    [
        ({"megabatches": 40}, 0.5, "mega-batch 20 of 40"),
        ({"minutes": 2}, 1 / 4, "minute 0.5 of 2"),
        ({"epochs": 10, "megabatches": 25}, 0.8, "mega-batch 20 of 25"),
        ({"epochs": 1}, 1.0, "epoch 2.00 of 1"),
        ({"target": 0.9}, None, "epoch 2.00, until P@1 is 0.9"),
    ],
)
def test_the_nearest_limit_counts(limits, progress, label):
    series = series_of(lambda log: trained(log, 20), training=limits)
    now_s = series.view.row_at_s
    found = series.view.progress()
    assert found == (progress if progress is None else pytest.approx(progress))
    assert limit_label(series.view) == label
    assert (series.view.left_s(now_s) is None) == (progress is None)


def test_at_the_end():
    def add_events(log: EventLog) -> None:
        started(log)
        trained(log, 5)
        log.end_well("interrupt")

    series = series_of(add_events)
    assert series.view.state == "ended: interrupt"
    assert series.view.left_s(series.now_s()) is None
    assert series.now_s() - series.begun_s < 60


def test_names_cannot_write_into_the_page():
    evil = "<script>alert(1)<script>"

    def add_events(log: EventLog) -> None:
        started(log, [evil])
        log.event("worker", event="lost", worker=evil)
        log.state(evil)

    series = series_of(add_events, run={"name": evil}, data={"card": ""})
    texts = [
        headline_html(series, [series, series], series.begun_s),
        events_html(series.lines),
        legend_html([evil], ["#000000"], series.view.lost, 1),
    ]
    for text in texts:
        assert "<script>" not in text
        assert "&lt;script&gt;" in text


def test_a_target_that_is_chosen_is_the_metric_shown():
    training = {"epochs": 3, "target": 0.5, "target_metric": "P@3"}
    series = series_of(lambda log: trained(log, 4), training=training)
    assert best_label(series) == "P@3 0.0200 (mega-batch 4)"


# --------------------------------------------------- what one browser is sent


def shown(series, *others):
    """Return the page of a run once the browser has confirmed that it is there."""
    every = {it.run: it for it in (*others, series)}
    page = Page(every, Document(), series.run)
    page.events.tags = [0]
    return page


def charts(page):
    """Return the names of the charts that are drawn."""
    return {name for name, chart in page.charts.items() if chart.figure.visible}


def after(megabatches, **sections):
    def add_events(log):
        started(log)
        trained(log, megabatches)

    return series_of(add_events, **sections)


def test_nothing_is_drawn_before_there_are_two_mega_batches():
    page = shown(series_of(lambda log: log.state("loading")))
    assert charts(page) == charts(shown(after(1))) == set()
    assert "loading" in page.headline.text


def test_lines_are_drawn_and_zoomed_together():
    page = shown(after(4))
    learning = {"metric_time", "metric_megabatches", "loss_time", "loss_megabatches"}
    assert learning | {"batch_rows"} <= charts(page)

    found = {name: chart.figure.x_range for name, chart in page.charts.items()}
    assert found["metric_megabatches"] is found["loss_megabatches"]
    assert found["metric_megabatches"] is found["weight"]
    assert found["metric_time"] is found["loss_time"]
    assert found["metric_time"] is not found["metric_megabatches"]

    scores, losses = (page.charts[name] for name in ("metric_megabatches", "loss_megabatches"))
    x, y, counts, names, _ = scores.lines.tags
    assert (names, counts) == (["P@1", "P@3", "P@5"], [4, 4, 0])
    assert x.tolist() == [1.0, 2.0, 3.0, 4.0] * 2
    assert y[:4].tolist() == pytest.approx([0.01, 0.02, 0.03, 0.04])
    assert losses.lines.tags[1].tolist() == pytest.approx([10.0, 5.0, 10 / 3, 2.5])


def test_workers_that_change_are_drawn():
    def add_events(log):
        started(log)
        trained(log, 3)
        log.event("megabatch", row=row(4, ["0"]) | {"workers": {"0": row(4)["workers"]["1"]}})

    assert "batch_rows" in charts(shown(series_of(add_events)))


def test_files_stages_and_settings():
    stage = {"name": "read", "outcome": "done", "problem": "", "rows": 1500, "nbytes": 3 << 20,
             "partitions": 2, "seconds": 0.5}  # fmt: skip

    def add_events(log):
        log.event("stages", stages=[stage])

    series = series_of(add_events, data={"train": ["/d/<a>.txt"], "test": ["s3://me:pass@d/b"]})
    series.out = "/runs/first"
    text = details_html(series)
    for piece in ("/runs/first", "/d/&lt;a&gt;.txt", "s3://d/b", "1,500", "epochs = 10.0"):
        assert piece in text
    assert "<a>" not in text
    assert "me:pass" not in text
