"""Merges by a quorum on virtual clocks: workers that freeze, are slow, are lost and arrive."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import daskxml
from daskxml.local import Arrival, CostModel, Freeze, Loss, Network
from daskxml.records.verification import verify
from daskxml.session.run_loop import SILENT_S
from harness.ledger_check import check_ledger
from harness.small_data import FEW, matrices

ROWS = 400
COST = CostModel(fixed_s=1e-3, per_row_s=1e-3, per_nonzero_s=0.0)
VALUES = {
    "model": {"hidden": [8]},
    "strategy": {"name": "adaptive-sgd", "batch_max": 8, "megabatch_batches": 40, "lr": 0.1},
    "combine": {"quorum": 0.75, "grace": 0.03},
    "training": {"epochs": 20},
    "evaluation": {"every": 4},
    "cluster": {"threads": 1},
}
MEGABATCH_S = 0.09  # of four workers at speed 1


def simulate(few, overrides=(), **given):
    given = {"speeds": [1.0] * 4, "cost": COST, **given}
    return daskxml.simulate(VALUES, overrides=overrides, **few, **given)


def rows_per_s(history):
    first, last = history[0], history[-1]
    return (last["rows"] - first["rows"]) / (last["wall_s"] - first["wall_s"])


def between(history, begin_s, end_s):
    return [row for row in history if begin_s <= row["wall_s"] <= end_s]


@pytest.mark.parametrize(("strategy", "frozen"), [("adaptive-sgd", "0"), ("elastic", "3")])
def test_the_healthy_go_on_while_one_is_frozen(few, strategy, frozen):
    named = {"strategy.name": strategy}
    run = simulate(few, named, changes=[Freeze(0.5, frozen, 1.0)])
    three = simulate(few, named, speeds=[1.0] * 3)
    during = between(run.history, 0.7, 1.5)
    assert all(row["late"] == [frozen] for row in during)
    assert rows_per_s(during) > 0.95 * rows_per_s(three.history)
    times = [0.0, *(row["wall_s"] for row in run.history)]
    assert max(np.diff(times)) < 2.0 * MEGABATCH_S
    joined = [e for row in run.history for e in row["events"] if e["kind"] == "joined"]
    assert [event["worker"] for event in joined] == [frozen]
    assert "late" not in run.history[-1]
    assert run.history[-1]["rows"] == 20 * ROWS
    check_ledger(run.history, ROWS)


def test_a_worker_that_comes_in_the_middle_ends_with_the_others(few):
    run = simulate(few, {"combine.grace": "auto"}, changes=[Arrival(0.52, "9"), Arrival(0.6, "10")])
    row = next(r for r in run.history if any(e["kind"] == "joined" for e in r["events"]))
    new = row["workers"].pop("9")
    assert 0 < new["rows"] < min(worker["rows"] for worker in row["workers"].values()) / 2
    assert max(worker["idle_s"] for worker in row["workers"].values()) < 0.005  # half a batch


def test_the_result_is_not_the_model_of_a_late_worker(few):
    run = simulate(few, {"strategy.lr": 2.0}, changes=[Freeze(0.1, "0", 1e4)])
    assert run.history[-1]["late"] == ["0"]  # the first worker, frozen until after the end
    found = run.model.evaluate(*matrices(few["test"], FEW))
    assert found["nDCG@5"] == pytest.approx(run.metrics["nDCG@5"], abs=1e-6)
    first = run.history[3]["metrics"]["nDCG@5"]  # near the model that it has
    assert abs(first - run.metrics["nDCG@5"]) > 1e-3


def test_a_worker_that_freezes_in_a_merge_is_left_behind(few):
    slow = {"network": Network(bandwidth_bytes_s=2e3)}
    values = {"strategy.megabatch_batches": 400, "combine.grace": "auto", "training.epochs": 30}
    merge = simulate(few, values, **slow).history[0]
    assert merge["merge_s"] > 0.5
    at_s = merge["train_s"] + merge["merge_s"] / 2.0
    run = simulate(few, values, changes=[Freeze(at_s, "1", 1000.0)], **slow)
    row = run.history[0]
    assert row["late"] == ["1"]
    assert at_s + SILENT_S < row["wall_s"] < at_s + SILENT_S + 2.0 * merge["wall_s"]
    check_ledger(run.history, ROWS)


def test_nobody_waits_for_a_silent_worker_that_is_not_in_the_merge(few):
    changes = [Freeze(2.0, "1", 2.0), Freeze(0.625, "0", 20.0), Freeze(0.75, "1", 2.0)]
    changes += [Arrival(0.0, "100"), Arrival(2.6, "200")]
    values = {"strategy.name": "static", "combine.quorum": 0.3, "combine.grace": 0.05}
    run = simulate(
        few, {**values, "training.epochs": 4}, speeds=[1.0, 1.0, 0.5, 0.1], changes=changes
    )
    assert run.history[-1]["rows"] == 4 * ROWS
    check_ledger(run.history, ROWS)


def test_freezes_of_several_in_a_merge_are_not_added_up(few):
    slow = {"network": Network(bandwidth_bytes_s=2e3)}
    values = {"strategy.megabatch_batches": 400, "combine.quorum": 1.0, "training.epochs": 5}
    merge = simulate(few, values, **slow).history[0]
    at_s = merge["train_s"] + merge["merge_s"] / 2.0
    freezes = [Freeze(at_s + 0.01 * number, str(number), 50.0) for number in range(4)]
    row = simulate(few, values, changes=freezes, **slow).history[0]
    assert row["wall_s"] == pytest.approx(merge["wall_s"] + 50.03, abs=0.03)


def test_the_grace_follows_what_was_waited_for(few):
    """Workers are in within milliseconds of each other: nobody is waited for much longer."""
    batches = {"strategy.batch_max": 64, "strategy.megabatch_batches": 250}
    values = {**batches, "combine.grace": "auto", "training.epochs": 280}  # seven mega-batches
    calm = simulate(few, values).history
    length_s = calm[5]["train_s"]
    assert length_s > 2.0
    run = simulate(few, values, changes=[Freeze(calm[5]["wall_s"] - 0.05, "1", 100.0)])
    late = next(row for row in run.history if row.get("late"))
    assert late["megabatch"] == 6
    assert late["train_s"] < length_s + 0.3  # a quarter would be half a second and more


@pytest.mark.slow
def test_megabatches_grow_until_waiting_is_a_twentieth_of_the_time(few):
    values = {"strategy.megabatch_batches": "auto", "training.epochs": 50}
    far = {"network": Network(message_s=2e-3)}
    run = simulate(few, values, **far)
    lengths = [sum(w["rows"] for w in row["workers"].values()) // 8 for row in run.history]
    assert lengths[:1] == [50]
    assert set(lengths[:-1]) >= {50, 100}
    assert all(b <= 2 * a for a, b in pairwise(lengths))
    last = run.history[-2]
    busy_s = sum(worker["busy_s"] for worker in last["workers"].values()) / 4.0
    assert busy_s / (last["train_s"] + last["merge_s"]) > 0.85
    assert last["momentum"] == pytest.approx(0.9**2)
    rate = max(worker["lr"] for worker in last["workers"].values())
    assert rate == pytest.approx(0.1 * (1 - 0.9**2) / (1 - 0.9))
    alone = simulate(few, {**values, "training.epochs": 9}, speeds=[1.0], **far)
    assert {row["rows"] % 400 for row in alone.history} == {0}


@pytest.mark.slow
def test_a_run_whose_megabatches_grow_agrees_with_its_record_and_is_resumed(few, tmp_path):
    values = {"strategy.megabatch_batches": "auto", "training.epochs": 20}
    far = {"network": Network(message_s=2e-3)}
    whole = simulate(few, values, out=tmp_path / "whole", **far)
    assert verify(tmp_path / "whole").agrees
    stop = lambda row: daskxml.STOP if row["megabatch"] == 4 else None  # noqa: E731
    simulate(few, values, out=tmp_path / "two", on_megabatch=stop, **far)
    again = simulate(few, values, resume=tmp_path / "two", **far)
    rows = [row["rows"] for row in again.history]
    assert rows[:4] == [row["rows"] for row in whole.history[:4]]
    assert rows[6] - rows[5] > 400
    assert verify(tmp_path / "two").agrees


def test_a_barrier_waits(few):
    run = simulate(few, {"combine.quorum": 1.0}, changes=[Freeze(0.5, "1", 1.0)])
    times = [row["wall_s"] for row in run.history]
    assert max(np.diff(times)) > 1.0
    assert not any("late" in row for row in run.history)


def test_a_worker_at_a_tenth_of_the_speed_is_given_less_and_is_not_late_for_ever(few):
    run = simulate(few, {"training.epochs": 30}, speeds=[1.0, 1.0, 1.0, 0.1])
    last = run.history[-10:]
    assert not any("late" in row for row in last)
    assert all(0 < row["workers"]["3"]["rows"] < row["workers"]["0"]["rows"] / 4 for row in last)


@pytest.mark.slow
def test_runs_without_a_late_worker_are_those_of_the_barrier(few):
    by_quorum, waiting = simulate(few), simulate(few, {"combine.quorum": 1.0})
    assert np.array_equal(
        by_quorum.model.parameters["output.weight"], waiting.model.parameters["output.weight"]
    )


def changes(workers):
    names = st.sampled_from([str(number) for number in range(workers)])
    times = st.floats(0.0, 2.5)
    freezes = st.builds(Freeze, times, names, st.sampled_from([0.03, 0.1, 0.5, 2.0, 20.0]))
    losses = st.lists(st.builds(Loss, times, names), max_size=2, unique_by=lambda loss: loss.worker)
    arrivals = st.lists(times, max_size=2).map(
        lambda found: [Arrival(at_s, str(100 + n)) for n, at_s in enumerate(found)]
    )
    last = st.just([Arrival(2.6, "200")])
    return st.tuples(st.lists(freezes, max_size=4), losses, arrivals, last).map(
        lambda lists: [change for found in lists for change in found]
    )


@given(
    script=changes(4),
    speeds=st.lists(st.sampled_from([1.0, 1.0, 0.5, 0.1]), min_size=4, max_size=4),
    overrides=st.fixed_dictionaries(
        {
            "strategy.name": st.sampled_from(["adaptive-sgd", "elastic", "static"]),
            "combine.quorum": st.sampled_from([0.3, 0.5, 0.75, 0.9]),
            "combine.grace": st.sampled_from([0.01, 0.05, "auto"]),
            "training.epochs": st.sampled_from([2, 4]),
            "data.residency": st.sampled_from(["replicate", "shard"]),
            "checkpoint.every": st.sampled_from([2, 5]),
            "training.keep_best": st.booleans(),
        }
    ),
)
@settings(max_examples=6, deadline=None)
def test_every_row_counts_once_whatever_happens(few, tmp_path_factory, script, speeds, overrides):
    out = tmp_path_factory.mktemp("runs") / "run"
    run = simulate(few, overrides, speeds=speeds, changes=script, out=out)
    assert run.history[-1]["rows"] == overrides["training.epochs"] * ROWS
    check_ledger(run.history, ROWS)
    assert verify(out).disagreements == ()
