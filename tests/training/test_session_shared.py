"""Runs with one shared model: what a lost worker had finished stays, and is told of."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_scripts import CHOICES, play_script, scripts
from virtual_executor import VirtualExecutor, kinds, new_session

from daskxml.strategies import STRATEGIES
from daskxml.training.orders import (
    LeaseOrder,
    LeaseReport,
    MeasureOrder,
    MergeOrder,
    StopRequest,
)

NAMES = ("hogbatch", "cpu-gpu-hogbatch", "adaptive-hogbatch")
SPEEDS = {"gpu": 40.0, "cpu": 20.0, "gpu2": 30.0}
POOLS = {"cpu": 2}
every_strategy = pytest.mark.parametrize("name", NAMES)


def session(name, stored=None, *, batches=8, lease_s=0.0, **more):
    """8 batches of 8 rows to a mega-batch, of 200 rows in two parts."""
    kind = STRATEGIES[name]
    config = kind.Config(batch_max=8, megabatch_batches=batches, lease_s=lease_s)
    return new_session(stored, strategy=kind(config), **more)


def at_work(name, **more):
    """Return a run in its second mega-batch, in which everybody has done something."""
    play = VirtualExecutor(session(name, **more), SPEEDS, pools=POOLS)
    while not (play.session.history and play.session.stage == "train"):
        play.advance()
    while play.session.log.tallies.keys() != SPEEDS.keys():
        play.advance()
    assert play.session.stage == "train"
    return play


@every_strategy
def test_a_run_and_its_history(name):
    play = VirtualExecutor(session(name, megabatches=7), SPEEDS, pools=POOLS)
    assert play.run() == "megabatches"
    play.check_history()
    assert kinds(play.log, MeasureOrder) == []  # nothing is merged, so no norms are asked for
    assert [row["rows"] for row in play.session.history] == [64 * i for i in range(1, 8)]
    for row in play.session.history:
        workers = row["workers"].values()
        updates = sum(worker["updates"] for worker in workers)
        for worker in workers:
            assert worker["weight"] == pytest.approx(worker["updates"] / updates)
        assert {n: w["pool_threads"] for n, w in row["workers"].items()} == {
            "gpu": 0, "cpu": 2, "gpu2": 0,
        }  # fmt: skip
    cpu = play.session.history[-1]["workers"]["cpu"]
    assert cpu["rows"] / cpu["batch_rows"] <= cpu["updates"] <= cpu["rows"]


@every_strategy
@pytest.mark.parametrize("lost", ["gpu", "cpu"])
def test_only_open_leases_of_a_lost_worker_go_back(name, lost):
    play = at_work(name, megabatches=3)
    log = play.session.log
    done, updates = log.tallies[lost].rows, log.tallies[lost].updates
    open_rows = sum(t.order.rows for t in play.tasks if t.worker == lost)
    view = play.session.strategy.view(play.session.state)[lost]
    assert done
    play.lose(lost)
    assert log.tallies[lost].rows == done
    assert play.run() == "megabatches"
    play.check_history()
    row = play.session.history[1]
    worker = row["workers"][lost]
    assert (worker["rows"], worker["updates"], worker["batch_rows"]) == (
        done, updates, view.batch_rows,
    )  # fmt: skip
    assert sum(stop - start for lease in worker["leases"] for *_, start, stop in lease) == done
    total = sum(w["updates"] for w in row["workers"].values())
    assert worker["weight"] == pytest.approx(updates / total)
    assert row["events"] == [
        {"kind": "lost", "worker": lost, "after_s": row["events"][0]["after_s"],
         "rows_returned": open_rows},
    ]  # fmt: skip
    assert lost not in play.session.history[2]["workers"]
    merges = kinds(play.log, MergeOrder)
    assert lost not in merges[1].weights  # those who are there carry it out
    assert sum(merges[1].weights.values()) == pytest.approx(1.0)


@every_strategy
@pytest.mark.parametrize("stage", ["merge", "evaluate", "checkpoint"])
def test_where_everything_is_done_nothing_goes_back(name, stage):
    play = at_work(name, megabatches=4, checkpoint_every=1, can_checkpoint=True)
    play.until(stage)
    log = play.session.log
    leases, done = len(kinds(play.log, LeaseOrder)), log.tallies["gpu"].rows
    play.lose("gpu")
    assert play.session.stage == stage  # a merge begins again at once with those who are there
    assert len(kinds(play.log, LeaseOrder)) == leases
    play.run()
    play.check_history()
    row = play.session.history[1]
    assert row["workers"]["gpu"]["rows"] == done
    assert row["rows"] == 128
    assert [e["rows_returned"] for e in row["events"]] == [0]


@every_strategy
def test_a_worker_that_comes_back_under_its_name_adds_to_what_it_did(name):
    play = at_work(name, megabatches=3, batches=40)
    done = play.session.log.tallies["cpu"].rows
    play.lose("cpu")
    play.join("cpu", 20.0, threads=2)
    play.run()
    play.check_history()
    worker = play.session.history[1]["workers"]["cpu"]
    assert worker["rows"] > done


@every_strategy
def test_a_stop_and_a_loss_at_the_merge(name):
    play = at_work(name)
    play.until("merge")
    play.tell(StopRequest("asked"))
    play.lose("gpu2")
    leases = len(kinds(play.log, LeaseOrder))
    assert play.run() == "asked"
    assert len(kinds(play.log, LeaseOrder)) == leases
    play.check_history()
    assert play.session.history[-1]["rows"] == 128


@every_strategy
def test_rows_that_went_back_as_the_run_ended_come_first_when_it_goes_on(name):
    play = at_work(name, can_checkpoint=True)
    back = sum(t.order.rows for t in play.tasks if t.worker == "gpu")
    play.tell(StopRequest("asked"))
    play.lose("gpu")
    assert play.run() == "asked"
    returned = play.stored[-1]["ledger"]["returned"]
    assert sum(stop - start for *_, start, stop in returned) == back
    again = VirtualExecutor(session(name, play.stored[-1], megabatches=5), {"gpu": 40.0})
    assert again.run() == "megabatches"
    again.check_history(before=2)


def test_late_reports_of_a_lost_worker_change_nothing():
    play = at_work("cpu-gpu-hogbatch", megabatches=2)
    late = [t.order.lease for t in play.tasks if t.worker == "gpu"]
    play.lose("gpu")
    rows = play.session.log.rows
    for lease in late:
        assert play.session.handle(LeaseReport(lease, 1.0, 1.0, 1, 1), play.now_s) == []
    assert play.session.log.rows == rows
    play.run()
    play.check_history()


def test_the_last_worker_lost_means_a_restart():
    play = at_work("hogbatch")
    for name in SPEEDS:
        play.lose(name)
    assert play.ended == "restart"


@given(
    name=st.sampled_from(NAMES),
    lease_s=st.sampled_from([0.0, 0.02, 0.5]),
    script=scripts("lose", "join", "stop"),
    choices=CHOICES,
    workers=st.lists(st.tuples(st.floats(1.0, 200.0), st.integers(0, 3)), min_size=1, max_size=4),
    is_replicated=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_any_order_of_reports_losses_and_arrivals(
    name, lease_s, script, choices, workers, is_replicated
):
    """Every row of every epoch is counted once; with nobody left the run begins anew."""
    made = session(
        name, lease_s=lease_s, is_replicated=is_replicated, megabatches=5, evaluate_every=2,
        checkpoint_every=2, can_checkpoint=True,
    )  # fmt: skip
    speeds = {f"w{i}": speed for i, (speed, _) in enumerate(workers)}
    pools = {f"w{i}": threads for i, (_, threads) in enumerate(workers)}

    def join(play, newcomer, number):
        lost = [name for name in speeds if name not in play.workers]
        again = lost[-1] if lost and number % 2 else newcomer
        play.join(again, 1.0 + 20.0 * number, number % 3)

    begun = VirtualExecutor(made, speeds, pools=pools)
    play = play_script(begun, script, choices, join=join)
    assert play.ended in ("megabatches", "asked", "restart")
    if play.ended == "megabatches":
        assert [row["rows"] for row in made.history] == [64 * i for i in range(1, 6)]
