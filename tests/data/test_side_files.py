"""Files of names and of weights: what they hold, what is refused, and how names reach a model."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import daskxml
from daskxml.api.in_process import train_here
from daskxml.config import load_run_config
from daskxml.core.arrays import Partition
from daskxml.core.errors import InputError
from daskxml.data.rows import concatenate, from_scipy, slice_rows, take_rows
from daskxml.data.settings import DataSection
from daskxml.data.side_files import label_weights, read_names, row_weights
from daskxml.kernels import get_kernels
from daskxml.local import read_rows
from daskxml.metrics import propensities
from harness.rows_here import read_here

COUNTS = np.array([50, 10, 0, 1])  # rows with each label
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
    with pytest.raises(daskxml.InputError, match=r"absent: no such file"):
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


def test_files_hold_what_arrays_hold(tmp_path):
    weights = np.array([0.5, 0.0, 2.25])
    np.save(tmp_path / "weights.npy", weights)
    (tmp_path / "weights.txt").write_text("0.5\n0\n 2.25")
    for name in ("weights.npy", "weights.txt"):
        found = row_weights(str(tmp_path / name), 3, has_mean_one=False)
        np.testing.assert_array_equal(found, weights)
    assert row_weights(weights, 3, has_mean_one=True).mean() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([1.0, -1.0], "weight of row 1 is -1.0: must be a finite number, at least 0"),
        ([np.nan, 1.0], "weight of row 0 is nan"),
        ([1.0, np.inf], "weight of row 1 is inf"),
        ([1.0, 1e39], "weight of row 1 is 1e.39"),
        ([0.0, 0.0], "all weights are zero"),
        ([1.0], "1 weights for 2 rows: give one for each"),
        ([[1.0, 2.0]], r"weights of shape \(1, 2\)"),
        (["a", "b"], "weights of shape .* and dtype <U1"),
    ],
)
def test_what_is_no_weight_is_refused(given, problem):
    with pytest.raises(InputError, match=problem):
        row_weights(given, 2, has_mean_one=True)


def test_a_bad_file_is_told_with_its_line(tmp_path):
    path = tmp_path / "weights.txt"
    path.write_text("1\nheavy\n")
    with pytest.raises(InputError, match=r"weights.txt:2: 'heavy' is no number"):
        row_weights(str(path), 2, has_mean_one=True)
    with pytest.raises(InputError, match="no such file"):
        row_weights(str(tmp_path / "none.npy"), 2, has_mean_one=True)
    (tmp_path / "bad.npy").write_text("1\n")
    with pytest.raises(InputError, match=r"bad.npy: cannot be read"):
        row_weights(str(tmp_path / "bad.npy"), 2, has_mean_one=True)


def test_weights_go_where_their_rows_go():
    x = from_scipy(np.eye(4))
    part = Partition(x, x, np.float32([1, 2, 3, 4]))
    joined = concatenate([take_rows(part, np.array([3, 0])), slice_rows(part, 1, 3)])
    assert joined.weights.tolist() == [4, 1, 2, 3]
    assert part.nbytes == 2 * x.nbytes + 16
    assert get_kernels("cpu", 1).to_device(part) is part


TABLE = {"labels": [[0], [1], [0]], "indices": [[1], [2], [3]], "sample_weight": [1, 0.5, 2]}


def table_file(folder: Path, kind: str, **columns: Any) -> Path:
    """Write the table with other columns; None leaves one out."""
    given = {name: column for name, column in (TABLE | columns).items() if column is not None}
    rows = [dict(zip(given, row, strict=True)) for row in zip(*given.values(), strict=True)]
    file = folder / f"rows.{kind}"
    if kind == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "csv":
        lines = [[_field(value) for value in row.values()] for row in rows]
        file.write_text("".join(",".join(line) + "\n" for line in [list(given), *lines]))
    else:
        pyarrow.parquet.write_table(pyarrow.table(given), file)
    return file


def _field(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def weights_in(*files: Path) -> Any:
    config = load_run_config({"training": {"epochs": 1}, "data": {"train": list(map(str, files))}})
    return np.concatenate([part.weights for part in read_rows(config, 1).train.parts])


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_column_of_a_table_is_the_weights(tmp_path: Path, kind: str) -> None:
    found = weights_in(table_file(tmp_path, kind))
    np.testing.assert_allclose(np.sort(found), np.array([0.5, 1, 2]) / (3.5 / 3), rtol=1e-6)
    dense = {"indices": None, "a": [1.0, 2.0, 3.0], "b": [3.0, 0.0, 1.0]}
    if kind != "jsonl":
        file = table_file(tmp_path, kind, **dense)
        assert weights_in(file).shape == (3,)
        (block,), _ = read_here(DataSection(train=(str(file),)))
        assert block.features.columns == 2


def test_weights_of_a_table_that_are_wrong_are_told_with_their_place(tmp_path: Path) -> None:
    cases = [
        ("jsonl", [1, -1, 2], r"rows.jsonl:2: 'sample_weight' is -1: must be a finite number"),
        ("csv", [1, 1, "nan"], r"rows.csv:4: 'sample_weight' is nan: must be"),
        ("csv", [1, "x", 1], r"rows.csv:3: 'sample_weight' holds 'x', no number"),
        ("jsonl", ["a", "b", "c"], r"rows.jsonl:1: 'sample_weight' holds 'a', no number"),
        ("parquet", [1.0, None, 1.0], "row 1: 'sample_weight' is null"),
    ]
    for kind, given, problem in cases:
        with pytest.raises(InputError, match=problem):
            weights_in(table_file(tmp_path, kind, sample_weight=given))
    with_weights, without = tmp_path / "with", tmp_path / "without"
    with_weights.mkdir()
    without.mkdir()
    files = table_file(with_weights, "csv"), table_file(without, "csv", sample_weight=None)
    with pytest.raises(InputError, match="in some files only: give all training files one"):
        weights_in(*files)


def test_a_label_of_a_row_counts_one_on_average():
    weights = label_weights("propensity", COUNTS, propensities(COUNTS, 60))
    assert (weights @ COUNTS) / COUNTS.sum() == pytest.approx(1.0)
    assert weights[0] < weights[1] < weights[3]
    assert weights[2] == 1.0


def test_choices_are_in_proportion():
    inverse = propensities(COUNTS, 60)
    balanced, propensity = (label_weights(it, COUNTS, inverse) for it in ("balanced", "propensity"))
    mean = COUNTS.sum() / np.count_nonzero(COUNTS)  # rows of a label
    np.testing.assert_allclose(balanced, [1.0, mean / 10, 1.0, mean], rtol=1e-6)
    np.testing.assert_allclose(
        (propensity / inverse)[[0, 1]], propensity[3] / inverse[3], rtol=1e-6
    )
    assert label_weights("none", COUNTS, inverse) is None
    assert label_weights({"4": 2.0}, COUNTS, inverse, label_base=1).tolist() == [1, 1, 1, 2]
    assert label_weights((1.0, 2.0, 0.0, 0.5), COUNTS, inverse).tolist() == [1, 2, 0, 0.5]
    assert label_weights("balanced", np.zeros(3, np.int64), np.ones(3)).tolist() == [1, 1, 1]
