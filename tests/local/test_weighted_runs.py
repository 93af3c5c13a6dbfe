"""Weights of rows and labels in whole runs: 2 is the row twice, and what is refused."""

import numpy as np
import pytest

import daskxml
from daskxml.api.in_process import train_here
from daskxml.core.errors import ConfigError, InputError

RNG = np.random.default_rng(5)
X, Y = RNG.random((60, 8)), RNG.random((60, 6)) < 0.3
COUNTS = RNG.integers(0, 4, 60)
TWICE = np.repeat(np.arange(60), COUNTS)
CLASS_WEIGHTS = [1.0, 2.0, 3.0, 0.5, 1.0, 0.0]


def network(rows, loss="softmax", epochs=5, **training):
    """A run whose batches are all rows."""
    return {
        "model": {"hidden": [5], "loss": loss},
        "strategy": {"name": "static", "batch_max": rows, "megabatch_batches": 1, "lr": 0.5},
        "training": {"epochs": epochs, **training},
        "cluster": {"threads": 1},
    }


def tree(**training):
    solver = {"cost": 0.5, "value_power": 1.0, "passes": 500, "smallest_weight": 0.0}
    return {
        "model": {"kind": "trees", "leaf_labels": 2, **solver},
        "training": {"trees": 1, **training},
        "cluster": {"threads": 1},
    }


def same(first, second, atol):
    for name, array in first.model.parameters.items():
        np.testing.assert_allclose(array, second.model.parameters[name], atol=atol, err_msg=name)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("class_weight", ["none", CLASS_WEIGHTS])
def test_a_row_of_weight_two_is_the_row_twice(loss, class_weight):
    given = {"loss": loss, "class_weight": class_weight}
    rows = daskxml.Matrices(X, Y, COUNTS)
    weighted = train_here(network(len(X), **given), train=rows)
    repeated = daskxml.Matrices(X[TWICE], Y[TWICE])
    twice = train_here(network(len(TWICE), **given), train=repeated)
    same(weighted, twice, 2e-6)
    losses = [run.history[-1]["loss"] for run in (weighted, twice)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    other = train_here(network(len(X), **given), train=daskxml.Matrices(X, Y))
    assert other.history[-1]["loss"] != pytest.approx(losses[0], rel=1e-3)


@pytest.mark.parametrize("class_weight", ["none", CLASS_WEIGHTS])
def test_a_row_of_weight_two_is_the_row_twice_in_label_trees(monkeypatch, class_weight):
    order = np.arange(6, dtype=np.int32)  # clusters of labels do not see weights
    monkeypatch.setattr("daskxml.models.trees.fitting.order_of_tree", lambda *_: order)
    monkeypatch.setattr("daskxml.models.trees.nodes._OTHERS", 0.0)  # nor does the sample of others
    rows = daskxml.Matrices(X, Y, COUNTS)
    weighted = train_here(tree(class_weight=class_weight), train=rows)
    repeated = daskxml.Matrices(X[TWICE], Y[TWICE])
    same(weighted, train_here(tree(class_weight=class_weight), train=repeated), 1e-3)


@pytest.mark.parametrize("strategy", ["hogbatch", "adaptive-hogbatch", "mirrored", "crossbow"])
@pytest.mark.parametrize("batch", [1, 7])
def test_equal_weights_change_nothing(strategy, batch):
    """Whatever they are: their mean is 1; batches of one row too."""
    sections = {"strategy": {"name": strategy, "batch_max": batch}, "training": {"epochs": 1}}
    sections |= {"model": {"hidden": [5]}, "cluster": {"threads": 1}}
    if "hogbatch" in strategy:
        sections["cluster"] |= {"pools": 1, "pool_threads": 1}
    plain = train_here(sections, train=daskxml.Matrices(X, Y))
    same(plain, train_here(sections, train=daskxml.Matrices(X, Y, np.full(60, 7))), 2e-6)


def test_a_run_file_names_weights_and_labels(tmp_path):
    lines = []
    for x, y in zip(np.float32(X), Y, strict=True):
        features = " ".join(f"{i}:{v:.9g}" for i, v in enumerate(x))
        lines.append(",".join(map(str, np.flatnonzero(y))) + " " + features)
    (tmp_path / "rows.txt").write_text("\n".join([f"{len(X)} 8 6", *lines, ""]))
    (tmp_path / "names.txt").write_text("\n".join("abcdef"))
    (tmp_path / "weights.txt").write_text("\n".join(map(str, COUNTS)))
    sections = network(len(X), class_weight={"b": 2, "2": 3.0})
    paths = {name: str(tmp_path / f"{name}.txt") for name in ("weights", "names")}
    sections["data"] = {"weights": paths["weights"], "label_names": paths["names"]}
    found = train_here(sections, train=tmp_path / "rows.txt")
    rows = daskxml.Matrices(np.float32(X), Y, COUNTS)
    expected = train_here(network(len(X), class_weight=[1, 2, 3, 1, 1, 1]), train=rows)
    same(found, expected, 1e-6)


@pytest.mark.parametrize("choice", ["balanced", "propensity"])
def test_rare_labels_count_more(choice):
    frequent = np.column_stack([np.ones(60), RNG.random((60, 5)) < 0.2])
    rows = daskxml.Matrices(X, frequent)
    plain, weighted = (
        train_here(network(60, class_weight=it, epochs=300), train=rows).model.predict(X, 6)
        for it in ("none", choice)
    )
    assert weighted[:, 0].sum() < plain[:, 0].sum()


@pytest.mark.parametrize(
    ("training", "problem"),
    [
        ({"class_weight": [1.0, -2.0]}, "class_weight of label 1 is -2.0: must be a finite number"),
        ({"class_weight": {"7": float("nan")}}, "class_weight of label '7' is nan"),
        ({"class_weight": {"nobody": 2.0}}, "'nobody' is no label: give a name"),
        ({"class_weight": {"6": 2.0}}, "'6' is no label: .*an id from 0 to 5"),
        ({"class_weight": [1.0]}, "class_weight has 1 weights for 6 labels"),
        ({"class_weight": "balance"}, "class_weight = 'balance': must be one of 'none'"),
        ({"class_weight": {"1": "much"}}, "a table of names, each a number"),
    ],
)
def test_bad_weights_of_labels_are_refused(training, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        train_here(network(60, **training), train=daskxml.Matrices(X, Y))
    assert "\n" not in str(caught.value)


def test_bad_weights_of_rows_are_refused():
    with pytest.raises(InputError, match="59 weights for 60 rows: give one for each"):
        train_here(network(60), train=daskxml.Matrices(X, Y, np.ones(59)))


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"cluster": {"device": "cuda"}}, "class_weight = .balanced.: needs a CPU"),
        ({"sampling": {"method": "random"}}, "class_weight = .balanced.: needs all labels"),
    ],
)
def test_gpus_and_samples_of_labels_take_no_weights(sections, problem):
    with pytest.raises(ConfigError, match=problem):
        train_here(network(60, class_weight="balanced") | sections, train=daskxml.Matrices(X, Y))


def test_samples_of_labels_refuse_weights_of_matrices():
    sections = network(60) | {"sampling": {"method": "random"}}
    with pytest.raises(ConfigError, match="weights of rows or labels need all labels"):
        train_here(sections, train=daskxml.Matrices(X, Y, np.ones(60)))
