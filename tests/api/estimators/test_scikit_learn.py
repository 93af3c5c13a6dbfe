"""scikit-learn's own checks, and what scikit-learn does with an estimator."""

import pickle
import runpy
import sys
from pathlib import Path

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import make_multilabel_classification
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import daskxml
from daskxml import XMLClassifier
from daskxml.core.errors import ModelError
from harness.estimator_checks import EXCEPTIONS

# scikit-learn's data are some dozen dense rows of two or three features: many short epochs, and no
# scaling of rows, which would leave only their direction.
NETWORK = XMLClassifier(
    "network", hidden=32, batch_size=32, epochs=60, learning_rate=0.02, dropout=0.0,
    settings={"data.normalize": "none"},
)  # fmt: skip
SMALL = {
    "run_file": "network", "hidden": 16, "batch_size": 16, "epochs": 30, "learning_rate": 0.05,
    "dropout": 0.0,
}  # fmt: skip
TEXTS = ["red apple", "green apple", "red car", "green car", "red apple pie", "fast green car"] * 5
TAGS = [["fruit", "red"], ["fruit"], ["car", "red"], ["car"], ["food", "fruit", "red"], ["car"]] * 5


@parametrize_with_checks([XMLClassifier()], expected_failed_checks=lambda _: EXCEPTIONS)
@pytest.mark.filterwarnings("ignore")
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([NETWORK], expected_failed_checks=lambda _: EXCEPTIONS)
@pytest.mark.filterwarnings("ignore")
def test_the_checks_of_scikit_learn_of_a_network(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def rows():
    return make_multilabel_classification(120, 20, n_classes=6, random_state=1)


@pytest.fixture(scope="module")
def fitted(rows):
    X, Y = rows
    return XMLClassifier(**SMALL).fit(X, sp.csr_matrix(Y))


def lists_of(Y, name=lambda label: label):
    return [[name(int(label)) for label in np.flatnonzero(row)] for row in Y]


def weights(classifier):
    return np.concatenate([array.ravel() for array in classifier.model_.parameters.values()])


@pytest.mark.parametrize("kind", [np.asarray, sp.csc_matrix, sp.csr_array, lists_of])
def test_the_same_labels_in_any_form_give_the_same_model(rows, fitted, kind):
    X, Y = rows
    other = XMLClassifier(**SMALL).fit(sp.csr_matrix(X), kind(Y))
    np.testing.assert_array_equal(weights(other), weights(fitted))
    np.testing.assert_array_equal(other.classes_, np.arange(6))


def test_names_are_the_labels_in_the_order_of_their_names(rows, fitted):
    X, Y = rows
    named = XMLClassifier(**SMALL).fit(X, lists_of(Y, "label-{}".format))
    np.testing.assert_array_equal(weights(named), weights(fitted))
    assert named.classes_.tolist() == [f"label-{i}" for i in range(6)]
    assert named.model_.header.label_names == tuple(named.classes_)
    found = fitted.predict_labels(X[:3], k=2)
    assert named.predict_labels(X[:3], k=2) == [[f"label-{i}" for i in row] for row in found]


def test_predictions_have_the_form_of_the_labels(rows, fitted):
    X, Y = rows
    dense = XMLClassifier(**SMALL).fit(X, Y.astype(np.int8))
    assert sp.issparse(fitted.predict(X))
    assert dense.predict(X).dtype == np.int8
    np.testing.assert_array_equal(dense.predict(X), fitted.predict(X).toarray())
    np.testing.assert_array_equal(dense.predict(X), dense.predict_proba(X) > 0.5)
    np.testing.assert_array_equal(dense.predict(X), dense.decision_function(X) > 0.0)
    assert (dense.predict(X) == Y).mean() > 0.8


def test_thresholds_and_the_most_labels_of_a_row(rows):
    X, Y = rows
    for loss in ("sigmoid", "softmax"):
        classifier = XMLClassifier(**SMALL, loss=loss, threshold=0.3, top_k=2).fit(X, Y)
        probability = classifier.predict_proba(X)
        best = np.sort(probability, axis=1)[:, [-2]]
        expected = (probability > 0.3) & (probability >= best)
        np.testing.assert_array_equal(classifier.predict(X), expected)
    classifier.set_params(threshold=None, top_k=None)  # softmax: half of the best
    np.testing.assert_array_equal(
        classifier.predict(X), 2 * probability > probability.max(axis=1, keepdims=True)
    )


def test_the_best_labels_alone_are_sparse(rows, fitted):
    X, _ = rows
    best, probability = fitted.predict_proba(X, top_k=3), fitted.predict_proba(X)
    assert best.shape == (120, 6)
    assert (np.diff(best.indptr) == 3).all()
    found = probability[np.repeat(np.arange(120), 3), best.indices]
    np.testing.assert_allclose(best.data, found, rtol=1e-5)


def test_clone_pickle_and_joblib(rows, fitted, tmp_path):
    X, _ = rows
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert not hasattr(copy, "model_")
    joblib.dump(fitted, tmp_path / "fitted")
    for other in (pickle.loads(pickle.dumps(fitted)), joblib.load(tmp_path / "fitted")):
        np.testing.assert_array_equal(other.predict_proba(X), fitted.predict_proba(X))


def test_save_and_load(rows, tmp_path):
    X, Y = rows
    saved = XMLClassifier(**SMALL, callbacks=[print]).fit(X, lists_of(Y, "l{}".format))
    saved.save(tmp_path / "model")
    loaded = XMLClassifier.load(tmp_path / "model")
    assert loaded.get_params() == {**saved.get_params(), "callbacks": None}
    assert loaded.predict_labels(X, 3) == saved.predict_labels(X, 3)
    assert loaded.score(X, lists_of(Y, "l{}".format)) == saved.score(X, lists_of(Y, "l{}".format))
    with pytest.raises(ModelError, match="holds a model"):
        saved.save(tmp_path / "model")
    (tmp_path / "model/estimator.json").write_text("{}")
    with pytest.raises(ModelError, match=r"estimator.json: damaged"):
        XMLClassifier.load(tmp_path / "model")
    (tmp_path / "model/estimator.json").unlink()  # as `daskxml train` leaves a model
    assert XMLClassifier.load(tmp_path / "model").predict_labels(X, 3) == saved.predict_labels(X, 3)


@pytest.mark.slow
def test_cross_validation_and_search_over_a_pipeline_of_texts():
    pipeline = make_pipeline(TfidfVectorizer(), XMLClassifier(**SMALL))
    scores = cross_val_score(
        pipeline, TEXTS, TAGS, cv=KFold(3), scoring=daskxml.make_scorer("nDCG@3")
    )
    assert scores.min() > 0.9
    # Sets are not taken for sequences of sequences, which scikit-learn refuses to divide by itself.
    grid = {"xmlclassifier__hidden": [np.int64(8), 16], "tfidfvectorizer__min_df": [1, 2]}
    search = GridSearchCV(pipeline, grid).fit(TEXTS, list(map(set, TAGS)))
    assert search.best_score_ > 0.9
    assert search.predict(["red apple"]).shape == (1, 4)
    assert search.best_estimator_[-1].predict_labels(
        search.best_estimator_[:-1].transform(["fast car"]), k=1
    ) == [["car"]]


@pytest.mark.parametrize("metric", ["P@1", "P@3", "nDCG@3", "PSP@1", "PSnDCG@3", "recall@2"])
def test_scores_are_those_of_the_model(rows, fitted, metric):
    X, Y = rows
    k = int(metric[-1])
    expected = fitted.model_.evaluate(X, Y, [k])[metric]
    assert daskxml.make_scorer(metric)(fitted, X, Y) == expected
    assert clone(fitted).set_params(eval_metric=metric).fit(X, Y).score(X, Y) == expected


def test_labels_that_were_never_seen_are_missed():
    X, y = np.eye(3), [["a"], ["b"], ["a", "b"]]
    classifier = XMLClassifier(**SMALL).fit(X, y)
    recall = daskxml.make_scorer("recall@2")
    assert recall(classifier, X, y) == 1.0
    assert recall(classifier, X[:1], [["a", "new"]]) == 0.5
    told = r"does not know 2 labels of the rows: left out$"
    with pytest.warns(UserWarning, match=told):
        classifier.fit(X, y, eval_set=(X, [["a", "new"], ["new", "newer"], []]))
    assert classifier.evals_result_["validation"]["recall@1"][-1] == 1 / 3


def test_one_label_a_row_is_scored_by_accuracy():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    y = np.array(["no", "yes"])[(X[:, 0] > 0).astype(int)]
    classifier = XMLClassifier(**SMALL).fit(X, y)
    assert classifier.score(X, y) == (classifier.predict(X) == y).mean() > 0.9
    assert classifier.decision_function(X).shape == (60,)


def test_evaluation_rows_are_scored_once_an_epoch(rows):
    X, Y = rows
    settings = {"strategy.megabatch_batches": 1}
    short = {**SMALL, "epochs": 5, "batch_size": 20, "settings": settings}
    classifier = XMLClassifier(**short).fit(X, Y, eval_set=(X, Y))
    found = classifier.evals_result_["validation"]["P@1"]
    assert len(found) == 5
    assert len(classifier.history_) == 30
    assert found[classifier.best_iteration_] == max(found)
    held = XMLClassifier(**short, validation_fraction=0.25).fit(X, Y)
    assert held.history_[-1]["metrics"]["rows"] == 30
    assert XMLClassifier(**short).fit(X, Y).evals_result_ == {}


def test_early_stopping_keeps_the_best_model(rows):
    X, Y = rows
    short = {**SMALL, "learning_rate": 0.5, "epochs": 40}
    settings = {"strategy.megabatch_batches": 2}
    one = XMLClassifier(**short, early_stopping_rounds=2, eval_metric="P@2", settings=settings)
    one.fit(X[:80], Y[:80], eval_set=(X[80:], Y[80:]))
    found = one.evals_result_["validation"]["P@2"]
    assert len(found) == one.best_iteration_ + 3 < 40
    assert one.score(X[80:], Y[80:]) == max(found)


def test_a_callback_ends_a_fit_and_its_exceptions_are_raised(rows):
    X, Y = rows
    settings = {"strategy.megabatch_batches": 1}
    stopping = XMLClassifier(**SMALL, callbacks=[lambda row: daskxml.STOP], settings=settings)
    assert len(stopping.fit(X, Y).history_) <= 2
    with pytest.raises(ZeroDivisionError):
        XMLClassifier(**SMALL, callbacks=[lambda row: 1 // 0]).fit(X, Y)


def test_callbacks_get_every_row_of_the_history(rows):
    X, Y = rows
    seen = []
    classifier = XMLClassifier(**SMALL, callbacks=[seen.append]).fit(X, Y)
    assert seen == classifier.history_


def test_random_state(rows):
    X, Y = rows
    one, same, other = (
        weights(XMLClassifier(**SMALL, random_state=state).fit(X, Y))
        for state in (3, 3, np.random.RandomState(5))
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_partial_fit_learns_in_every_call(rows):
    X, Y = rows
    classifier = XMLClassifier(**{**SMALL, "batch_size": 8})
    scores = [classifier.partial_fit(X, Y).score(X, Y) for _ in range(20)]
    assert max(scores[-5:]) > scores[0]
    assert classifier.model_.header.training_rows == 20 * 120
    np.testing.assert_array_equal(classifier.model_.label_counts, 20 * Y.sum(axis=0))


def test_new_labels_follow_the_known_ones_whose_scores_stay():
    X, y = np.eye(4), [["b"], ["c"], ["b", "c"], ["c"]]
    first = XMLClassifier(**SMALL).fit(X, y)
    none = {**SMALL, "learning_rate": 1e-30}
    grown = XMLClassifier(**none).fit(X, [["a"], ["b"], ["d"], ["c"]], model=first)
    assert grown.classes_.tolist() == ["b", "c", "a", "d"]
    np.testing.assert_array_equal(grown.decision_function(X)[:, :2], first.decision_function(X))
    long = {**SMALL, "epochs": 400}
    again = XMLClassifier(**long).fit(X, [["a"], ["b"], ["d"], ["c"]], model=first.model_)
    assert again.predict_labels(X, 1) == [["a"], ["b"], ["d"], ["c"]]
    calls = XMLClassifier(**SMALL).partial_fit(X, y, classes=["a", "b", "c"])
    assert calls.classes_.tolist() == ["a", "b", "c"]
    assert calls.partial_fit(X, [["e"], [], [], []]).classes_.tolist() == ["a", "b", "c", "e"]


def test_explanations_name_the_features_that_count():
    vectorizer = TfidfVectorizer()
    X = vectorizer.fit_transform(TEXTS)
    classifier = XMLClassifier(**SMALL).fit(X, TAGS)
    words = vectorizer.get_feature_names_out()
    (found,) = classifier.explain(X[2], "car", top_k=2)  # "red car"
    assert words[found[0][0]] == "car"
    assert found[0][1] > 0.0


@pytest.mark.parametrize("hidden", [(), (8,), (8, 6)])
def test_contributions_add_up_to_the_logit_without_biases(rows, hidden):
    X, Y = rows
    classifier = XMLClassifier(**{**SMALL, "hidden": hidden}).fit(X, Y)
    for name, array in classifier.model_.parameters.items():
        if name.endswith("bias"):
            array[:] = 0.0
    explained = classifier.explain(X[:5], 3, top_k=20)
    sums = [sum(added for _, added in row) for row in explained]
    np.testing.assert_allclose(
        sums, classifier.decision_function(X[:5])[:, 3], rtol=1e-5, atol=1e-6
    )


@pytest.mark.slow
def test_a_fit_on_a_local_cluster_gives_the_same_kind_of_estimator(rows):
    X, Y = rows
    classifier = XMLClassifier(**{**SMALL, "epochs": 10}, n_workers=1).fit(X, lists_of(Y, str))
    assert classifier.classes_.tolist() == list("012345")
    assert len(classifier.predict_labels(X, 2)) == 120
    with pytest.raises(daskxml.ConfigError, match="leave n_workers None"):
        classifier.partial_fit(X, lists_of(Y, str))


def test_the_estimator_is_listed_and_says_what_it_needs(monkeypatch):
    assert {"XMLClassifier", "make_scorer", "train"} <= set(dir(daskxml))
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    for name in [name for name in sys.modules if name.startswith("daskxml.api.estimators")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'daskxml\[sklearn\]'"):
        _ = daskxml.XMLClassifier


EXAMPLES = Path(__file__).parents[3] / "docs/examples"


@pytest.mark.slow
def test_the_search_over_texts_and_names_finds_settings(capsys):
    search = runpy.run_path(str(EXAMPLES / "search_tags.py"))["main"]()
    assert search.best_score_ > 0.9
    assert "P@2" in capsys.readouterr().out
    (found,) = search.best_estimator_[-1].predict_labels(
        search.best_estimator_[0].transform(["a yellow bus"]), k=2
    )
    assert set(found) == {"vehicle", "yellow"}
