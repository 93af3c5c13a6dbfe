"""Labels in every form against an obvious twin, and those that are refused."""

import json

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import daskxml
from daskxml import XMLClassifier
from daskxml.api.estimators.labels import read_labels

SMALL = {"run_file": "network", "hidden": 4, "batch_size": 4, "epochs": 1}
names = st.lists(st.sampled_from(["a", "b", "c", "é", " d"]), max_size=4)


@settings(max_examples=50, deadline=None)
@given(st.lists(names, min_size=1, max_size=6).filter(any), st.sampled_from([list, tuple, set]))
def test_lists_of_names_become_an_indicator(rows, kind):
    found = read_labels([kind(row) for row in rows])
    classes = sorted({name for row in rows for name in row})
    assert found.labels.classes.tolist() == classes
    expected = [[float(name in row) for name in classes] for row in rows]
    assert found.indicator.toarray().tolist() == expected


@settings(max_examples=50, deadline=None)
@given(st.lists(names, min_size=1, max_size=5).filter(any), st.lists(names, min_size=1, max_size=5))
def test_known_labels_keep_their_columns(known, rows):
    labels = read_labels(known).labels
    found = labels.encode(rows) if any(rows) else sp.csr_matrix((len(rows), 0))
    new = sorted({name for row in rows for name in row} - set(labels.columns))
    for row, listed in zip(found.toarray(), rows, strict=True):
        order = [*labels.classes.tolist(), *new]
        assert {order[column] for column in np.flatnonzero(row)} == set(listed)


@pytest.mark.parametrize(
    ("y", "form"),
    [
        ([[0, 1], [1, 0], [1, 1]], "dense"),  # as scikit-learn has it
        ([[0, 1], [1, 0], [1]], "lists"),
        ([[0, 1], [1, 2], [0, 2]], "lists"),
        ([np.array([3]), np.array([7, 3]), []], "lists"),
        (np.array([["a"], ["b", "c"], []], dtype=object), "lists"),
        (["a", "b", "a"], "single"),
        ([4, 7, 4], "single"),
        (sp.eye_array(3), "sparse"),
        (np.eye(3, dtype=bool), "dense"),
    ],
)
def test_the_form_of_labels_is_recognized(y, form):
    assert read_labels(y).labels.form == form


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([["a"], ["b"]], "X has 3 rows, y has 2"),
        ([["a"], [2.5], ["b"]], r"y, row 1: label 2.5: give names \(texts\) or ids"),
        ([["a"], [None], []], "y, row 1: label None"),
        ([["a"], [""], []], "y, row 1: label ''"),
        ([["a"], [True], []], "y, row 1: label True"),
        ([["a"], [7], []], "y, row 1: names and ids are mixed"),
        ([["a"], "b", []], "y, row 1: 'b' is no list of labels"),
        ([[], [], []], "y: no row has a label"),
        (None, "y to be passed"),
        (np.array([0.5, 1.5, 2.5]), "Unknown label type"),
        (
            np.array(["a", "b", 7], object),
            "y: labels like 'a' and, in row 2, 7: give all labels as names or",
        ),
        (pd.Series(["a", None, "b"], dtype=object), "like 'a' and, in row 1, None: give"),
    ],
)
def test_labels_that_cannot_be_used_are_refused_in_a_line(y, message):
    with pytest.raises(ValueError, match=message) as raised:
        XMLClassifier(**SMALL).fit(np.eye(3), y)
    if isinstance(raised.value, daskxml.DaskxmlError):
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("first", "then"),
    [([["a"], ["b"], ["a"]], [[0], [1, 2], [0]]), ([[0], [1, 2], [0]], [["a"], ["b"], ["a"]])],
)
def test_names_and_ids_in_two_calls_are_refused_in_a_line(first, then):
    X, mixed = np.eye(3), "y: names and ids are mixed: give labels as they were given first"
    fitted = XMLClassifier(**SMALL).fit(X, first)
    for call in (fitted.score, fitted.partial_fit):
        with pytest.raises(daskxml.InputError, match=mixed):
            call(X, then)
    with pytest.raises(daskxml.InputError, match=mixed):
        XMLClassifier(**SMALL).fit(X, first, eval_set=(X, then))


def test_other_arguments_that_cannot_be_used_are_refused_in_a_line():
    X, y = np.eye(3), [["a"], ["b"], ["a"]]
    small = XMLClassifier(**SMALL)
    for fit, message in [
        ({"eval_set": (X,)}, r"eval_set: give one pair \(X, y\)"),
        ({"eval_set": (X, y[:2])}, "X has 3 rows, y has 2"),
        ({"model": 5}, "model: give a fitted XMLClassifier"),
        (
            {"model": XMLClassifier(**{**SMALL, "hidden": 8}).fit(X, y)},
            "hidden layers",
        ),
        ({"model": XMLClassifier(**SMALL).fit(np.eye(3), np.eye(3))}, "y is lists here, but dense"),
        ({"model": "/no/such/model"}, "no such directory|holds no model"),
    ]:
        with pytest.raises(daskxml.DaskxmlError, match=message):
            small.fit(X, y, **fit)
    for own, message in [
        ({"loss": "hinge"}, r"model.loss = 'hinge'|must be one of"),
        ({"eval_metric": "F1"}, r"metric = 'F1': must be one of"),
        ({"strategy": "adaptive"}, "no such strategy"),
        ({"settings": {"model.layers": 3}}, "unknown key 'layers'"),
        ({"epochs": -1}, "epochs = -1"),
    ]:
        with pytest.raises(daskxml.ConfigError, match=message):
            XMLClassifier(**{**SMALL, **own}).fit(X, y)
    for classes, message in [(["a", "b", "a"], "'a' occurs twice"), ([], "at least one label")]:
        with pytest.raises(daskxml.DaskxmlError, match=message):
            XMLClassifier(**SMALL).partial_fit(X, y, classes=classes)
    with pytest.raises(daskxml.ConfigError, match="metric = 'P@0'"):
        daskxml.make_scorer("P@0")
    fitted = small.fit(X, y)
    with pytest.raises(daskxml.InputError, match="label 'z': is none of the 2"):
        fitted.explain(X, "z")


# ------------------------ data frames and series, and texts that hold several


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


def test_a_series_of_texts_is_rows_of_a_model_of_texts(package, tmp_path):
    lines = [json.dumps({"text": f"a {tag}", "labels": [tag]}) for tag in NAMES * 5]
    (tmp_path / "tags.jsonl").write_text("\n".join(lines))
    daskxml.train("tree", tmp_path / "tags.jsonl", out=tmp_path / "run")
    loaded = XMLClassifier.load(tmp_path / "run")
    texts = package.Series(["none", *NAMES])[1:]  # with an index of pandas that begins at 1
    assert loaded.predict_labels(texts, k=1) == [[tag] for tag in NAMES]


def test_columns_that_are_numbered_have_no_names():
    assert read_labels(pd.DataFrame(Y)).labels.classes.tolist() == [0, 1, 2]


def test_texts_with_commas_are_one_label_with_a_warning():
    with pytest.warns(UserWarning, match="a text with commas is one label: for several give lists"):
        assert len(read_labels(["red,fruit", "car", "red"]).labels.classes) == 3
    assert len(read_labels(["Doe, Jane", "Roe, Richard"]).labels.classes) == 2
