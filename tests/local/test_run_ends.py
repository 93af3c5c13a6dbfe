"""How a run ends, and which model is its result: in the simulator and in one process."""

import itertools

import numpy as np
import pytest

import daskxml
from daskxml.api.in_process import train_here
from daskxml.core.errors import CallbackWarning
from daskxml.local import Arrival, CostModel, Loss
from harness.every_strategy import ROW_STRATEGIES
from harness.ledger_check import check_ledger
from harness.small_data import FEW, matrices

COST = CostModel(fixed_s=1e-3, per_row_s=1e-4, per_nonzero_s=0.0)
# A rate at which the metric goes up and down.
VALUES = {
    "model": {"hidden": [8]},
    "strategy": {"name": "elastic", "batch_max": 20, "megabatch_batches": 3, "lr": 60.0},
    "training": {"megabatches": 12},
    "cluster": {"threads": 1},
}


def simulate(few, overrides=(), **given):
    given = {"speeds": [1.0, 0.7], "cost": COST, **given}
    return daskxml.simulate(VALUES, overrides=overrides, **few, **given)


def here(few, overrides=(), **given):
    return train_here(VALUES, overrides=overrides, **few, **given)


def check_best(run):
    """Check that the model is the first of those that were best."""
    found = [row["metrics"].get("P@1", -1.0) for row in run.history]
    best = run.model.header.training["best_megabatch"]
    assert best == found.index(max(found)) + 1
    assert run.metrics == run.history[best - 1]["metrics"]
    return best


# ------------------------------------------------------------------ epochs


@pytest.mark.parametrize(
    ("strategy", "epochs"),
    [
        *itertools.product(ROW_STRATEGIES, [1.99]),
        *itertools.product(["elastic", "mirrored"], [0.3, 2]),
    ],
)
def test_a_run_ends_with_its_epochs(few, strategy, epochs):
    limits = {"strategy.name": strategy, "training.epochs": epochs, "training.megabatches": 0}
    run = simulate(few, {**limits, "strategy.lr": 0.1})
    assert run.reason == "epochs"
    assert run.history[-1]["rows"] == np.ceil(epochs * 400)
    check_ledger(run.history, 400)


def test_a_run_ends_with_its_epochs_though_workers_come_and_go(few):
    limits = {"training.epochs": 2, "training.megabatches": 0}
    changes = [Loss(0.02, "1"), Arrival(0.05, "2", 2.0), Loss(0.1, "0")]
    run = simulate(few, {**limits, "strategy.lr": 0.1}, changes=changes)
    assert run.history[-1]["rows"] == 800
    check_ledger(run.history, 400)


# ------------------------------------------------------------ the best model


@pytest.mark.parametrize("train", [simulate, here])
@pytest.mark.parametrize("strategy", ["elastic", "adaptive-sgd", "mirrored", "crossbow"])
def test_the_best_model_is_the_result(few, train, strategy):
    overrides = {"training.keep_best": True, "strategy.name": strategy}
    best = check_best(run := train(few, overrides))
    assert best < 12 or strategy != "elastic", "the metric goes up and down"
    # The same run that ends there has the same model.
    stopped = train(few, {"strategy.name": strategy, "training.megabatches": best})
    for name, array in stopped.model.parameters.items():
        np.testing.assert_array_equal(run.model.parameters[name], array)
    assert "best_megabatch" not in stopped.model.header.training


def test_the_best_model_survives_losses_arrivals_and_restarts(few, tmp_path):
    overrides = {"training.keep_best": True, "checkpoint.every": 2}
    changes = [Loss(0.05, "1"), Arrival(0.06, "2"), Loss(0.1, "0"), Loss(0.15, "2"),
               Arrival(0.15, "3")]  # fmt: skip
    run = simulate(few, overrides, changes=changes, out=tmp_path / "run")
    best = check_best(run)
    found = run.model.evaluate(*matrices(few["test"], FEW))
    assert found == pytest.approx(run.history[best - 1]["metrics"])


def test_a_resumed_run_has_the_best_model_of_both_parts(few, tmp_path):
    overrides = {"training.keep_best": True, "checkpoint.every": 1}
    whole = simulate(few, overrides)
    simulate(few, {**overrides, "training.megabatches": 11}, out=tmp_path / "run")
    (tmp_path / "run/model.json").unlink()
    resumed = simulate(few, overrides, resume=tmp_path / "run")
    assert check_best(resumed) == check_best(whole) < 11
    for name, array in whole.model.parameters.items():
        np.testing.assert_array_equal(resumed.model.parameters[name], array)


def test_the_best_model_is_kept_where_rows_are_held_out(few):
    held = here(few, {"data.validation": 0.2})
    check_best(held)
    for overrides in ({}, {"data.validation": 0.2, "training.keep_best": False}):
        assert "best_megabatch" not in here(few, overrides).model.header.training


# ---------------------------------------------------------------- patience


@pytest.mark.parametrize("train", [simulate, here])
def test_a_run_ends_when_nothing_has_improved(few, train):
    run = train(few, {"training.patience": 3, "strategy.lr": 1e-30, "evaluation.every": 2})
    assert run.reason == "patience"
    assert len(run.history) == 8  # the first evaluation, and three that are no better
    run = train(few, {"training.patience": 2})
    found = [row["metrics"]["P@1"] for row in run.history]
    assert len(found) == found.index(max(found)) + 3


@pytest.mark.parametrize("key", ["training.patience", "training.keep_best"])
def test_what_needs_evaluations_is_refused_without(few, key):
    value = {"training.patience": 2, "training.keep_best": True}[key]
    with pytest.raises(daskxml.ConfigError, match=rf"{key} needs test rows"):
        train_here(VALUES, train=few["train"], overrides={key: value})
    with pytest.raises(daskxml.ConfigError, match=r"'P@4': is never measured: add 4"):
        here(few, {key: value, "training.target_metric": "P@4"})


# ---------------------------------------------------------------- callbacks


@pytest.mark.parametrize("train", [simulate, here])
@pytest.mark.parametrize("name", ["on_megabatch", "on_event"])
def test_a_callback_ends_a_run(few, train, name):
    def stop(seen):
        row = seen.get("row", seen)
        return daskxml.STOP if row.get("megabatch", 0) >= 3 else None

    run = train(few, **{name: stop})
    assert run.reason == "callback"
    assert 3 <= len(run.history) <= 4  # the mega-batch that had begun is merged
    check_ledger(run.history, 400)
    assert repr(daskxml.STOP) == "daskxml.STOP"


@pytest.mark.parametrize("train", [simulate, here])
def test_exceptions_that_are_named_pass_through(few, train):
    class PrunedError(Exception):
        pass

    def prune(row):
        raise PrunedError(row["megabatch"])

    with pytest.raises(PrunedError, match="1"):
        train(few, on_megabatch=prune, raises=[PrunedError])
    with pytest.warns(CallbackWarning) as warned:
        assert len(train(few, on_megabatch=prune, raises=[OSError]).history) == 12
    assert "PrunedError" in str(warned[0].message)
