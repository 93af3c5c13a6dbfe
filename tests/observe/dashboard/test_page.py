"""What one browser is sent of a run, without the browser."""

import pytest
from bokeh.document import Document

from daskxml.observe.dashboard.page import Page, details_html
from harness.run_events import row, series_of, started, trained


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
