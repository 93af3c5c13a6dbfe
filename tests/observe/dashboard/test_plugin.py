"""The series of a run: its whole course, in bounded memory."""

import pickle

import numpy as np
import pytest

from daskxml.cluster.event_log import EventLog
from daskxml.cluster.timeline import Work
from daskxml.core.errors import ClusterError
from daskxml.observe.dashboard.drawing import DRAWN_WORK, work_columns
from daskxml.observe.dashboard.page import (
    DRAWN_WORKERS,
    LONGEST_S,
    page_charts,
    window_s,
    worker_names,
)
from daskxml.observe.dashboard.plugin import LINES
from daskxml.observe.run_view import KEPT_WORKERS, POINTS, WORKERS
from harness.run_events import row, series_of, started, trained


def texts(series):
    return [text for _, text in series.lines]


def test_a_run_becomes_lines_of_text_and_series():
    def add_events(event_log: EventLog) -> None:
        started(event_log)
        trained(event_log, 3)
        event_log.event("worker", event="lost", worker="1")
        event = {"kind": "lost", "worker": "1", "after_s": 0.1, "rows_returned": 1234}
        limited = {"kind": "memory", "worker": "0", "after_s": 0.2, "batch_rows": 16}
        events = [limited, event]
        event_log.event("megabatch", row=row(4, ["0"], events=events))
        event_log.event("worker", event="joined", worker="1")
        event_log.event("warning", text="merge 5 is tried again: broken pipe")
        event_log.state("training", epoch=0.45)

    series = series_of(add_events)
    assert texts(series) == [
        "2,000 rows and 200 test rows, 300 features, 60 labels, 5,000 parameters",
        "worker 1 lost",
        "mega-batch 4, after 0.2 s: worker 0 memory, batch_rows 16",
        "mega-batch 4, after 0.1 s: worker 1 lost, 1,234 rows given to others",
        "worker 1 joined",
        "merge 5 is tried again: broken pipe",
    ]
    assert [point.megabatch for point in series.course.points] == [1, 2, 3, 4]
    assert series.view.best == {"P@1": (0.04, 4), "P@3": (0.02, 4)}
    assert series.view.state == "training"
    assert not series.view.is_over


def test_a_run_that_goes_back_takes_its_series_along():
    def add_events(event_log: EventLog) -> None:
        started(event_log)
        trained(event_log, 8)
        event_log.event("rewound", megabatch=4)
        event_log.event("megabatch", row=row(5))

    series = series_of(add_events)
    assert [point.megabatch for point in series.course.points] == [1, 2, 3, 4, 5]
    assert [point.megabatch for point in series.course.evaluated] == [1, 2, 3, 4, 5]
    assert series.view.best["P@1"] == (0.05, 5)


@pytest.mark.parametrize(
    ("add_events", "ending"),
    [
        (lambda event_log: event_log.end_well("epochs"), "ended: epochs"),
        (lambda event_log: event_log.end_badly(ClusterError("nobody came")), "failed: nobody came"),
        (lambda event_log: event_log.end_badly(KeyError("x"), "trace"), "failed: KeyError: 'x'"),
    ],
)
def test_a_run_that_is_over_releases_its_log(add_events, ending):
    def story(event_log: EventLog) -> None:
        started(event_log)
        trained(event_log, 2)
        add_events(event_log)

    series = series_of(story)
    assert series.view.is_over
    assert series.view.state == ending
    assert series._log is None
    series.update()  # nobody reads any more
    assert len(series.course.points) == 2


def test_a_run_that_is_given_up_without_a_word_is_over():
    series = series_of(started)
    series.give_up()
    assert series.view.is_over
    assert texts(series)[-1] == "ended: given up"


def test_a_long_run_of_many_workers_stays_small():
    def size(megabatches: int, workers: int) -> int:
        def add_events(event_log: EventLog) -> None:
            names = [str(number) for number in range(workers)]
            started(event_log, names)
            trained(event_log, megabatches, names)
            for number in range(megabatches):
                event_log.event("worker", event="lost", worker=f"w{number}")
            event_log.end_well("epochs")

        series = series_of(add_events)
        assert len(series.course.points) <= POINTS + 1
        assert len(series.lines) == LINES
        assert len(series.view.lost) <= KEPT_WORKERS
        kept = (
            list(series.course.points),
            list(series.course.evaluated),
            series.lines,
            series.view,
        )
        return len(pickle.dumps(kept))

    assert size(4 * POINTS, 2 * WORKERS) < 1.3 * size(2 * POINTS, WORKERS) < 10 * 2**20


def test_lines_have_gaps_where_a_worker_took_no_part():
    def add_events(event_log: EventLog) -> None:
        started(event_log)
        event_log.event("megabatch", row=row(1))
        event_log.event("megabatch", row=row(2, ["0"]))
        event_log.event("megabatch", row=row(3, ["1", "2"]))
        event_log.event("worker", event="lost", worker="0")

    series = series_of(add_events)
    workers, known = worker_names(series)
    assert (workers, known) == (["0", "1", "2"], 3)
    found = {chart.name: chart for chart in page_charts(series, workers)}
    nan = np.nan
    lines = [line.points for line in found["batch_rows"].series]
    expected = [[(1, 10), (2, 10), (3, nan)], [(1, 11), (2, nan), (3, 10)],
                [(1, nan), (2, nan), (3, 11)]]  # fmt: skip
    np.testing.assert_array_equal(lines, expected)
    assert found["busy"].series[0].points[0][1] == pytest.approx(90.0)
    assert found["rows_per_s"].series[0].points[0][1] == pytest.approx(100.0 / 0.9)


def test_there_are_lines_for_some_of_many_workers():
    names = [f"w{number}" for number in range(100)]

    def add_events(event_log: EventLog) -> None:
        started(event_log, names)
        trained(event_log, 2, names)
        for name in names[:90]:
            event_log.event("worker", event="lost", worker=name)

    series = series_of(add_events)
    shown, known = worker_names(series)
    assert len(shown) == DRAWN_WORKERS
    assert set(names[90:]) <= set(shown)  # those that are there come first
    assert known == 100
    *of_workers, sent = page_charts(series, shown)[4:]
    assert [len(line.points) for line in sent.series] == [2]
    for chart in of_workers:
        assert [len(line.points) for line in chart.series] == [2] * DRAWN_WORKERS


def test_the_timeline_is_cut_to_its_window_and_its_size():
    pieces = [Work("a", "lease", float(n), n + 0.9) for n in range(3 * DRAWN_WORK)]
    pieces += [Work("b", "model", 0.0, 1e4), Work("c", "lease", 0.0, 1e4)]
    found = work_columns(pieces, ["a", "b"], end_s=6000.0, long_s=10.0)
    assert found["place"].tolist() == [0.0] * 10  # nobody asks for b's work, nor for c
    assert found["left"][0] == -10.0
    assert found["right"][-1] == pytest.approx(-0.1)
    everything = work_columns(pieces, ["a"], end_s=6000.0, long_s=6000.0)
    assert len(everything["left"]) == DRAWN_WORK


def test_there_is_nothing_to_draw_before_the_first_mega_batch():
    series = series_of(lambda event_log: None)
    assert worker_names(series) == ([], 0)
    assert all(chart.is_empty for chart in page_charts(series, []))
    assert window_s(series) == LONGEST_S
