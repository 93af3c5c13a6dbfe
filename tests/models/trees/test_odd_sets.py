"""Sets that nobody should have, and some do: a sensible model, or a line that says why not."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import daskxml
from daskxml import InputError, Matrices, XMLClassifier

rng = np.random.default_rng(0)
ROWS = 60
X = sparse.random(ROWS, 20, 0.3, "csr", np.float32, rng)
Y = sparse.csr_matrix(np.eye(5)[rng.integers(0, 5, ROWS)])
EQUAL = sparse.csr_matrix(np.tile(X[:1].toarray(), (ROWS, 1)))
IN_ALL = sparse.csr_matrix(np.maximum(Y.toarray(), np.eye(5)[0]))
ODD: dict[str, tuple[Any, Any]] = {
    "one row": (X[:1], Y[:1]),
    "one row, one label": (X[:1], np.ones((1, 1))),
    "two rows": (X[:2], Y[:2]),
    "a label in every row": (X, IN_ALL),
    "one label, in every row": (X, np.ones((ROWS, 1))),
    "all labels in every row": (X, np.ones((ROWS, 5))),
    "each label once": (X, np.eye(ROWS)),
    "more labels than rows": (X, np.eye(ROWS, 3000, 40)),
    "hundreds of labels a row": (X, rng.random((ROWS, 900)) < 0.5),
    "features of zero": (sparse.csr_matrix(X.shape), Y),
    "equal rows": (EQUAL, Y),
    "equal rows, each label once": (EQUAL, np.eye(ROWS)),
    "one feature": (rng.random((ROWS, 1)), Y),
    "values that nearly overflow": (X * 1e38, Y),
    "dense rows": (rng.standard_normal((ROWS, 20)), Y),
}


def learned(model: Any, features: Any, labels: Any) -> float:
    """Return P@1 on the rows of training, once the ranking is one of probabilities."""
    count = labels.shape[1]
    ids, scores = model.predict_top_k(features, 5)
    is_there = np.arange(5) < count
    assert ((ids >= 0) & (ids < count) == is_there).all() or count > 400
    assert ((scores[ids >= 0] >= 0) & (scores[ids >= 0] <= 1.0001)).all()
    assert (np.diff(scores[:, is_there]) <= 0).all()
    assert all(len(set(row)) == len(row) for row in ids[:, is_there].tolist())
    return float(model.evaluate(features, sparse.csr_matrix(labels, dtype=np.float32), (1,))["P@1"])


@pytest.mark.parametrize("name", ODD)
def test_odd_sets_are_learned(name: str) -> None:
    """At least as well as by the most frequent label, but for rows that do not differ."""
    features, labels = ODD[name]
    run = daskxml.train("best", train=Matrices(features, labels), workers=0)
    common = np.asarray(labels.mean(axis=0)).max()
    slack = 0.05 if features is EQUAL or "zero" in name or "one feature" in name else 1e-6
    assert learned(run.model, features, labels) >= common - slack


@pytest.mark.parametrize("name", ["one row", "each label once", "more labels than rows"])
def test_estimators_take_odd_sets(name: str) -> None:
    features, labels = ODD[name]
    found = XMLClassifier("tree").fit(features, labels).predict_proba(features)
    assert found.shape == labels.shape


@pytest.mark.parametrize("name", ODD)
def test_odd_labels_come_later(name: str) -> None:
    """Labels of odd rows are added to a model of others, whose rows have none of them."""
    features, labels = ODD[name]
    if features.shape[1] == 1:
        features = sparse.hstack([features, sparse.csr_matrix((ROWS, 19))]).tocsr()
    labels = sparse.csr_matrix(labels, dtype=np.float32)
    new = labels[:, np.flatnonzero(labels.getnnz(axis=0))]
    before = daskxml.train("tree", train=Matrices(X, Y), workers=0).model
    wide = sparse.hstack([sparse.csr_matrix((features.shape[0], 5)), new]).tocsr()
    none = sparse.csr_matrix((ROWS, wide.shape[1]))
    after = before.extend(sparse.vstack([features, X]).tocsr(), sparse.vstack([wide, none]).tocsr())
    assert after.spec.labels == 5 + new.shape[1]
    learned(after, features, wide)


def test_features_that_do_not_occur_take_no_memory() -> None:
    """Words that are hashed to four million numbers: 400 bytes for each were 1.6 GB."""
    wide = sparse.csr_matrix((X.data, X.indices * 200_000, X.indptr), (ROWS, 1 << 22))
    narrow = daskxml.train("tree", train=Matrices(X, Y), workers=0)
    tracemalloc.start()
    found = daskxml.train("tree", train=Matrices(wide, Y), workers=0)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 200e6
    pairs = zip(found.model.predict_top_k(wide, 5), narrow.model.predict_top_k(X, 5), strict=True)
    for ours, expected in pairs:
        np.testing.assert_array_equal(ours, expected)


def test_sets_without_labels_or_enough_rows_say_so() -> None:
    none = sparse.csr_matrix((ROWS, 5))
    for run_file in ("tree", "best"):
        with pytest.raises(InputError, match=r"^no row has a label[^\n]*$"):
            daskxml.train(run_file, train=Matrices(X, none), workers=0)
        one, split = Matrices(X[:1], Y[:1]), {"data.validation": 0.2}
        with pytest.raises(InputError, match=r"^one row cannot be divided[^\n]*$"):
            daskxml.train(run_file, train=one, workers=0, overrides=split)
