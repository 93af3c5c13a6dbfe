"""The display of a run's progress, on a terminal and off it."""

import io
import threading
from contextlib import nullcontext

import pytest
from rich.console import Console

from daskxml.observe.run_view import RunView
from daskxml.observe.terminal import LiveProgress, PlainProgress, make_progress, row_line

WORKER = {
    "updates": 50,
    "rows": 3200,
    "batch_rows": 64,
    "lr": 0.5,
    "weight": 0.25,
    "busy_s": 3.0,
    "idle_s": 1.0,
}
ROW = {
    "megabatch": 4,
    "rows": 12800,
    "epoch": 1.25,
    "train_s": 1.5,
    "merge_s": 0.1,
    "loss": 3.5,
    "metrics": {"P@1": 0.5, "P@3": 0.25, "PSP@1": 0.125},
    "workers": {"tcp://a:1": WORKER, "tcp://b:2": {**WORKER, "batch_rows": 32}},
}
STARTED = {
    "kind": "started",
    "workers": ["a", "b"],
    "rows": 24000,
    "test_rows": 4000,
    "features": 5000,
    "labels": 2000,
    "parameters": 898000,
}
EVENTS = [
    {"kind": "status", "state": "loading", "dashboard": "http://x:8787"},
    STARTED,
    {"kind": "status", "state": "training", "megabatch": 1, "rows": 1234},
    {"kind": "megabatch", "row": ROW},
    {"kind": "status", "state": "merging", "megabatch": 2, "rows": 15000},
    {"kind": "worker", "worker": "b", "event": "lost"},
    {"kind": "warning", "text": "every worker was lost"},
    {"kind": "rewound", "megabatch": 3},
    {"kind": "something else", "of": "a later version"},
    {"kind": "ended", "reason": "epochs"},
]
LINES = [
    "loading",
    "24,000 rows and 4,000 test rows, 5,000 features, 2,000 labels, 898,000 parameters",
    "dashboard http://x:8787",
    "training",
    "mega-batch 4  epoch 1.25  12,800 rows  4,000 rows/s  loss 3.5000  P@1 0.5000  P@3 0.2500",
    "worker b lost",
    "every worker was lost",
    "going on after mega-batch 3",
    "ended: epochs",
]


def test_label_trees_have_no_loss(capsys):
    progress = PlainProgress()
    progress({"kind": "megabatch", "row": {k: v for k, v in ROW.items() if k != "loss"}})
    line = capsys.readouterr().out.splitlines()[-1]
    assert line == "tree 4  12,800 rows  4,000 rows/s  P@1 0.5000  P@3 0.2500"


def test_off_a_terminal_there_is_a_line_for_each_piece_of_news(capsys):
    with make_progress("demo") as progress:
        assert isinstance(progress, PlainProgress)
        for event in EVENTS:
            progress(event)
    assert capsys.readouterr().out.splitlines() == LINES


def test_a_picture_shows_the_run_and_its_workers():
    progress = LiveProgress("demo")
    for event in EVENTS:
        progress(event)
    text = text_of(progress)
    for piece in (
        "demo  ended: epochs",
        "mega-batch 4",
        "4,000 rows/s",
        "P@1 0.5",
        "worker b lost",
    ):
        assert piece in text
    row = next(line for line in text.splitlines() if line.startswith("tcp://b:2"))
    assert row.split() == ["tcp://b:2", "32", "1,067", "75%", "50", "3,200", "0.5", "0.250"]


def test_a_picture_shows_the_dashboard_while_it_is_there():
    progress = LiveProgress("demo")
    for event in EVENTS[:-1]:
        progress(event)
    assert "dashboard http://x:8787" in text_of(progress)
    progress(EVENTS[-1])
    assert "http://x:8787" not in text_of(progress)


def test_an_unevaluated_megabatch_keeps_the_last_metrics():
    progress = LiveProgress("demo")
    progress({"kind": "megabatch", "row": ROW})
    progress({"kind": "megabatch", "row": {**ROW, "megabatch": 5, "metrics": {}}})
    assert progress.view.measured["metrics"]["P@1"] == 0.5
    assert progress.view.row["megabatch"] == 5


def test_the_training_loss_is_shown_where_it_is_measured():
    progress = LiveProgress("demo")
    progress({"kind": "megabatch", "row": {**ROW, "training_loss": 0.0}})
    progress({"kind": "megabatch", "row": ROW})
    for text in (text_of(progress), row_line({**ROW, "training_loss": 0.0})):
        assert "loss 3.5000  training loss 0.0000  P@1 0.5000" in text
    assert "training loss" not in row_line(ROW)


def test_on_a_terminal_events_may_come_from_any_thread():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with LiveProgress("demo", console) as progress:
        thread = threading.Thread(target=lambda: [progress(event) for event in EVENTS])
        thread.start()
        thread.join()
    assert "ended: epochs" in console.file.getvalue()


def test_a_run_that_fails_leaves_the_word_to_its_error(capsys):
    PlainProgress()({"kind": "ended", "reason": "error", "error": {"args": []}})
    assert capsys.readouterr().out == ""


def text_of(progress):
    console = Console(file=io.StringIO(), width=120)
    console.print(progress.get_renderable())
    return console.file.getvalue()


def cells_of(progress, worker):
    return next(line for line in text_of(progress).splitlines() if line.startswith(worker)).split()


def test_workers_are_there_before_their_first_mega_batch_and_come_and_go():
    progress = LiveProgress("demo")
    progress(STARTED)
    progress({"kind": "status", "state": "training"})
    assert cells_of(progress, "a ") == ["a", "training"]
    row = {**ROW, "workers": {"a": WORKER, "b": WORKER}}
    progress({"kind": "megabatch", "row": row})
    progress({"kind": "worker", "worker": "b", "event": "lost"})
    progress({"kind": "worker", "worker": "c", "event": "joined"})
    assert cells_of(progress, "a ")[:3] == ["a", "training", "64"]
    assert cells_of(progress, "b ")[:2] == ["b", "lost"]
    assert cells_of(progress, "c ") == ["c", "joined"]
    progress({"kind": "megabatch", "row": {**row, "workers": {"a": WORKER, "c": WORKER}}})
    assert cells_of(progress, "b ") == ["b", "lost"]
    assert cells_of(progress, "c ")[:3] == ["c", "training", "64"]
    progress({"kind": "ended", "reason": "epochs"})
    assert cells_of(progress, "c ")[:2] == ["c", "64"]


def test_of_many_workers_the_first_are_shown():
    progress = LiveProgress("demo")
    progress({"kind": "megabatch", "row": {**ROW, "workers": {f"w{i}": WORKER for i in range(64)}}})
    assert cells_of(progress, "w19 ")
    assert "w20" not in text_of(progress)
    assert "and 44 more" in text_of(progress)


@pytest.mark.parametrize(
    ("limits", "share"),
    [
        ({"minutes": 0.04, "megabatches": 8}, 2 / 3),
        ({"megabatches": 2}, 1.0),
        ({"target": 0.9, "epochs": 0.0}, None),
    ],
)
def test_the_share_done_is_that_of_the_nearest_limit(limits, share):
    progress = LiveProgress("demo")
    progress.view.limits = limits
    progress({"kind": "megabatch", "row": {**ROW, "wall_s": 1.6}})
    view = progress.view
    assert view.progress() == (None if share is None else pytest.approx(share))
    if share is not None:
        assert view.left_s() == pytest.approx(1.6 * (1 - share) / share)
        assert f"{share:.0%}, " in text_of(progress)
    else:
        assert "left" not in text_of(progress)


def test_rows_of_the_mega_batch_under_way_count():
    view = RunView(limits={"epochs": 5.0})
    view.apply({"kind": "megabatch", "row": ROW})
    view.apply({"kind": "status", "state": "training", "rows": 15000, "epoch": 1.5})
    assert view.progress() == pytest.approx(0.3)


def test_the_best_metric_is_remembered():
    progress = LiveProgress("demo")
    progress.view.limits = {"target_metric": "P@3"}
    for megabatch, value in ((4, 0.5), (5, 0.75), (6, 0.25)):
        row = {**ROW, "megabatch": megabatch, "metrics": {"P@1": 0.5, "P@3": value}}
        progress({"kind": "megabatch", "row": row})
    assert "(best P@3 0.7500 at 5)" in text_of(progress)


def test_names_of_others_do_nothing_to_a_terminal(capsys):
    evil = "\x1b[2J[/]\u202e"
    output = io.StringIO()
    live = LiveProgress("run", Console(file=output, width=200, force_terminal=False))
    for progress in (nullcontext(PlainProgress()), live):
        with progress as show:
            for event in (
                {**STARTED, "workers": [evil, "b"]},
                {"kind": "worker", "worker": evil, "event": "lost"},
                {"kind": "warning", "text": evil},
                {"kind": "megabatch", "row": {**ROW, "workers": {evil: WORKER}}},
            ):
                show(event)
    shown = capsys.readouterr().out + output.getvalue()
    assert r"\x1b[2J[/]\u202e" in shown
    assert not set(shown) & set("\x1b\u202e")
