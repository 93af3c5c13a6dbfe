"""What is remembered of a run: everything that matters, in bounded memory."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from told import record_of, row, started, trained

from daskxml.dashboard import columns
from daskxml.dashboard.record import LOST, POINTS, WORDS, WORKERS
from daskxml.errors import ClusterError
from daskxml.runtime.activity import Work
from daskxml.runtime.journal import Journal
from daskxml.training.budget import LogitsBudget
from daskxml.training.history import memory_event


def texts(record):
    return [line.text for line in record.words]


def test_a_record_has_the_story_in_words_and_series():
    def tell(journal: Journal) -> None:
        started(journal)
        trained(journal, 3)
        journal.event("worker", event="lost", worker="1")
        event = {"kind": "lost", "worker": "1", "after_s": 0.1, "rows_returned": 1234}
        others = [memory_event("0", 0.2, 16), LogitsBudget(chosen_bytes=1).event("0")]
        journal.event("megabatch", row=row(4, ["0"], events=[*others, event]))
        journal.event("worker", event="joined", worker="1")
        journal.event("warning", text="merge 5 is tried again: broken pipe")
        journal.state("training", epoch=0.45)

    record = record_of(tell)
    assert texts(record) == [
        "training begins with 2 workers",
        "worker 1 was lost",
        "1,234 rows of worker 1 were leased again, in mega-batch 4",
        "worker 1 joined",
        "merge 5 is tried again: broken pipe",
    ]
    assert [point.megabatch for point in record.megabatches] == [1, 2, 3, 4]
    assert record.best == {"P@1": (0.04, 4), "P@3": (0.02, 4)}
    assert record.totals["merged_bytes"] == 4000
    assert (record.totals["losses"], record.totals["arrivals"]) == (1, 1)
    assert record.status["state"] == "training"
    assert not record.is_over


def test_a_run_that_goes_back_takes_its_series_along():
    def tell(journal: Journal) -> None:
        started(journal)
        trained(journal, 8)
        journal.event("rewound", megabatch=4)
        journal.event("megabatch", row=row(5))

    record = record_of(tell)
    assert [point.megabatch for point in record.megabatches] == [1, 2, 3, 4, 5]
    assert [score.megabatch for score in record.scores] == [1, 2, 3, 4, 5]
    assert record.best["P@1"] == (0.05, 5)


@pytest.mark.parametrize(
    ("tell", "ending"),
    [
        (lambda journal: journal.end_well("epochs"), "ended: epochs"),
        (lambda journal: journal.end_badly(ClusterError("nobody came")), "failed: nobody came"),
        (lambda journal: journal.end_badly(KeyError("x"), "trace"), "failed: KeyError: 'x'"),
    ],
)
def test_a_run_that_is_over_lets_go_of_its_journal(tell, ending):
    def story(journal: Journal) -> None:
        started(journal)
        trained(journal, 2)
        tell(journal)

    record = record_of(story)
    assert record.is_over
    assert record.ending == ending
    assert record._journal is None
    record.update()  # nobody reads any more
    assert len(record.megabatches) == 2


def test_a_run_that_is_given_up_without_a_word_is_over():
    record = record_of(started)
    record.give_up()
    assert record.is_over
    assert texts(record)[-1] == "ended: given up"


def test_a_long_run_of_many_workers_stays_small():
    def size(megabatches: int, workers: int) -> int:
        def tell(journal: Journal) -> None:
            names = [str(number) for number in range(workers)]
            started(journal, names)
            trained(journal, megabatches, names)
            for number in range(megabatches):
                journal.event("worker", event="lost", worker=f"w{number}")
            journal.end_well("epochs")

        record = record_of(tell)
        assert len(record.megabatches) <= POINTS + 1
        assert len(record.words) == WORDS
        assert len(record.lost) <= LOST
        kept = (list(record.megabatches), list(record.scores), record.words, record.lost)
        return len(pickle.dumps(kept))

    assert size(8 * POINTS, 200) < 1.3 * size(2 * POINTS, WORKERS) < 10 * 2**20


def test_lines_have_gaps_where_a_worker_took_no_part():
    def tell(journal: Journal) -> None:
        started(journal)
        journal.event("megabatch", row=row(1))
        journal.event("megabatch", row=row(2, ["0"]))
        journal.event("megabatch", row=row(3, ["1", "2"]))
        journal.event("worker", event="lost", worker="0")

    record = record_of(tell)
    workers = columns.worker_names(record)
    assert workers == ["0", "1", "2"]
    found = columns.worker_columns(record, workers)
    nan = np.nan
    expected = [[10, 10, nan], [11, nan, 10], [nan, nan, 11]]
    np.testing.assert_array_equal(found["batch_rows"], np.array(expected, dtype=np.float32))
    np.testing.assert_array_equal(found["xs"], [[1, 2, 3]] * 3)
    assert found["busy_share"][0, 0] == pytest.approx(0.9)
    assert found["rows_per_s"][0, 0] == pytest.approx(100.0)
    assert columns.perturbed_columns(record)["megabatch"].tolist() == [2.0]


def test_there_are_lines_for_some_of_many_workers():
    names = [f"w{number}" for number in range(100)]

    def tell(journal: Journal) -> None:
        started(journal, names)
        trained(journal, 2, names)
        for name in names[:90]:
            journal.event("worker", event="lost", worker=name)

    record = record_of(tell)
    shown = columns.worker_names(record)
    assert len(shown) == columns.LINES
    assert set(names[90:]) <= set(shown)  # those that are there come first
    assert columns.worker_count(record) == 100
    found = columns.worker_columns(record, shown)
    assert found["weight"].shape == (columns.LINES, 2)


def test_the_timeline_is_cut_to_its_window_and_its_size():
    pieces = [Work("a", "lease", float(n), n + 0.9) for n in range(3 * columns.PIECES)]
    pieces += [Work("b", "model", 0.0, 1e4), Work("c", "lease", 0.0, 1e4)]
    found = columns.work_columns(pieces, ["a", "b"], end_s=6000.0, long_s=10.0)
    assert found["place"].tolist() == [0.0] * 10  # nobody asks for b's work, nor for c
    assert found["left"][0] == -10.0
    assert found["right"][-1] == pytest.approx(-0.1)
    everything = columns.work_columns(pieces, ["a"], end_s=6000.0, long_s=6000.0)
    assert len(everything["left"]) == columns.PIECES


def test_there_is_nothing_to_draw_before_the_first_mega_batch():
    record = record_of(lambda journal: None)
    assert columns.worker_names(record) == []
    assert columns.learning_columns(record)["loss"].size == 0
    assert columns.score_columns(record, ["P@1"])["P@1"].size == 0
    assert columns.worker_columns(record, [])["weight"].shape == (0, 0)
    assert columns.memory_columns(record, [])["host_mib"].shape == (0, 0)
    assert columns.window_s(record) == columns.LONGEST_S
