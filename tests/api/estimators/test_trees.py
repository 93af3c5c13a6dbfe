"""The estimator with label trees, which score the labels of their beam alone."""

import sys

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from scipy.special import expit
from sklearn.datasets import make_multilabel_classification
from sklearn.metrics import f1_score
from sklearn.model_selection import KFold, cross_val_predict, cross_val_score

from daskxml import XMLClassifier
from daskxml.core.errors import ConfigError, ModelError

NARROW = {"model.leaf_labels": 2, "model.branching": 2, "model.beam": 2}


@pytest.fixture(scope="module")
def rows():
    return make_multilabel_classification(120, 20, n_classes=12, random_state=1)


@pytest.fixture(params=["tree", pytest.param("best", marks=pytest.mark.slow)])
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
    monkeypatch.setattr(sys.modules[XMLClassifier.__module__], "_BLOCK_SCORES", 7 * 12)
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


def test_early_stopping_keeps_the_trees_that_rank_best(rows, run_file):
    X, Y = rows
    stopping = {"n_estimators": 12, "early_stopping_rounds": 2, "eval_metric": "P@2"}
    one = XMLClassifier(run_file, **stopping).fit(X[:80], Y[:80], eval_set=(X[80:], Y[80:]))
    found = one.evals_result_["validation"]["P@2"]
    assert len(found) == one.best_iteration_ + 3 < 12
    assert one.score(X[80:], Y[80:]) == max(found)
    assert tree_count(one) == one.best_iteration_ + 1
    held = XMLClassifier(run_file, **stopping, validation_fraction=0.25).fit(X, Y)
    assert len(held.history_) < 12


def tree_count(classifier):
    return sum(name.endswith(".order") for name in classifier.model_.parameters)


def test_every_partial_fit_adds_a_tree(rows, run_file):
    X, Y = rows
    classifier = XMLClassifier(run_file)
    for call, part in enumerate((slice(0, 60), slice(60, 90), slice(90, 120)), 1):
        before = dict(classifier.model_.parameters) if call > 1 else {}
        classifier.partial_fit(X[part], Y[part])
        assert tree_count(classifier) == call
        for name, array in before.items():
            np.testing.assert_array_equal(classifier.model_.parameters[name], array)
    assert classifier.model_.header.training_rows == 120
    np.testing.assert_array_equal(classifier.model_.label_counts, Y.sum(axis=0))
    alone = XMLClassifier(run_file).fit(X[:60], Y[:60])
    assert classifier.score(X, Y) > alone.score(X, Y) - 0.1
    first = XMLClassifier(run_file, n_estimators=2).fit(X, Y)
    more = XMLClassifier(run_file, n_estimators=2).fit(X, Y, model=first, eval_set=(X, Y))
    assert tree_count(more) > 2
    np.testing.assert_allclose(
        more.evals_result_["validation"]["P@1"][more.best_iteration_], more.score(X, Y)
    )


def test_trees_take_in_new_labels_before_others_are_added(rows):
    X, Y = rows
    names = [[f"tag {label}" for label in row.nonzero()[0]] for row in np.asarray(Y)]
    few = [[tag for tag in tags if tag not in {"tag 4", "tag 5"}] for tags in names]
    first = XMLClassifier("tree").partial_fit(X, few)
    known = list(first.classes_)
    more = first.partial_fit(X, names)
    assert tree_count(more) == 2
    assert list(more.classes_) == [*known, "tag 4", "tag 5"]
    assert more.score(X, names) > 0.7
    of_new = more.predict_proba(X).toarray()[:, -2:]
    has_it = np.array([[tag in tags for tag in more.classes_[-2:]] for tags in names])
    assert of_new[has_it].mean() > 2 * of_new[~has_it].mean()
    again = XMLClassifier("tree").fit(X, names, model=XMLClassifier("tree").fit(X, few))
    assert tree_count(again) == 2


def test_a_tree_that_is_added_sees_rows_in_its_own_power(rows):
    X, Y = rows
    one, two = ({"settings": {"model.powers": [1.0, power]}} for power in (1.0, 3.0))
    first, second = (XMLClassifier("tree", **powers).fit(X, Y) for powers in (one, two))
    same, other = (
        XMLClassifier("tree", random_state=0, **powers).fit(X, Y, model=model)
        for powers, model in ((one, first), (two, second))
    )
    name = "tree1.weights"
    assert not np.array_equal(same.model_.parameters[name], other.model_.parameters[name])


def test_trees_are_added_to_those_alike(rows):
    X, Y = rows
    first = XMLClassifier("tree").fit(X[:, :9], Y)
    with pytest.raises(ModelError, match="has features = 9, not 20"):
        XMLClassifier("tree").fit(X, Y, model=first)
    names = XMLClassifier("tree").partial_fit(X[:2], [["a"], ["b"]], classes=["a", "b", "c"])
    assert tree_count(names.partial_fit(X[:2], [["a", "c"], []])) == 2
    with pytest.raises(ModelError, match="has kind = 'network', not 'trees'"):
        XMLClassifier("tree").fit(X, Y, model=XMLClassifier("network", epochs=1).fit(X, Y))


def test_trees_are_the_default(rows):
    classifier = XMLClassifier().fit(*rows)
    assert tree_count(classifier) == 4


@pytest.mark.parametrize(("given", "message"), [
    ({"hidden": 8}, "hidden is for networks, and the run file trains label trees: give run_file="),
    ({"learning_rate": 0.1}, "learning_rate is for networks"),
    ({"strategy": "elastic"}, "strategy is for networks"),
    ({"optimizer": "adam"}, "optimizer is for networks"),
    ({"early_stopping_rounds": 2}, "early_stopping_rounds needs rows that are scored: give valid"),
    ({"n_estimators": "4"}, "^n_estimators = '4': must be an integer"),
    ({"epochs": 4}, "^epochs is for networks, and .* label trees: give n_estimators"),
    ({"run_file": "network", "n_estimators": 4}, "^n_estimators is for label trees, and .* epochs"),
    ({"device": "tpu"}, "^device = 'tpu': must be one of 'auto', 'cpu', 'cuda'"),
    ({"random_state": -1}, "^random_state = -1: must be from 0"),
    ({"class_weight": [1, 2]}, "^class_weight has 2 weights for 12 labels"),
    ({"class_weight": "balancd"}, "^class_weight = 'balancd': must be one of"),
    ({"settings": {"model.baem": 2}}, "^settings: model.baem: unknown key 'baem', did you mean"),
    ({"run_file": "network", "learning_rate": -1.0}, "^learning_rate = -1.0: must be above 0"),
    ({"run_file": "network", "hidden": "big"}, "^hidden = 'big': must be a list"),
    ({"n_workers": 0}, "^n_workers = 0: must be at least 1, or None"),
])  # fmt: skip
def test_errors_name_the_parameters_of_the_estimator(rows, given, message):
    with pytest.raises(ConfigError, match=message):
        XMLClassifier(**given).fit(*rows)


def test_balanced_labels_are_not_fewer():
    """Frequent labels keep their probabilities, and rare ones have higher ones."""
    X, rng = sp.random(2000, 60, 0.1, "csr", random_state=0), np.random.default_rng(0)
    seen = X.toarray() + rng.normal(0, 0.2, (2000, 60))
    frequent, rare = seen[:, 20:].reshape(2000, 4, 10).max(axis=2) > 0.6, seen[:, :16] > 0.9
    Y = np.column_stack([frequent, rare]).astype(int)
    plain, balanced = (
        XMLClassifier("tree", class_weight=weight).fit(X, Y).predict(X)
        for weight in (None, "balanced")
    )
    assert balanced.sum() >= plain.sum()
    assert f1_score(Y, balanced, average="macro") > f1_score(Y, plain, average="macro")


def test_fewer_labels_than_ranks_of_the_metrics():
    X = np.random.default_rng(0).random((60, 5))
    y = (X[:, 0] * 3).astype(int)
    one = XMLClassifier(validation_fraction=0.2, early_stopping_rounds=1, n_estimators=9).fit(X, y)
    assert one.evals_result_["validation"]["recall@5"][-1] == 1.0


def test_features_are_named_where_their_names_are_known(rows, tmp_path):
    X, Y = rows
    frame = pd.DataFrame(X).rename(columns="word {}".format)
    XMLClassifier("tree").fit(frame, Y).save(tmp_path)
    loaded = XMLClassifier.load(tmp_path)
    assert loaded.explain(frame[:1], 0)[0][0][0].startswith("word ")
