"""Weights of rows on a real cluster: from a file, from memory and of Dask arrays."""

import json

import dask.array as da
import numpy as np
import pytest

import daskxml
from daskxml.core.errors import InputError
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import generate
from harness.small_data import SPEC

RUN = {
    "model": {"hidden": [16], "loss": "softmax"},
    "strategy": {"name": "mirrored", "batch_max": 64, "megabatch_batches": 12, "lr": 0.5},
    "training": {"megabatches": 4},
    "cluster": {"threads": 1},
}


@pytest.fixture(scope="module")
def rows():
    """The rows, and weights that leave those with the least frequent of a few labels."""
    train, _ = generate(SPEC)
    X, Y = to_scipy(train.features), to_scipy(train.labels)
    label = int(np.argsort(np.asarray(Y.sum(axis=0)).ravel())[-5])
    return X, Y, label, np.asarray(Y[:, [label]].todense()).ravel()


def share_first(run, X, label):
    return float((run.model.predict_top_k(X, 1)[0][:, 0] == label).mean())


@pytest.mark.parametrize(
    "kind",
    ["file", "arrays", *(pytest.param(n, marks=pytest.mark.slow) for n in ("table", "memory"))],
)
def test_rows_of_weight_zero_are_not_learned(client, data, rows, kind, tmp_path):
    X, Y, label, weights = rows
    sections, train = RUN, data["train"]
    if kind == "file":
        np.save(tmp_path / "weights.npy", weights)
        sections = RUN | {"data": {"weights": str(tmp_path / "weights.npy")}}
    elif kind == "table":
        train = tmp_path / "rows.jsonl"
        given = {"indices": (X, X.indices), "values": (X, X.data), "labels": (Y, Y.indices)}
        with train.open("w") as file:
            columns = [np.split(flat, matrix.indptr[1:-1]) for matrix, flat in given.values()]
            for *lists, weight in zip(*columns, weights.tolist(), strict=True):
                row = dict(zip(given, map(np.ndarray.tolist, lists), strict=True))
                file.write(json.dumps({**row, "sample_weight": weight}) + "\n")
    elif kind == "memory":
        train = daskxml.Matrices(X, Y, weights)
    else:
        dense = [da.from_array(m.toarray(), chunks=(400, -1)) for m in (X, Y)]
        train = daskxml.Matrices(*dense, da.from_array(weights, chunks=500))
    run = daskxml.train(sections, client=client, train=train)
    assert share_first(run, X, label) == 1.0


def test_all_rows_alike_learn_other_labels(client, rows):
    X, Y, label, _ = rows
    assert (
        share_first(daskxml.train(RUN, client=client, train=daskxml.Matrices(X, Y)), X, label) < 1
    )


@pytest.mark.slow
def test_an_estimator_passes_weights_on(client, rows):
    X, Y, label, weights = rows
    blocks = [da.from_array(m.toarray(), chunks=(500, -1)) for m in (X, Y.astype(int))]
    estimator = daskxml.DaskXMLClassifier(RUN, client=client).fit(*blocks, weights)
    assert {row[0] for row in estimator.predict_labels(X[:50].toarray(), k=1)} == {label}


def test_bad_weights_are_told_in_one_line(client, rows):
    X, Y, _, weights = rows
    bad = np.where(np.arange(len(weights)) == 3, np.nan, weights)
    with pytest.raises(InputError, match="weight of row 3 is nan") as caught:
        daskxml.train(RUN, client=client, train=daskxml.Matrices(X, Y, bad))
    assert "\n" not in caught.value.message
