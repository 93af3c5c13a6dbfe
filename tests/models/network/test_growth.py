"""A growing label set: old labels' scores are the same bits before the first step."""

from dataclasses import replace

import numpy as np
import pytest

from daskxml import XMLClassifier
from daskxml.core.errors import ModelError
from daskxml.models.network.growth import grown_parameters
from daskxml.models.network.spec import Layout, ModelSpec, initial_parameters
from daskxml.models.store import ModelHeader
from daskxml.models.trained import Model
from daskxml.models.trees.spec import TreeSpec

SIZES = {"features": 12, "labels": 6, "hidden": (5,)}


def model_of(spec, flat, names=()):
    header = ModelHeader(spec=spec, training_rows=9, label_names=names)
    counts = np.ones(spec.labels, np.int64)
    return Model(header, Layout(spec).views(flat), counts, threads=1)


@pytest.mark.parametrize("hidden", [(), (5,), (7, 5)])
@pytest.mark.parametrize("loss", ["sigmoid", "softmax"])
def test_old_labels_scores_are_the_same_before_the_first_step(loss, hidden):
    spec = ModelSpec(**{**SIZES, "hidden": hidden}, loss=loss)
    wide = replace(spec, labels=11, features=15)
    old = model_of(spec, initial_parameters(spec, seed=3))
    new = model_of(wide, grown_parameters(wide, 8, old))
    rng = np.random.default_rng(1)
    X = rng.random((20, 12)) * (rng.random((20, 12)) < 0.4)
    padded = np.hstack([X, np.zeros((20, 3))])
    for name, array in old.parameters.items():
        assert np.array_equal(new.parameters[name][tuple(map(slice, array.shape))], array), name
    close = {"rtol": 1e-6, "atol": 1e-6}  # products of other shapes may be rounded otherwise
    np.testing.assert_allclose(new.logits(padded)[:, :6], old.logits(X), **close)
    if loss == "sigmoid":  # the softmax is over the new labels, too
        found = new.predict(padded, 11)[:, :6]
        np.testing.assert_allclose(found.toarray(), old.predict(X, 6).toarray(), **close)


def test_names_that_are_new_follow_those_of_a_stored_model(tmp_path):
    spec = ModelSpec(**SIZES, loss="sigmoid")
    names = tuple("abcdef")
    old = model_of(spec, initial_parameters(spec, seed=3), names)
    old.save(tmp_path / "model")
    X, still = np.eye(12), {"hidden": 5, "loss": "sigmoid", "learning_rate": 1e-30, "epochs": 1}
    y = [["f", "new"], ["a"], ["also"], []] * 3
    grown = XMLClassifier("adaptive-sgd", **still).fit(X, y, model=tmp_path / "model")
    assert grown.classes_.tolist() == [*names, "also", "new"]
    assert grown.model_.header.label_names == (*names, "also", "new")
    np.testing.assert_allclose(grown.decision_function(X)[:, :6], old.logits(X), atol=1e-20)
    np.testing.assert_array_equal(grown.model_.label_counts, [4, 1, 1, 1, 1, 4, 3, 3])


def test_only_networks_grow():
    spec = ModelSpec(**SIZES)
    header = ModelHeader(spec=TreeSpec(features=12, labels=6), training_rows=9)
    trees = Model(header, {}, np.ones(6, np.int64), threads=1)
    with pytest.raises(ModelError, match="is no network"):
        grown_parameters(spec, 0, trees)
