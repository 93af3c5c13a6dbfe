"""Labels from data frames and series, and texts that hold several."""

import numpy as np
import pandas as pd
import pytest

from daskxml import XMLClassifier
from daskxml.api.estimators.labels import read_labels

X = np.eye(4)
Y = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1]])
NAMES = ["sweet", "fruit", "car"]  # not in alphabetical order
LISTS = [["sweet"], ["sweet", "fruit"], ["fruit"], ["car"]]


@pytest.fixture(params=["pandas", "polars"])
def package(request):
    return pytest.importorskip(request.param)


def test_an_indicator_has_the_names_of_its_columns(package):
    frame = package.DataFrame(dict(zip(NAMES, Y.T, strict=True)))
    named, plain = (XMLClassifier("tree").fit(X, y) for y in (frame, Y))
    assert named.classes_.tolist() == NAMES
    assert named.model_.header.label_names == tuple(NAMES)
    assert named.predict_labels(X[:1], k=1) == [["sweet"]]
    np.testing.assert_array_equal(named.predict(X), plain.predict(X))
    assert named.score(X, frame[NAMES[::-1]]) == named.score(X, frame) == named.score(X, Y)


def test_new_columns_follow_those_that_are_known(package):
    known = read_labels(package.DataFrame({"sweet": [1, 0], "car": [0, 1]})).labels
    given = read_labels(package.DataFrame({"bus": [1, 0], "car": [1, 1]}))
    assert known.grown(given.labels).classes.tolist() == ["sweet", "car", "bus"]
    assert given.aligned(known).toarray().tolist() == [[0, 1, 1], [0, 1, 0]]


def test_a_series_of_lists_holds_the_labels_of_each_row(package):
    given = read_labels(package.Series(LISTS))
    assert given.labels.form == "lists"
    assert given.labels.classes.tolist() == sorted(NAMES)


def test_a_series_of_names_is_one_label_a_row(package):
    given = read_labels(package.Series(["b", "a", "b"]))
    assert (given.labels.form, given.labels.classes.tolist()) == ("single", ["a", "b"])


def test_columns_that_are_numbered_have_no_names():
    assert read_labels(pd.DataFrame(Y)).labels.classes.tolist() == [0, 1, 2]


def test_texts_with_commas_are_one_label_with_a_warning():
    with pytest.warns(UserWarning, match="a text with commas is one label: for several give lists"):
        assert len(read_labels(["red,fruit", "car", "red"]).labels.classes) == 3
    assert len(read_labels(["Doe, Jane", "Roe, Richard"]).labels.classes) == 2
