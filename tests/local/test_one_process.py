"""A run in this process: every strategy, and the same model as with one virtual worker."""

import gc
from collections import Counter

import numpy as np
import pytest

import daskxml
from daskxml.api.in_process import train_here
from daskxml.core.errors import ModelError
from harness.every_strategy import ROW_STRATEGIES

RNG = np.random.default_rng(7)
FEATURES = RNG.random((96, 12))
ROWS = daskxml.Matrices(FEATURES, RNG.random((96, 8)) < 0.3)
TEST = daskxml.Matrices(RNG.random((20, 12)), RNG.random((20, 8)) < 0.3)


def config(strategy, **sections):
    return {
        "model": {"hidden": [8]},
        "strategy": {"name": strategy, "batch_max": 16, "megabatch_batches": 2},
        "training": {"epochs": 2},
        "cluster": {"threads": 1},
        **sections,
    }


def weights(run):
    return np.concatenate([array.ravel() for array in run.model.parameters.values()])


@pytest.mark.parametrize("strategy", ROW_STRATEGIES)
def test_every_strategy_gives_the_bits_of_one_virtual_worker(strategy):
    sections = config(strategy)
    here = train_here(sections, train=ROWS, test=TEST)
    there = daskxml.simulate(sections, [1.0], train=ROWS, test=TEST)
    assert [row["rows"] for row in here.history] == [row["rows"] for row in there.history]
    np.testing.assert_array_equal(weights(here), weights(there))
    assert here.metrics == there.metrics
    assert here.reason == "epochs"


@pytest.mark.parametrize(
    "sections",
    [
        {"combine": {"rule": "adasum"}},
        {"optimizer": {"name": "adam", "on_merge": "average"}},
        {"data": {"residency": "shard", "partitions": 3}},
        {"evaluation": {"training_loss": True, "every": 2}},
        {"cluster": {"pools": 1, "pool_threads": 1}},
    ],
)
def test_every_kind_of_merge_and_data_ends_with_a_finite_model(sections):
    run = train_here(config("adaptive-sgd", **sections), train=ROWS, test=TEST)
    assert sum(row["workers"]["0"]["rows"] for row in run.history) == run.history[-1]["rows"]
    assert np.isfinite(weights(run)).all()
    assert run.metrics["rows"] == 20


def test_a_run_ends_when_its_time_is_up():
    sections = config("elastic", training={"minutes": 0.01 / 60})
    run = train_here(sections, train=ROWS)
    assert run.reason == "minutes"
    assert run.history


def test_a_model_that_does_not_fit_is_refused():
    model = train_here(config("elastic"), train=ROWS).model
    for changed, message in [
        ({"model": {"hidden": [9]}}, "hidden layers"),
        ({"model": {"hidden": [8], "activation": "sigmoid"}}, "hidden layers"),
    ]:
        with pytest.raises(ModelError, match=message):
            train_here(config("elastic", **changed), train=ROWS, start=model)
    narrow = daskxml.Matrices(ROWS.X[:, :5], ROWS.Y)
    with pytest.raises(ModelError, match="has 12 features, the rows 5"):
        train_here(config("elastic"), train=narrow, start=model)


def in_memory():
    """The objects of this package that are there, by their class."""
    kinds = (type(each) for each in gc.get_objects())
    return Counter(it.__qualname__ for it in kinds if str(it.__module__).startswith("daskxml"))


@pytest.mark.parametrize("run_file", [config("adaptive-sgd"), "tree"], ids=["network", "tree"])
@pytest.mark.parametrize("trains", [train_here, daskxml.simulate])
def test_rows_and_replicas_of_a_run_leave_the_memory_with_it(trains, run_file):
    def train():
        speeds = {} if trains is train_here else {"speeds": [1.0, 0.5]}
        trains(run_file, train=ROWS, test=TEST, **speeds).model.predict(FEATURES)

    train()  # what is read and compiled once stays
    gc.collect()
    before = in_memory()
    gc.disable()
    try:
        train()
        assert in_memory() == before
    finally:
        gc.enable()
