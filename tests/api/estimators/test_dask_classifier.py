"""DaskXMLClassifier on a real cluster: fits, lazy predictions, and what is refused."""

import os
import pickle
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from dask import delayed
from distributed import Client, LocalCluster
from sklearn.base import clone

import daskxml
from daskxml import DaskXMLClassifier

FAST = {
    "run_file": "network", "hidden": 8, "batch_size": 16, "epochs": 12, "learning_rate": 0.05,
    "random_state": 0,
}  # fmt: skip
ROWS, FEATURES, LABELS, CUTS = 120, 12, 4, (50, 40, 30)


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[Client]:
    """A client that is not the current one, which an estimator would find by itself."""
    with Client(cluster, set_as_default=False) as connected:
        connected.wait_for_workers(2, timeout=60)
        yield connected


def rows() -> tuple[Any, Any]:
    """Rows whose labels are told by their features: ``row % 4``, and 3 for every third row."""
    number = np.arange(ROWS)
    Y = np.zeros((ROWS, LABELS), np.int64)
    Y[number, number % LABELS] = 1
    Y[number % 3 == 0, 3] = 1
    noise = np.random.default_rng(0).random((ROWS, FEATURES - LABELS)) * 0.1
    return np.hstack([Y, noise]), Y


def on_a_worker(block: Any, client_pid: int) -> Any:
    """Make a block, which must not come to the client."""
    assert os.getpid() != client_pid
    return block


def arrays(matrix: Any, kind: Any) -> da.Array:
    edges = np.append(0, np.cumsum(CUTS))
    shape = matrix.shape[1:]
    blocks = [kind(matrix[i:j]) for i, j in pairwise(edges)]
    return da.concatenate(
        [da.from_delayed(delayed(on_a_worker)(b, os.getpid()), (n, *shape), matrix.dtype)
         for b, n in zip(blocks, CUTS, strict=True)]
    )  # fmt: skip


@pytest.fixture(scope="module")
def fitted(client: Client) -> DaskXMLClassifier:
    X, Y = rows()
    classifier = DaskXMLClassifier(client=client, **FAST)
    return classifier.fit(arrays(X, sp.csr_matrix), arrays(Y, sp.csr_matrix).rechunk((60, 2)))


def test_a_fit_learns_and_predicts_lazily(client, fitted) -> None:
    X, Y = rows()
    found = fitted.predict(arrays(X, sp.csr_matrix))
    assert isinstance(found, da.Array)
    assert found.chunks == (CUTS, (LABELS,))
    computed = client.compute(found).result()
    assert sp.issparse(computed)  # as y was
    assert computed.sum() > 10
    assert (computed != fitted.predict(X)).nnz == 0
    assert (fitted.n_features_in_, fitted.classes_.tolist()) == (FEATURES, [0, 1, 2, 3])
    assert fitted.score(X, Y) > 0.95


def test_probabilities_and_scores_are_those_of_rows_in_memory(client, fitted) -> None:
    X, _ = rows()
    lazy = arrays(X, sp.csr_matrix)
    for method in ("predict_proba", "decision_function"):
        found = getattr(fitted, method)(lazy)
        assert (found.shape, found.dtype) == ((ROWS, LABELS), np.float64)
        here = getattr(fitted, method)(X)
        np.testing.assert_allclose(client.compute(found).result(), here, rtol=1e-6)
    best = client.compute(fitted.predict_proba(lazy, top_k=2)).result()
    expected = fitted.predict_proba(X, top_k=2).toarray()
    np.testing.assert_allclose(best.toarray(), expected, rtol=1e-6)


def test_names_in_lists_and_an_eval_set(client) -> None:
    X, Y = rows()
    names = np.array(["d", "a", "c", "b"])
    lists = np.empty(ROWS, object)
    lists[:] = [names[row > 0].tolist() for row in Y]
    lists[:50] = [[] for _ in range(50)]  # a block without any label
    classifier = DaskXMLClassifier(client=client, eval_metric="P@1", **FAST)
    pair = arrays(X, np.array), arrays(lists, np.array)
    classifier.fit(*pair, eval_set=pair)
    assert classifier.classes_.tolist() == ["a", "b", "c", "d"]
    assert classifier.model_.header.label_names == ("a", "b", "c", "d")
    assert len(classifier.evals_result_["validation"]["P@1"]) == len(classifier.history_)
    assert classifier.predict_labels(X[51:52], k=1) == [["b"]]
    assert classifier.score(*pair) == classifier.score(X, lists)
    lists[:2], lists[-1:] = [["new"], ["b", "new"]], [["newer"]]  # in two blocks
    tests = pair[0], arrays(lists, np.array)
    told = r"does not know 2 labels of the rows: left out$"
    with pytest.warns(UserWarning, match=told):
        classifier.fit(*pair, eval_set=tests)
    recall = classifier.set_params(eval_metric="recall@2")
    assert recall.score(pair[0], arrays(lists, np.array)) == recall.score(X, lists) < 1.0


@pytest.mark.slow
def test_lists_in_a_series_are_those_that_were_given(client) -> None:
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    X, Y = rows()
    lists = pd.Series([[f"it's {label}" for label in np.flatnonzero(row)] for row in Y])
    X = pd.DataFrame(X).rename(columns="word {}".format)
    series, frame = (dd.from_pandas(each, npartitions=3) for each in (lists, X))
    classifier = DaskXMLClassifier("tree", client=client).fit(frame, series)
    assert classifier.classes_.tolist() == [f"it's {label}" for label in range(LABELS)]
    assert classifier.score(frame, series) == classifier.score(X, lists.to_list())
    one = dd.from_pandas(lists.map(lambda labels: f"[{len(labels)}"), npartitions=3)
    assert DaskXMLClassifier("tree", client=client).fit(frame, one).labels_.form == "single"


@pytest.mark.slow
def test_one_label_a_row(client) -> None:
    X, _ = rows()
    y = np.array(["w", "x", "y", "z"])[np.arange(ROWS) % LABELS]
    X = np.hstack([np.eye(LABELS)[np.arange(ROWS) % LABELS], X[:, LABELS:]])
    classifier = DaskXMLClassifier(client=client, **FAST)
    lazy = arrays(X, np.array).rechunk((50, 5))
    classifier.fit(lazy, arrays(y, np.array))
    found = classifier.predict(lazy)
    assert (found.shape, found.dtype) == ((ROWS,), y.dtype)
    assert (client.compute(found).result() == y).mean() > 0.95


@pytest.mark.slow
def test_data_frames_have_names_of_features(client) -> None:
    pd = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    X, Y = rows()
    frame = pd.DataFrame(X, columns=[f"word {i}" for i in range(FEATURES)])
    labels = pd.Series(Y.argmax(axis=1))
    classifier = DaskXMLClassifier(client=client, **FAST)
    lazy = dd.from_pandas(frame, npartitions=3)
    classifier.fit(lazy, dd.from_pandas(labels, npartitions=3))
    assert classifier.feature_names_in_[1] == "word 1"
    assert classifier.model_.header.feature_names[2] == "word 2"
    found = client.compute(classifier.predict(lazy)).result()
    np.testing.assert_array_equal(found, classifier.predict(frame))


def test_clones_pickles_and_files(client, fitted, tmp_path) -> None:
    copied = clone(fitted)
    assert copied.client is client
    assert copied.get_params()["epochs"] == 12
    assert not hasattr(copied, "model_")
    unpickled = pickle.loads(pickle.dumps(fitted))
    assert unpickled.client is None
    X, _ = rows()
    np.testing.assert_array_equal(unpickled.predict(X).toarray(), fitted.predict(X).toarray())
    fitted.save(tmp_path / "model")
    loaded = DaskXMLClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X).toarray(), fitted.predict(X).toarray())


def test_lazy_predictions_are_those_of_the_calibrated_model(client, fitted) -> None:
    X, Y = rows()
    classifier = pickle.loads(pickle.dumps(fitted)).calibrate(X, Y)
    classifier.client = client
    lazy = client.compute(classifier.predict(arrays(X, np.array))).result()
    np.testing.assert_array_equal(lazy.toarray(), classifier.predict(X).toarray())
    assert classifier.model_.header.decisions is not None


def test_what_cannot_be_done_is_one_line(client, fitted) -> None:
    X, Y = (arrays(it, np.array) for it in rows())
    unknown = X[X[:, 0] > 0]
    fit = DaskXMLClassifier(client=client, **FAST).fit
    cases = {
        "X is ndarray: give a Dask array or data frame; for rows in memory": lambda: fit(*rows()),
        "X has blocks of unknown sizes": lambda: fit(unknown, Y),
        "y has blocks of unknown sizes": lambda: fit(X, Y[X[:, 0] > 0]),
        "X has 120 rows, y has 100: give each row its labels": lambda: fit(X, Y[:100]),
        "X is on the cluster but y is not": lambda: fit(X, rows()[1]),
        "eval_set: give one pair": lambda: fit(X, Y, eval_set=X),
        "model= needs rows in one process": lambda: fit(X, Y, model=fitted),
        "partial_fit trains in one process": lambda: fitted.partial_fit(X, Y),
        "calibrate takes rows in memory": lambda: fitted.calibrate(X, Y),
        "n_workers is the cluster's number": lambda: DaskXMLClassifier(n_workers=2).fit(X, Y),
        "no Dask client: give client=": lambda: DaskXMLClassifier(**FAST).fit(X, Y),
        "no row has a label": lambda: fit(X, arrays(_empty_lists(), np.array)),
        "is not fitted yet": lambda: DaskXMLClassifier().predict_proba(X),
    }
    for message, act in cases.items():
        with pytest.raises((daskxml.DaskxmlError, ValueError, AttributeError)) as caught:
            act()
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(daskxml.InputError, match="unknown sizes"):
        fitted.predict(unknown)


def _empty_lists() -> Any:
    lists = np.empty(ROWS, object)
    lists[:] = [[] for _ in range(ROWS)]
    return lists
