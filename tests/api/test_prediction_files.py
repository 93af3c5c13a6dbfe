"""Predictions in every format, with names and without."""

import csv
import io
import json

import numpy as np
import pyarrow.parquet
import pytest
import scipy.sparse

from daskxml.cli import main
from daskxml.data.synthetic import SyntheticSpec, generate, write_xml
from harness.commands import refusal
from harness.small_models import random_network

ROWS = SyntheticSpec(rows=50, test_rows=20, features=30, labels=5, seed=5)
NAMES = ("plain", 'quoted "name"', "with, comma", "two\twords", "größe")


@pytest.fixture(scope="module", params=[NAMES, ()], ids=["names", "ids"])
def world(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("predictions")
    names = {"label_names": request.param}
    model = random_network(header=names, features=30, labels=5, hidden=(8,))
    model.save(folder / "model")
    write_xml(folder / "test.txt", ROWS, "test")
    return folder, model, generate(ROWS)[1]


def expected(model, test, k):
    ids, scores = model.predict_top_k(test, k)
    names = model.header.label_names or tuple(range(5))
    return [[names[label] for label in row] for row in ids], scores


def predict(folder, out, k=3, rows="test.txt"):
    arguments = [str(folder / "model"), str(folder / rows), "--top-k", str(k)]
    assert main(["predict", *arguments, "--out", str(out)]) == 0
    return out


def test_labels_are_told_by_their_names(world):
    _, model, test = world
    assert model.predict_labels(test, 3) == expected(model, test, 3)[0]


def test_csv(world, tmp_path):
    folder, model, test = world
    with predict(folder, tmp_path / "best.csv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    labels, scores = expected(model, test, 3)
    assert [row["label"] for row in found] == [str(label) for row in labels for label in row]
    assert [int(row["row"]) for row in found] == np.repeat(np.arange(20), 3).tolist()
    assert np.float32([row["score"] for row in found]).tolist() == scores.ravel().tolist()


def check_json(text, model, test, k):
    found = [json.loads(line) for line in text.splitlines()]
    labels, scores = expected(model, test, k)
    assert [row["row"] for row in found] == list(range(20))
    assert [row["labels"] for row in found] == labels
    np.testing.assert_array_equal(np.float32([row["scores"] for row in found]), scores)


def test_json_lines(world, tmp_path):
    folder, model, test = world
    text = predict(folder, tmp_path / "best.JSONL", k=9).read_text(encoding="utf-8")
    check_json(text, model, test, 5)  # there are only five labels


def test_stdout(world, monkeypatch):
    folder, model, test = world
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr("sys.stdout", stdout)
    predict(folder, "-")
    stdout.flush()
    check_json(stdout.buffer.getvalue().decode(), model, test, 3)


def test_npz(world, tmp_path):
    folder, model, test = world
    for name in ("best.npz", "best"):
        found = scipy.sparse.load_npz(predict(folder, tmp_path / name))
        assert (found != model.predict(test, 3)).nnz == 0


def test_rows_of_a_table_need_no_labels(world, tmp_path):
    folder, model, test = world
    lines = []
    for row in range(test.rows):
        part = slice(*test.features.indptr[row : row + 2])
        ids, values = (it[part].tolist() for it in (test.features.indices, test.features.data))
        lines.append(json.dumps({"indices": ids, "values": values}))
    (folder / "rows.jsonl").write_text("\n".join(lines))
    text = predict(folder, tmp_path / "best.jsonl", k=5, rows="rows.jsonl").read_text()
    check_json(text, model, test, 5)


def test_parquet(world, tmp_path):
    folder, model, test = world
    found = pyarrow.parquet.read_table(predict(folder, tmp_path / "best.parquet")).to_pydict()
    labels, scores = expected(model, test, 3)
    assert found["row"] == list(range(20))
    assert found["labels"] == labels
    np.testing.assert_array_equal(np.float32(found["scores"]), scores)


def test_what_cannot_be_written_is_one_line(world, tmp_path, capsys):
    folder, _, _ = world
    for out, message in [
        ("best.txt", "must end in .npz, .csv, .jsonl or .parquet, or be -"),
        ("absent/best.csv", "there is no directory"),
    ]:
        given = (folder / "model", folder / "test.txt", "--out", tmp_path / out)
        assert message in refusal(capsys, "predict", *given)
    assert not list(tmp_path.iterdir())
