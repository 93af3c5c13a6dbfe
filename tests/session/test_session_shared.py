"""Runs with one shared model: what a lost worker had finished stays, and is told of."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.core.work_stats import WorkStats
from daskxml.session.commands import (
    MergeReplicas,
    RunWork,
    StopRequest,
    WorkResult,
)
from daskxml.strategies import STRATEGIES
from daskxml.strategies.protocol import Measure
from harness.random_scripts import CHOICES, run_script, scripts
from harness.virtual_executor import VirtualExecutor, kinds, new_session

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
    backend = VirtualExecutor(session(name, **more), SPEEDS, pools=POOLS)
    while not (backend.session.history and backend.session.stage == "train"):
        backend.advance()
    while backend.session.log.work.keys() != SPEEDS.keys():
        backend.advance()
    assert backend.session.stage == "train"
    return backend


@every_strategy
def test_a_run_and_its_history(name):
    backend = VirtualExecutor(session(name, megabatches=7), SPEEDS, pools=POOLS)
    assert backend.run() == "megabatches"
    backend.check_history()
    assert kinds(backend.log, Measure) == []  # nothing is merged, so no norms are asked for
    assert [row["rows"] for row in backend.session.history] == [64 * i for i in range(1, 8)]
    for row in backend.session.history:
        workers = row["workers"].values()
        updates = sum(worker["updates"] for worker in workers)
        for worker in workers:
            assert worker["weight"] == pytest.approx(worker["updates"] / updates)
        assert {n: w["pool_threads"] for n, w in row["workers"].items()} == {
            "gpu": 0, "cpu": 2, "gpu2": 0,
        }  # fmt: skip
    cpu = backend.session.history[-1]["workers"]["cpu"]
    assert cpu["rows"] / cpu["batch_rows"] <= cpu["updates"] <= cpu["rows"]


@every_strategy
@pytest.mark.parametrize("lost", ["gpu", "cpu"])
def test_only_open_leases_of_a_lost_worker_go_back(name, lost):
    backend = at_work(name, megabatches=3)
    log = backend.session.log
    done, updates = log.work[lost].rows, log.work[lost].updates
    open_rows = sum(t.command.rows_of(0) for t in backend.tasks if t.worker == lost)
    view = backend.session.strategy.view(backend.session.state)[lost]
    assert done
    backend.lose(lost)
    assert log.work[lost].rows == done
    assert backend.run() == "megabatches"
    backend.check_history()
    row = backend.session.history[1]
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
    assert lost not in backend.session.history[2]["workers"]
    merges = kinds(backend.log, MergeReplicas)
    assert lost not in merges[1].weights  # those who are there carry it out
    assert sum(merges[1].weights.values()) == pytest.approx(1.0)


@every_strategy
@pytest.mark.parametrize("stage", ["merge", "evaluate", "checkpoint"])
def test_where_everything_is_done_nothing_goes_back(name, stage):
    backend = at_work(name, megabatches=4, checkpoint_every=1, can_checkpoint=True)
    backend.until(stage)
    leases = len(kinds(backend.log, RunWork))
    if stage == "merge":
        done = backend.session.log.work["gpu"].rows
    else:
        done = backend.session.history[1]["workers"]["gpu"]["rows"]
    backend.lose("gpu")
    assert backend.session.stage == stage  # a merge begins again at once with those who are there
    assert len(kinds(backend.log, RunWork)) == leases
    backend.run()
    backend.check_history()
    row = backend.session.history[1]
    assert row["workers"]["gpu"]["rows"] == done
    assert row["rows"] == 128
    (event,) = backend.session.history[1 if stage == "merge" else 2]["events"]
    assert event["rows_returned"] == 0
    assert (event["after_s"] < 0.0) is (stage != "merge")


@every_strategy
def test_a_worker_that_comes_back_under_its_name_adds_to_what_it_did(name):
    backend = at_work(name, megabatches=3, batches=40)
    done = backend.session.log.work["cpu"].rows
    backend.lose("cpu")
    backend.join("cpu", 20.0, threads=2)
    backend.run()
    backend.check_history()
    worker = backend.session.history[1]["workers"]["cpu"]
    assert worker["rows"] > done


@every_strategy
def test_a_stop_and_a_loss_at_the_merge(name):
    backend = at_work(name)
    backend.until("merge")
    backend.handle(StopRequest("asked"))
    backend.lose("gpu2")
    leases = len(kinds(backend.log, RunWork))
    assert backend.run() == "asked"
    assert len(kinds(backend.log, RunWork)) == leases
    backend.check_history()
    assert backend.session.history[-1]["rows"] == 128


@every_strategy
def test_rows_returned_at_the_end_are_leased_first_when_the_run_continues(name):
    backend = at_work(name, can_checkpoint=True)
    back = sum(t.command.rows_of(0) for t in backend.tasks if t.worker == "gpu")
    backend.handle(StopRequest("asked"))
    backend.lose("gpu")
    assert backend.run() == "asked"
    returned = backend.stored[-1]["ledger"]["returned"]
    assert sum(stop - start for *_, start, stop in returned) == back
    again = VirtualExecutor(session(name, backend.stored[-1], megabatches=5), {"gpu": 40.0})
    assert again.run() == "megabatches"
    again.check_history(before=2)


def test_late_reports_of_a_lost_worker_change_nothing():
    backend = at_work("cpu-gpu-hogbatch", megabatches=2)
    late = [t.command.number for t in backend.tasks if t.worker == "gpu"]
    backend.lose("gpu")
    rows = backend.session.log.rows
    for lease in late:
        assert (
            backend.session.handle(
                WorkResult(lease, (WorkStats(updates=1, loss_sum=1.0, nonzeros=1, busy_s=1.0),)),
                backend.now_s,
            )
            == []
        )
    assert backend.session.log.rows == rows
    backend.run()
    backend.check_history()


@given(
    name=st.sampled_from(NAMES),
    lease_s=st.sampled_from([0.0, 0.02, 0.5]),
    script=scripts("lose", "join", "stop"),
    choices=CHOICES,
    workers=st.lists(st.tuples(st.floats(1.0, 200.0), st.integers(0, 3)), min_size=1, max_size=4),
    is_replicated=st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_any_order_of_results_losses_and_arrivals(
    name, lease_s, script, choices, workers, is_replicated
):
    """Every row of every epoch is counted once; with nobody left the run begins anew."""
    made = session(
        name, lease_s=lease_s, is_replicated=is_replicated, megabatches=5, evaluate_every=2,
        checkpoint_every=2, can_checkpoint=True,
    )  # fmt: skip
    speeds = {f"w{i}": speed for i, (speed, _) in enumerate(workers)}
    pools = {f"w{i}": threads for i, (_, threads) in enumerate(workers)}

    def join(backend, newcomer, number):
        lost = [name for name in speeds if name not in backend.workers]
        again = lost[-1] if lost and number % 2 else newcomer
        backend.join(again, 1.0 + 20.0 * number, number % 3)

    begun = VirtualExecutor(made, speeds, pools=pools)
    backend = run_script(begun, script, choices, join=join)
    assert backend.ended in ("megabatches", "asked", "restart")
    if backend.ended == "megabatches":
        assert [row["rows"] for row in made.history] == [64 * i for i in range(1, 6)]
