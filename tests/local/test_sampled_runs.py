"""Runs whose output layer is sampled: by replicas and pools, from the run file to the history."""

from __future__ import annotations

import numpy as np
import pytest

from daskxml.api.simulate import simulate
from daskxml.config import load_run_config
from daskxml.core.errors import ConfigError, DaskxmlError

SAMPLING = {"active": 30, "l": 8, "k": 2, "rebuild_every": 300}


TREE = {"model": {"kind": "tree", "leaf_labels": 10}, "training": {"epochs": 1}}


@pytest.fixture(scope="module")
def tree(data, tmp_path_factory):
    """The directory of label trees of the same rows."""
    folder = tmp_path_factory.mktemp("tree")
    simulate(TREE, [1], **data, out=folder)
    return str(folder)


def flat(run):
    return np.concatenate([np.ravel(array) for _, array in sorted(run.model.parameters.items())])


@pytest.mark.parametrize("method", ["simhash", "dwta", "random"])
@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_a_sampled_run_learns_and_tells_the_active_share(data, values, costs, method, loss):
    values["sampling"] = {"method": method, **SAMPLING}
    values["model"]["loss"] = loss
    run = simulate(values, [1, 0.7], **data, **costs)
    for row in run.history:  # 30 of 60 labels, and more where a batch's rows have more
        assert 0.5 <= row["notes"]["active"] < 0.9
    assert run.history[-1]["loss"] < run.history[0]["loss"]
    assert run.metrics["P@1"] > 0.1


@pytest.mark.parametrize("method", ["simhash", "random"])
def test_each_row_has_labels_of_its_own(data, values, costs, method):
    values["sampling"] = {"method": method, **SAMPLING, "sets": "row", "active": 20}
    run = simulate(values, [1, 0.7], **data, **costs)
    for row in run.history:  # 20 of 60 labels; no row has as many of its own
        assert row["notes"]["active"] == pytest.approx(20 / 60)
    assert run.history[-1]["loss"] < run.history[0]["loss"]
    assert run.metrics["P@1"] > 0.1


@pytest.mark.parametrize("sets", ["batch", "row"])
def test_a_tree_names_labels(data, values, costs, tree, sets):
    """By the same number of labels a row's loss falls, and the beam's are among them."""
    values["sampling"] = {"method": "tree", "model": tree, "sets": sets, "active": 30}
    run = simulate(values, [1, 0.7], **data, **costs)
    for row in run.history:
        assert 0.5 <= row["notes"]["active"] < 0.9
    assert run.history[-1]["loss"] < run.history[0]["loss"]
    assert run.metrics["P@1"] > 0.1
    by_chance = simulate(values, [1, 0.7], **data, **costs, overrides=["sampling.random=1.0"])
    assert not np.array_equal(flat(run), flat(by_chance))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("none", "no such directory"),
        ("network", "is no label tree; train one by `daskxml train tree`"),
        ("other", "has 3 features and 2 labels, the rows 300 and 60; train it on the same files"),
    ],
)
def test_what_is_no_tree_of_these_rows_is_refused(data, values, costs, tmp_path, kind, message):
    values["sampling"] = {"method": "tree", "model": str(tmp_path / "model")}
    if kind == "network":
        simulate({"training": {"megabatches": 1}}, [1], **data, out=tmp_path / "model")
    if kind == "other":
        (tmp_path / "train.txt").write_text("2 3 2\n0 0:1\n1 2:1\n")
        simulate(TREE, [1], train=tmp_path / "train.txt", out=tmp_path / "model")
    with pytest.raises(DaskxmlError, match=message) as caught:
        simulate(values, [1], **data, **costs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["simhash", "random", "tree"])
@pytest.mark.parametrize("sets", ["batch", "row"])
def test_stopped_and_resumed_it_is_the_same(data, values, costs, tmp_path, tree, method, sets):
    values["sampling"] = {"method": method, **SAMPLING, "sets": sets}
    if method == "tree":
        values["sampling"]["model"] = tree
    values["optimizer"] = {"name": "adam"}
    values["strategy"]["lr"] = 0.01
    whole = simulate(values, [1, 0.7], **data, **costs)
    simulate(values, [1, 0.7], **data, **costs, out=tmp_path, overrides={"training.megabatches": 4})
    resumed = simulate(
        tmp_path / "run.toml", [1, 0.7], **costs, resume=tmp_path,
        overrides={"training.megabatches": 6},
    )  # fmt: skip
    np.testing.assert_array_equal(flat(whole), flat(resumed))


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"sampling": {"method": "simhsh"}}, "method = 'simhsh': must be one of"),
        ({"sampling": {"sets": "rows"}}, "sets = 'rows': must be one of"),
        ({"sampling": {"active": -3}}, "active = -3.0: must be above 0"),
        ({"sampling": {"actve": 3}}, "unknown key 'actve', did you mean 'active'?"),
        ({"optimizer": {"clip_norm": 1.0}}, "needs an optimizer that changes some rows alone"),
        ({"optimizer": {"name": "lamb"}}, "needs an optimizer that changes some rows alone"),
        ({"strategy": {"name": "mirrored"}}, "needs a strategy that leases batches"),
        ({"cluster": {"device": "cuda"}}, "needs a CPU"),
        ({"sampling": {"method": "tree"}}, "give the directory of label trees"),
        ({"sampling": {"model": "runs/tree"}}, "is for method 'tree', not 'random'"),
        (
            {"sampling": {"method": "tree", "model": "x"}, "data": {"residency": "shard"}},
            "needs all rows on every worker",
        ),
    ],
)
def test_what_does_not_go_with_sampling_is_refused(tables, message):
    tables = {"training": {"epochs": 1}, **tables}
    tables["sampling"] = {"method": "random", **tables.get("sampling", {})}
    with pytest.raises(ConfigError) as caught:
        load_run_config(tables)
    assert message in str(caught.value)
    assert "[sampling]" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lamb_in_the_hidden_layers_goes_with_sampling():
    tables = {"training": {"epochs": 1}, "sampling": {"method": "random"}}
    tables["optimizer"] = {"name": "lamb", "output": "adam"}
    assert load_run_config(tables).sampling.is_on
