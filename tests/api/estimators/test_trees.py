"""The estimator with label trees, which score the labels of their beam alone."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import expit
from sklearn.datasets import make_multilabel_classification
from sklearn.model_selection import KFold, cross_val_predict, cross_val_score

from daskxml import XMLClassifier

NARROW = {"model.leaf_labels": 2, "model.branching": 2, "model.beam": 2}


@pytest.fixture(scope="module")
def rows():
    return make_multilabel_classification(120, 20, n_classes=12, random_state=1)


@pytest.fixture(params=["tree", "best"])
def run_file(request):
    return request.param


def test_all_labels_have_a_probability_and_a_score(rows, run_file):
    X, Y = rows
    dense = XMLClassifier(run_file).fit(X, Y)
    found, scores = dense.predict_proba(X), dense.decision_function(X)
    assert found.shape == scores.shape == Y.shape
    np.testing.assert_allclose(found, expit(scores), atol=1e-7)
    np.testing.assert_array_equal(dense.predict(X), found > 0.5)
    np.testing.assert_array_equal(dense.predict(X), scores > 0.0)
    np.testing.assert_allclose(found, dense.predict_proba(X, top_k=12).toarray(), rtol=1e-6)


def test_labels_outside_the_beam_have_no_probability(rows, run_file, monkeypatch):
    X, Y = rows
    dense = XMLClassifier(run_file, settings=NARROW).fit(X, Y)
    sparse = XMLClassifier(run_file, settings=NARROW).fit(X, sp.csr_matrix(Y))
    found, scores = dense.predict_proba(X), dense.decision_function(X)
    assert 0.2 < (found == 0.0).mean() < 0.8
    np.testing.assert_array_equal(scores == -1000.0, found == 0.0)
    assert scores[found > 0.0].min() > -104.0
    monkeypatch.setattr("daskxml.api.estimators.classifier._BLOCK_SCORES", 7 * 12)
    held = sparse.predict_proba(X)
    assert held.nnz == (found > 0.0).sum()
    np.testing.assert_array_equal(held.toarray(), found)
    sparse.calibrate(X, sp.csr_matrix(Y))
    assert (sparse.predict_proba(X).toarray() == 0.0)[found == 0.0].all()


def test_one_label_a_row_has_probabilities_that_add_up(rows, run_file):
    X, _ = rows
    y = np.array(["no", "perhaps", "yes"])[np.digitize(X[:, 0], np.quantile(X[:, 0], [0.3, 0.6]))]
    for given in (y, np.where(y == "perhaps", "no", y)):
        classifier = XMLClassifier(run_file, settings={"data.normalize": "none"}).fit(X, given)
        found, scores = classifier.predict_proba(X), classifier.decision_function(X)
        np.testing.assert_allclose(found.sum(axis=1), 1.0)
        best = classifier.classes_[found.argmax(axis=1)]
        np.testing.assert_array_equal(classifier.predict(X), best)
        is_binary = scores.ndim == 1
        chosen = (scores > 0).astype(int) if is_binary else scores.argmax(axis=1)
        np.testing.assert_array_equal(classifier.classes_[chosen], best)


def test_what_scikit_learn_asks_of_probabilities(rows, run_file):
    X, Y = rows
    Y = Y[:, Y.sum(axis=0) > 15]  # some in every fold
    classifier, folds = XMLClassifier(run_file), KFold(3)
    scores = cross_val_score(classifier, X, Y, scoring="average_precision", cv=folds)
    assert (scores > Y.mean()).all()
    found = cross_val_predict(classifier, X, Y, cv=folds, method="predict_proba")
    assert found.shape == Y.shape
    assert found[Y == 1].mean() > found[Y == 0].mean()
