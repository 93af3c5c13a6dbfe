"""The generator: seeded, the same in memory and as text, Zipf-distributed, and learnable."""

import dataclasses
import gzip
import io

import numpy as np
import pytest
from sklearn.datasets import load_svmlight_file

from daskxml.core.errors import ConfigError, ModelError
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate, write_xml, zipf_mandelbrot

SMALL = SyntheticSpec(rows=300, test_rows=60, features=120, labels=25, seed=3)


def equal(left, right):
    return all(
        (to_scipy(getattr(left, name)) != to_scipy(getattr(right, name))).nnz == 0
        for name in ("features", "labels")
    )


def test_same_seed_same_rows_and_another_seed_others():
    train, test = generate(SMALL)
    again, _ = generate(SMALL)
    other, _ = generate(dataclasses.replace(SMALL, seed=4))
    assert equal(train, again)
    assert not equal(train, other)
    assert test.rows == 60


def test_rows_are_canonical():
    train, _ = generate(SMALL)
    for csr in (train.features, train.labels):
        assert csr.indptr.dtype == np.int64
        assert csr.indices.dtype == np.int32
        assert csr.indptr[-1] == csr.nonzeros
        assert csr.indices.min() >= 0
        assert csr.indices.max() < csr.columns
        for row in range(csr.rows):
            ids = csr.indices[csr.indptr[row] : csr.indptr[row + 1]]
            assert ids.size >= 1
            assert np.all(np.diff(ids) > 0)
    assert train.features.data.dtype == np.float32
    assert train.features.data.min() > 0


@pytest.mark.parametrize("name", ["rows.txt", "rows.txt.gz"])
def test_text_holds_exactly_the_generated_values(tmp_path, name):
    path = write_xml(tmp_path / name, SMALL, "test")
    text = path.read_bytes()
    with io.BytesIO(gzip.decompress(text) if name.endswith(".gz") else text) as file:
        assert file.readline() == b"60 120 25\n"
        X, Y = load_svmlight_file(
            file, n_features=120, multilabel=True, dtype=np.float32, zero_based=True
        )
    _, test = generate(SMALL)
    assert (to_scipy(test.features) != X).nnz == 0
    labels = to_scipy(test.labels)
    assert [tuple(map(int, row)) for row in Y] == [tuple(labels[i].indices) for i in range(60)]
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_rows_without_end_are_drawn_block_by_block():
    whole, _ = generate(dataclasses.replace(SMALL, rows=5000))
    start, _ = generate(dataclasses.replace(SMALL, rows=4096))
    assert (to_scipy(whole.features)[:4096] != to_scipy(start.features)).nnz == 0


def test_frequencies_follow_the_law():
    spec = SyntheticSpec(rows=20_000, features=500, labels=200, labels_per_row=1, flatness=2)
    train, _ = generate(spec)
    counts = np.sort(np.bincount(train.labels.indices, minlength=200))[::-1]
    expected = 20_000 * zipf_mandelbrot(200, 1.0, 2.0)
    assert np.abs(counts[:20] / expected[:20] - 1).max() < 0.15
    assert counts[:20].sum() > 5 * counts[-20:].sum()


def test_labels_can_be_learnt_from_the_features():
    train, test = generate(SyntheticSpec(rows=4000, test_rows=500, features=800, labels=100))
    X, Y = to_scipy(train.features), to_scipy(train.labels)
    centroids = (Y.T @ X).toarray()
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True) + 1e-9
    truth = to_scipy(test.labels).toarray()
    best = (to_scipy(test.features) @ centroids.T).argmax(axis=1)
    head = np.asarray(Y.mean(axis=0)).max()
    assert truth[np.arange(500), best].mean() > max(0.5, 2 * head)


@pytest.mark.parametrize(
    ("name", "value"), [("rows", 0), ("noise", 1.5), ("labels_per_row", 0.5), ("flatness", -1)]
)
def test_parameters_out_of_range_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name} = {value}: must be"):
        dataclasses.replace(SMALL, **{name: value})


def test_a_file_that_cannot_be_written_is_refused_and_leaves_nothing(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(ModelError, match="cannot be written"):
        write_xml(tmp_path / "taken", SMALL)
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]
