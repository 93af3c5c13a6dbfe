"""evaluate, predict and inspect on a written model and generated rows."""

import gzip
import json

import pytest
import scipy.sparse
from numba import njit

from daskxml.cli import main
from daskxml.data.synthetic import SyntheticSpec, generate, write_xml
from daskxml.kernels.registry import TEXT
from daskxml.models.rows import evaluate_partitions
from harness.commands import refusal
from harness.small_models import random_network

ROWS = SyntheticSpec(rows=500, test_rows=90, features=60, labels=12, seed=5)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Return a folder with a model, whose weights are random, and rows in two spellings."""
    folder = tmp_path_factory.mktemp("cli")
    test = generate(ROWS)[1]
    model = random_network(header={"feature_base": 1}, features=60, labels=12, hidden=(16,))
    model.save(folder / "model")
    write_xml(folder / "test.txt", ROWS, "test")
    write_one_based(folder / "test.svm.gz", test)
    return folder, model, test


def write_one_based(path, test):
    lines = []
    for row in range(test.rows):
        ids = slice(test.features.indptr[row], test.features.indptr[row + 1])
        pairs = zip(test.features.indices[ids], test.features.data[ids], strict=True)
        labels = test.labels.indices[test.labels.indptr[row] : test.labels.indptr[row + 1]]
        head = ",".join(map(str, labels))
        lines.append(" ".join([head, *(f"{i + 1}:{value:.4f}" for i, value in pairs)]) + "\n")
    path.write_bytes(gzip.compress("".join(lines).encode()))


@pytest.mark.parametrize("name", ["test.txt", "test.svm.gz"])
def test_evaluate_prints_what_the_model_says(world, capsys, name):
    folder, model, test = world
    assert main(["evaluate", str(folder / "model"), str(folder / name), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == model.evaluate(test)


def test_kernels_that_are_compiled_are_told_beside_the_output(world, capsys, monkeypatch):
    folder, _, _ = world

    def compiled(*arguments, **more):  # in the place of kernels, which are in the cache
        njit(lambda x: x + 1)(1)
        return evaluate_partitions(*arguments, **more)

    monkeypatch.setattr("daskxml.cli.data.evaluate_partitions", compiled)
    assert main(["evaluate", str(folder / "model"), str(folder / "test.txt"), "--json"]) == 0
    told = capsys.readouterr()
    assert "P@1" in json.loads(told.out)
    assert told.err == f"{TEXT}\n"


def test_evaluate_prints_a_table(world, capsys):
    folder, _, _ = world
    arguments = [str(folder / "model"), str(folder / "test.txt"), "--k", "2"]
    assert main(["evaluate", *arguments]) == 0
    out = capsys.readouterr().out
    assert "@2" in out
    assert "PSnDCG" in out
    assert "90 rows, 0 of them without labels" in out


def test_evaluate_takes_several_files(world, capsys):
    folder, _, _ = world
    files = [str(folder / "test.txt"), str(folder / "test.svm.gz")]
    assert main(["evaluate", str(folder / "model"), *files, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 180


def test_predict_writes_the_models_scores_and_replaces(world, tmp_path, capsys):
    folder, model, test = world
    out = tmp_path / "scores"  # written under exactly this name
    out.write_text("old")
    arguments = [str(folder / "model"), str(folder / "test.txt"), "--top-k", "3"]
    assert main(["predict", *arguments, "--out", str(out)]) == 0
    scores = scipy.sparse.load_npz(out)
    assert scores.shape == (90, 12)
    assert (scores != model.predict(test, top_k=3)).nnz == 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["scores"]
    assert "90 rows x 12 labels, 270 scores" in capsys.readouterr().out


def test_bad_input_is_one_line_and_writes_nothing(world, tmp_path, capsys):
    folder, _, _ = world
    bad = tmp_path / "bad.txt"
    out = tmp_path / "scores.npz"
    for text, expected in {
        "1 61 12\n0 1:1\n": "its header has 61 features and 12 labels, the model has 60 and 12",
        "2 60 12\n0 1:1\n0 99:1\n": "bad.txt:3",
        "2 60 12\n0 1:1\n0 9:nan\n": "bad.txt:3",
        "": "bad.txt",
    }.items():
        bad.write_text(text)
        arguments = (folder / "model", bad, "--out", out)
        assert expected in refusal(capsys, "predict", *arguments)
        assert not out.exists()
    assert "absent.txt" in refusal(capsys, "evaluate", folder / "model", tmp_path / "absent.txt")
    assert "absent" in refusal(capsys, "evaluate", tmp_path / "absent", folder / "test.txt")
    elsewhere = tmp_path / "no" / "scores.npz"
    arguments = (folder / "model", folder / "test.txt", "--out", elsewhere)
    assert "there is no directory" in refusal(capsys, "predict", *arguments)


def test_labels_of_rows_to_predict_are_not_read(world, tmp_path, capsys):
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows.write_text('{"labels": ["☃"], "indices": [3], "values": [1.0]}\n')
    assert main(["predict", str(world[0] / "model"), str(rows), "--out", str(out)]) == 0
    assert len(json.loads(out.read_text())["labels"]) == 5
    capsys.readouterr()
    assert main(["evaluate", str(world[0] / "model"), str(rows)]) == 2
    assert "label '☃' is a name" in capsys.readouterr().err


def test_inspect_describes_a_file(world, capsys):
    folder, _, _ = world
    assert main(["inspect", str(folder / "test.txt")]) == 0
    lines = capsys.readouterr().out
    assert "90" in lines
    (folder / "worse.txt").write_text("0 1:1\n 2:1\n")
    assert main(["inspect", str(folder / "worse.txt")]) == 1
    assert "  - 1 rows have no label" in capsys.readouterr().out
    assert main(["inspect", str(folder / "test.txt"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 90
