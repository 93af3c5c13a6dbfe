"""A run at a glance, at every stage of it."""

from __future__ import annotations

import pytest
from told import record_of, started, trained

from daskxml.dashboard.headline import headline
from daskxml.dashboard.html import events_html, headline_html, legend_html
from daskxml.runtime.journal import Journal


def test_before_anything_is_known():
    record = record_of(lambda journal: journal.state("loading"), data={"train": ["/d/a.txt"]})
    line = headline(record, record.began_s + 3)
    assert (line.state, line.data, line.strategy) == ("loading", "a.txt", "adaptive-sgd")
    assert (line.progress, line.left_s, line.rows_per_s, line.best) == (0.0, None, 0.0, "")
    assert line.elapsed_s == pytest.approx(3.0)


def test_in_the_middle():
    def tell(journal: Journal) -> None:
        started(journal)
        trained(journal, 20)
        journal.state("merging", epoch=2.5)

    record = record_of(tell, run={"name": "first"}, data={"train": ["/d/a.txt", "/d/b.txt"]})
    line = headline(record, record.row_at_s + 10.0)
    assert (line.title, line.state) == ("first", "merging")
    assert line.data == "a.txt and 1 more: 2,000 rows, 300 features, 60 labels"
    assert (line.progress, line.limit) == (0.25, "epoch 2.50 of 10")
    assert line.left_s == pytest.approx(50.0 * 3)  # 50 s for a quarter
    assert line.rows_per_s == pytest.approx(200 / 1.5)
    assert line.best == "P@1 0.2000 (mega-batch 20)"


@pytest.mark.parametrize(
    ("limits", "progress", "words"),
    [
        ({"megabatches": 40}, 0.5, "mega-batch 20 of 40"),
        ({"minutes": 2}, 1 / 3, "minute 0.7 of 2"),
        ({"epochs": 10, "megabatches": 25}, 0.8, "mega-batch 20 of 25"),
        ({"epochs": 1}, 1.0, "epoch 2.00 of 1"),
        ({"target": 0.9}, None, "epoch 2.00, until P@1 is 0.9"),
    ],
)
def test_the_nearest_limit_counts(limits, progress, words):
    record = record_of(lambda journal: trained(journal, 20), training=limits)
    line = headline(record, record.row_at_s)
    assert line.progress == (progress if progress is None else pytest.approx(progress))
    assert line.limit == words
    assert (line.left_s is None) == (progress is None)


def test_at_the_end():
    def tell(journal: Journal) -> None:
        started(journal)
        trained(journal, 5)
        journal.end_well("interrupt")

    record = record_of(tell)
    line = headline(record, record.ended_s + 3600)
    assert line.state == "ended: interrupt"
    assert line.left_s is None
    assert line.elapsed_s < 60


def test_names_cannot_write_into_the_page():
    evil = "<script>alert(1)</script>"

    def tell(journal: Journal) -> None:
        started(journal, [evil])
        journal.event("worker", event="lost", worker=evil)
        journal.state(evil)

    record = record_of(tell, run={"name": evil}, data={"card": ""})
    line = headline(record, record.began_s)
    told = [
        headline_html(line, [record, record]),
        events_html(record.words),
        legend_html([evil], ["#000000"], record.lost, 1),
    ]
    for text in told:
        assert "<script>" not in text
        assert "&lt;script&gt;" in text


def test_a_target_that_is_chosen_is_the_metric_shown():
    training = {"epochs": 3, "target": 0.5, "target_metric": "P@3"}
    record = record_of(lambda journal: trained(journal, 4), training=training)
    assert headline(record, record.row_at_s).best == "P@3 0.0200 (mega-batch 4)"
