"""Runs whose output layer is cut among the workers: the model is that of one worker."""

from __future__ import annotations

import numpy as np
import pytest

import daskxml
from daskxml.api.simulate import simulate
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.local.cost import CostModel, Network
from daskxml.local.partitioning import check_steps
from daskxml.local.virtual_session import Arrival, Loss
from daskxml.observe.report.write import write_report
from daskxml.records.verification import verify

DATA = generate(SyntheticSpec(rows=600, test_rows=100, features=120, labels=400, seed=4))
ROWS = {
    name: daskxml.Matrices(to_scipy(part.features), to_scipy(part.labels))
    for name, part in zip(("train", "test"), DATA, strict=True)
}
COST = {"cost": CostModel(per_row_s=1e-3, jitter=0.0)}
CLOSE = {"rtol": 0, "atol": 2e-6}


def values(**sections):
    made = {
        "run": {"seed": 3},
        "model": {"hidden": [8], "output": "partitioned"},
        "strategy": {"lr": 0.5, "batch_max": 48, "megabatch_batches": 5},
        "training": {"epochs": 2},
        "evaluation": {"k": [1, 3]},
    }
    return {name: {**made.get(name, {}), **sections.get(name, {})} for name in {**made, **sections}}


def run(speeds, changes=(), out=None, **sections):
    return simulate(values(**sections), speeds, **ROWS, **COST, changes=changes, out=out)


@pytest.fixture(scope="module")
def alone():
    """The run of one worker."""
    return run([1.0])


def check_same(mine, other):
    for name, array in other.model.parameters.items():
        np.testing.assert_allclose(mine.model.parameters[name], array, **CLOSE, err_msg=name)
    assert [row["rows"] for row in mine.history] == [row["rows"] for row in other.history]
    assert [row["metrics"] for row in mine.history] == [row["metrics"] for row in other.history]


def test_any_workers_train_the_model_of_one(alone):
    check_same(run([1.0, 0.5, 0.25]), alone)
    mirrored = run([1.0], model={"output": "replicated"}, strategy={"name": "mirrored"})
    for name, array in mirrored.model.parameters.items():
        np.testing.assert_allclose(alone.model.parameters[name], array, **CLOSE)


def test_labels_follow_measured_speeds():
    sizes = {"batch_max": 192, "megabatch_batches": 8}
    history = run([1.0, 1.0, 0.5, 0.25], strategy=sizes, training={"epochs": 6}).history
    for row in history[1:]:
        busy = [worker["busy_s"] for worker in row["workers"].values()]
        assert min(busy) > 0.9 * max(busy)  # of whole rows
    first, last = (list(row["workers"].values()) for row in (history[0], history[-1]))
    assert first[0]["labels_to"] > 0.3  # labels have moved within the first, from 0.25
    held = [worker["labels_to"] - worker["labels_from"] for worker in last]
    assert held == pytest.approx([4 / 11, 4 / 11, 2 / 11, 1 / 11], abs=0.01)


def test_labels_that_move_within_a_megabatch_change_nothing(tmp_path):
    sizes = {"batch_max": 24, "megabatch_batches": 25, "reshard_above": 0.0}
    one = run([1.0], strategy=sizes, optimizer={"name": "momentum"})
    cost = CostModel(per_row_s=2e-2, jitter=0.3)  # gangs are short, and times differ
    found = simulate(
        values(strategy=sizes, optimizer={"name": "momentum"}), [1.0, 0.7], **ROWS, cost=cost,
        out=tmp_path,
    )  # fmt: skip
    check_same(found, one)
    gangs = [c for row in found.history for _, *cs in row["trace"] for c in cs if c[0] == "Gang"]
    cuts = [tuple(gang[2][1]) for gang in gangs]
    assert len(set(cuts)) > 2 * len(found.history)
    assert not verify(tmp_path).disagreements


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.7, 0.9])
def test_a_loss_and_an_arrival_at_any_time_change_nothing(alone, share):
    steady = run([1.0, 1.0, 1.0])
    at_s = share * sum(row["train_s"] for row in steady.history)
    found = run([1.0, 1.0, 1.0], [Loss(at_s, "1"), Arrival(1.2 * at_s, "9", 2.0)])
    check_same(found, alone)
    assert any(event["kind"] == "lost" for row in found.history for event in row["events"])


def test_two_losses_at_once_lead_back_to_the_checkpoint(alone, tmp_path):
    changes, said = [Loss(0.25, "0"), Loss(0.25, "1")], []
    found = simulate(
        values(checkpoint={"every": 1}), [1.0, 1.0, 1.0], **ROWS, **COST, changes=changes,
        out=tmp_path, on_event=said.append,
    )  # fmt: skip
    check_same(found, alone)
    warnings = [event["text"] for event in said if event["kind"] == "warning"]
    assert warnings == ["some labels and their copies were lost; going back to the last checkpoint"]
    assert not verify(tmp_path).disagreements


def test_a_checkpoint_is_continued_by_other_workers(alone, tmp_path):
    for optimizer in ("sgd", "adam"):
        out, given = tmp_path / optimizer, {"optimizer": {"name": optimizer}}
        given |= {"strategy": {"lr": 0.01}} if optimizer == "adam" else {}
        whole = run([1.0, 1.0], **given)
        run([1.0, 1.0], out=out, **given, training={"epochs": 2, "megabatches": 2})
        resumed = simulate(values(**given), [0.5, 1.0, 0.25], **ROWS, **COST, resume=out)
        check_same(resumed, whole)


def test_rows_that_are_spread_over_workers_make_the_steps_of_one():
    spread = {"data": {"residency": "shard", "partitions": 5}}
    one = run([1.0], **spread)
    check_same(run([1.0, 0.5, 0.25], **spread), one)
    lost = run([1.0, 1.0, 1.0], [Loss(0.1 * one.history[-1]["wall_s"], "1")], **spread)
    check_same(lost, one)
    assert any(event["kind"] == "lost" for row in lost.history for event in row["events"])


@pytest.mark.parametrize("transfer", ["float32", "bfloat16"])
def test_steps_are_told_beside_what_the_cost_model_predicts(tmp_path, transfer):
    sizes = {"batch_max": 48, "megabatch_batches": 5}
    given = values(
        strategy=sizes, training={"epochs": 4}, combine={"transfer": transfer},
        model={"loss": "sigmoid" if transfer == "bfloat16" else "softmax"},
    )  # fmt: skip
    network = Network(bandwidth_bytes_s=1e6, latency_s=1e-5)
    found = simulate(given, [1.0, 1.0, 0.5], **ROWS, **COST, network=network, out=tmp_path)
    loss, units = found.model.header.spec.loss, 8
    check = check_steps(found.history, loss, units, transfer)
    assert check.predicted_bytes == pytest.approx(check.measured_bytes, rel=0.02)
    assert check.predicted_s == pytest.approx(check.measured_s, rel=0.1)
    assert check_steps(found.history[:3], loss, units) is None
    page = write_report([tmp_path], pictures=False).page.read_text()
    assert str(check) in page


def test_the_record_holds_whatever_happens(tmp_path):
    found = run([1.0, 1.0, 0.5], [Loss(0.15, "2"), Arrival(0.2, "3")], tmp_path)
    assert [e["kind"] for row in found.history for e in row["events"]] == ["lost", "joined"]
    assert not verify(tmp_path).disagreements


def test_the_best_model_is_the_result_also_of_a_run_that_is_resumed(tmp_path):
    given = {"training": {"megabatches": 6, "keep_best": True}, "strategy": {"lr": 8.0}}
    whole = run([1.0, 0.5], **given)
    best = whole.model.header.training["best_megabatch"]
    assert 0 < best < 6
    one = run([1.0], **given)
    check_same(whole, one)
    lost = run([1.0, 1.0, 1.0], [Loss(0.7 * one.history[-1]["wall_s"], "1")], **given)
    check_same(lost, one)
    first = {**given, "training": {"megabatches": best + 1, "keep_best": True}}
    run([1.0, 1.0], out=tmp_path, **first)
    resumed = simulate(values(**given), [0.5, 1.0, 0.25], **ROWS, **COST, resume=tmp_path)
    check_same(resumed, whole)
    assert resumed.model.header.training["best_megabatch"] == best


def test_a_best_model_of_before_outlives_a_resume_that_others_join_at_once(tmp_path):
    given = {"training": {"megabatches": 5, "keep_best": True}, "strategy": {"lr": 8.0}}
    one = run([1.0], out=tmp_path, **given)
    best = one.model.header.training["best_megabatch"]
    assert 0 < best < 5
    more = {"training": {"epochs": 3, "keep_best": True}, "strategy": {"lr": 500.0}}  # worse
    arrivals = [Arrival(1e-9, "8"), Arrival(1e-9, "9", 2.0)]
    resumed = simulate(values(**more), [1.0], **ROWS, **COST, resume=tmp_path, changes=arrivals)
    assert len(resumed.history[-1]["workers"]) == 3
    assert resumed.model.header.training["best_megabatch"] == best
    for name, array in one.model.parameters.items():
        np.testing.assert_array_equal(resumed.model.parameters[name], array, err_msg=name)


def test_weights_of_rows_and_of_labels_are_those_of_one_worker():
    rows = ROWS["train"]
    drawn = np.random.default_rng(1).uniform(0, 2, 600)
    weighted = daskxml.Matrices(rows.X, rows.Y, sample_weight=drawn)
    given = values(training={"class_weight": "propensity"}, optimizer={"clip_norm": 0.1})
    one, two = (
        simulate(given, speeds, train=weighted, test=ROWS["test"], **COST)
        for speeds in ([1.0], [1.0, 0.3])
    )
    check_same(two, one)
    assert [row["loss"] for row in two.history] == pytest.approx([r["loss"] for r in one.history])
