"""Contributions in label trees and mixtures add up to the probability."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp

import daskxml
from daskxml.api.in_process import train_here
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.models.trees.kind import Step, path_contributions

ROWS = SyntheticSpec(rows=300, test_rows=20, features=50, labels=24, seed=2)
DEEP = {"model.leaf_labels": 3, "model.beam": 64, "model.powers": [1.0, 0.5]}
CLOSE = {"rtol": 1e-4, "atol": 1e-6}


@pytest.fixture(scope="module")
def rows():
    return [(to_scipy(part.features), to_scipy(part.labels)) for part in generate(ROWS)]


@pytest.fixture(scope="module")
def parts(rows):
    matrices, network = daskxml.Matrices(*rows[0]), {"training.epochs": 3, "data.normalize": "none"}
    settings = {
        "tree": ("tree", {}),
        "trees": ("best", DEEP),
        "network": ("adaptive-sgd", {**network, "model.hidden": [16, 8]}),
        "linear": ("adaptive-sgd", {**network, "model.hidden": []}),
    }
    return {
        name: train_here(run_file, train=matrices, overrides=given).model
        for name, (run_file, given) in settings.items()
    }


@pytest.fixture(scope="module", params=["tree", "trees", ("tree", "trees")], ids=str)
def model(request, parts):
    if isinstance(request.param, str):
        return parts[request.param]
    return daskxml.mix([parts[name] for name in request.param], weights=(0.3, 0.7))


def probability(model, X, label):
    """The score that `predict_top_k` gives a label."""
    ids, scores = model.predict_top_k(X, model.spec.labels)
    return np.where(ids == label, scores, 0.0).sum(axis=1)


def test_contributions_add_up_to_what_the_row_has_more_than_an_empty_one(model, rows):
    X, _ = rows[1]
    empty = sp.csr_matrix((1, X.shape[1]))
    for row in range(4):
        best = model.predict_top_k(X[row], 2)[0][0]
        for label in [*best.tolist(), 3]:
            ids, added = model.explain(X[row], label)
            assert ids.tolist() == X[row].indices.tolist()
            wanted = probability(model, X[row], label) - probability(model, empty, label)
            np.testing.assert_allclose([added.sum()], wanted, **CLOSE)


@pytest.mark.parametrize("name", ["network", "linear"])
def test_a_network_explains_its_logits(parts, rows, name):
    model, row, label, step = parts[name], rows[1][0][0], 3, 1e-2
    ids, added = model.explain(row, label)
    for feature, contribution in zip(ids, added, strict=True):
        moved = row.copy()
        moved[0, feature] *= 1.0 + step
        slope = (model.logits(moved) - model.logits(row))[0, label] / step
        assert contribution == pytest.approx(slope, rel=1e-2, abs=1e-3)


def test_a_mixture_with_a_network_is_explained_by_its_parts(parts, rows):
    network = parts["network"]
    scaled = dataclasses.replace(network.header, normalize="l2")
    network = daskxml.Model(scaled, network.parameters, network.label_counts)
    mixed = daskxml.mix([parts["trees"], network], weights=(0.3, 0.7))
    with pytest.raises(daskxml.ConfigError, match="explain its parts"):
        mixed.explain(rows[1][0][0], 3)


def test_contributions_are_integrated_gradients():
    rng = np.random.default_rng(0)
    steps = [Step(b, np.arange(6), rng.normal(size=6)) for b in (-0.5, 0.2, 1.4)]
    values = rng.random(6)
    shares = (np.arange(20_000) + 0.5) / 20_000
    lacks = [np.maximum(0, 1 - s.bias - shares * (s.weights @ values)) for s in steps]
    gradients = sum(3 * np.mean(lack**2) * s.weights for lack, s in zip(lacks, steps, strict=True))
    added, empty = path_contributions(steps, np.arange(6), values)
    np.testing.assert_allclose(
        added / added.sum(), values * gradients / (values @ gradients), rtol=1e-4
    )
    assert empty == pytest.approx(np.exp(-(1.5**3) - 0.8**3))


def test_features_without_weights_and_rows_without_features(parts):
    nothing = sp.csr_matrix((1, ROWS.features))
    for name in ("tree", "network"):
        ids, added = parts[name].explain(nothing, 0)
        assert (ids.size, added.size) == (0, 0)
    added, _ = path_contributions([Step(0.5, np.array([1]), np.ones(1))], np.array([0]), np.ones(1))
    assert added.tolist() == [0.0]
