"""Files of names, and names from a run file to a model."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

import daskxml
from daskxml.api.in_process import train_here
from daskxml.data.names import read_names

VALUES = {"model": {"hidden": [4]}, "strategy": {"batch_max": 4, "megabatch_batches": 1},
          "training": {"megabatches": 1}, "cluster": {"threads": 1}}  # fmt: skip
ROWS = daskxml.Matrices(np.eye(4), np.eye(4)[:, :3])


def named(path, *names, ending="\n"):
    path.write_text("".join(name + ending for name in names), encoding="utf-8", newline="")
    return str(path)


def test_lines_are_names(tmp_path):
    path = named(tmp_path / "names.txt", "red", " two words", "größe")
    assert read_names(path) == ("red", " two words", "größe")
    assert read_names(named(tmp_path / "dos.txt", "a", "b", ending="\r\n")) == ("a", "b")
    (tmp_path / "names.gz").write_bytes(gzip.compress(b"x\ny"))
    assert read_names(str(tmp_path / "names.gz")) == ("x", "y")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "names.txt: is empty"),
        (b"a\n\nb\n", "names.txt:2: an empty line"),
        (b"a\nb\na\n", "names.txt:3: the name 'a' is that of line 1 too"),
        (b"\xff\xfe\x00", "names.txt: is no UTF-8 text"),
    ],
)
def test_names_that_tell_nothing_apart_are_refused(tmp_path, text, message):
    path = tmp_path / "names.txt"
    path.write_bytes(text)
    with pytest.raises(daskxml.InputError, match=message):
        read_names(str(path))
    with pytest.raises(daskxml.InputError, match=r"absent: cannot be read"):
        read_names(str(tmp_path / "absent"))


@pytest.mark.parametrize("where", ["here", "simulated"])
def test_names_travel_with_the_model(tmp_path, where):
    values = {**VALUES, "data": {
        "label_names": named(tmp_path / "labels.txt", "red", "green", "blue", "never seen"),
        "feature_names": named(tmp_path / "features.txt", *"abcd"),
    }}  # fmt: skip
    if where == "here":
        run = train_here(values, train=ROWS)
    else:
        run = daskxml.simulate(values, [1.0], train=ROWS, out=tmp_path / "run")
    header = run.model.header
    assert header.label_names == ("red", "green", "blue", "never seen")
    assert header.feature_names == ("a", "b", "c", "d")
    run.model.save(tmp_path / "model")
    loaded = daskxml.load(tmp_path / "model")
    assert loaded.header == header
    assert loaded.predict_labels(np.eye(4), 2) == run.model.predict_labels(np.eye(4), 2)
    classifier = daskxml.XMLClassifier.load(tmp_path / "model")
    assert classifier.classes_.tolist() == list(header.label_names)
    assert classifier.feature_names_in_.tolist() == list(header.feature_names)


def test_too_few_names_are_refused_before_training(tmp_path):
    labels = named(tmp_path / "labels.txt", "red", "green")
    seen = []
    for overrides, message in [
        ({"data.label_names": labels}, "a matrix has 3 labels, but the model has 2"),
        ({"data.label_names": labels, "data.labels": 3}, "2 label names for 3 labels"),
    ]:
        with pytest.raises(daskxml.DaskxmlError, match=message):
            train_here(VALUES, train=ROWS, overrides=overrides, on_megabatch=seen.append)
    assert not seen
