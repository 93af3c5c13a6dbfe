"""Runs whose output layer is cut among the workers: the model is that of one worker."""

from __future__ import annotations

import numpy as np
import pytest

import daskxml
from daskxml.api.simulate import simulate
from daskxml.core.errors import ConfigError
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.records.verification import verify
from daskxml.simulator.cost import CostModel
from daskxml.simulator.virtual_session import Arrival, Loss

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
    history = run([1.0, 1.0, 0.5, 0.25], strategy={"batch_max": 192}).history
    assert {worker["rows"] for worker in history[0]["workers"].values()} == {240}
    for row in history[1:]:
        busy = [worker["busy_s"] for worker in row["workers"].values()]
        assert min(busy) > 0.95 * max(busy)
        assert row["train_s"] < 0.5 * history[0]["train_s"]


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


def test_the_record_holds_whatever_happens(tmp_path):
    found = run([1.0, 1.0, 0.5], [Loss(0.15, "2"), Arrival(0.2, "3")], tmp_path)
    assert [e["kind"] for row in found.history for e in row["events"]] == ["lost", "joined"]
    assert not verify(tmp_path).disagreements


def test_weights_of_rows_are_refused_wherever_they_come_from():
    rows = ROWS["train"]
    weighted = daskxml.Matrices(rows.X, rows.Y, sample_weight=np.ones(600))
    with pytest.raises(ConfigError, match="takes no weights of rows"):
        simulate(values(), [1.0, 1.0], train=weighted, **COST)
