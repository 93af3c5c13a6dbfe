"""Calibrated estimators, of networks, label trees and mixtures: what they predict, and what not."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp

import daskxml
from daskxml import XMLClassifier
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate

ROWS = SyntheticSpec(rows=400, test_rows=300, features=60, labels=30, seed=4)
FAST = {"batch_size": 32, "epochs": 4, "hidden": 32}


@pytest.fixture(scope="module")
def rows():
    return [(to_scipy(part.features), to_scipy(part.labels)) for part in generate(ROWS)]


@pytest.fixture(scope="module", params=["mlp", "tree", "mixture"])
def fitted(request, rows, tmp_path_factory):
    X, Y = rows[0]
    if request.param == "mlp":
        return XMLClassifier("adaptive-sgd", **FAST).fit(X, Y)
    tree = XMLClassifier("tree").fit(X, Y)
    if request.param == "tree":
        return tree
    network = XMLClassifier("adaptive-sgd", **FAST).fit(X, Y)
    folder = tmp_path_factory.mktemp("mixture")
    daskxml.mix([tree.model_, network.model_], weights=(0.6, 0.4)).save(folder)
    return XMLClassifier.load(folder)


def test_predictions_are_those_of_the_calibrated_model(fitted, rows, tmp_path):
    (X, Y), half = rows[1], 150
    classifier = pickle.loads(pickle.dumps(fitted)).calibrate(X[:half], Y[:half])
    made = classifier.model_.header.decisions
    assert made.measured["macro-F1"] > made.measured["macro-F1_before"]
    found = classifier.predict(X[half:])
    ids, _ = classifier.model_.choose(X[half:])
    assert sp.issparse(found)
    for row, chosen in zip(found, ids, strict=True):
        assert sorted(chosen[chosen >= 0].tolist()) == row.indices.tolist()
    top = classifier.predict_proba(X[half:], top_k=3)
    assert (top != classifier.model_.predict(X[half:], 3)).nnz == 0
    classifier.set_params(top_k=2)
    assert classifier.predict(X).sum(axis=1).max() <= 2
    classifier.set_params(top_k=None, threshold=0.6)
    above = classifier.predict(X).toarray() > 0
    assert (above <= (classifier.predict_proba(X, top_k=30).toarray() > 0.6)).all()
    classifier.set_params(threshold=None)
    classifier.save(tmp_path / "model")
    again = XMLClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(X).toarray(), classifier.predict(X).toarray())


def test_probabilities_of_all_labels_are_calibrated_too(rows):
    (X, Y), (other, labels) = rows
    classifier = XMLClassifier("adaptive-sgd", **FAST).fit(X, Y.toarray())
    before = classifier.predict_proba(other)
    after = classifier.calibrate(other, labels.toarray()).predict_proba(other)
    made = classifier.model_.header.decisions
    np.testing.assert_allclose(after, made.probability(before))
    assert isinstance(classifier.predict(other), np.ndarray)
    classifier.fit(X, Y.toarray())
    np.testing.assert_array_equal(classifier.predict_proba(other), before)


def test_labels_that_fit_has_not_seen_are_missed(rows):
    X, _ = rows[0]
    y = [["a"], ["b"], ["a", "b"], ["c"]] * 100
    classifier = XMLClassifier("adaptive-sgd", **FAST).fit(X, y)
    told = r"the model does not know 1 label of the rows: left out$"
    with pytest.warns(UserWarning, match=told):
        classifier.calibrate(X[:200], [*y[:196], *[["new"]] * 4])
    assert classifier.predict(X[:1]).shape == (1, 3)


def test_what_cannot_be_calibrated_is_one_line(rows):
    (X, Y), (other, labels) = rows
    single = XMLClassifier("adaptive-sgd", **FAST).fit(X, Y.indptr[:-1] % 3)
    tree = XMLClassifier("tree").fit(X, Y)
    for act, message in {
        lambda: single.calibrate(other, labels.indptr[:-1] % 3): "CalibratedClassifierCV",
        lambda: tree.calibrate(other[:9], labels): "X has 9 rows, y has 300",
        lambda: tree.calibrate(other[:, :5], labels): "5 features",
        lambda: tree.calibrate(other, sp.csr_matrix(labels.shape)): "has a label",
        lambda: XMLClassifier().calibrate(other, labels): "not fitted",
    }.items():
        with pytest.raises((daskxml.DaskxmlError, ValueError), match=message) as caught:
            act()
        assert "\n" not in str(caught.value)
