"""Made-up rows: with a data set's sparsity, for timing, or with something to learn, for a run."""

from __future__ import annotations

import numpy as np

from daskxml.core.arrays import Csr, Partition


def random_rows(rng, rows, features, labels, row_features, row_labels):
    """Rows of unit length; popular columns come more often, as in real data.

    Columns are drawn by a power law: column ``n u**2`` for ``u`` uniform; what is drawn twice in a
    row counts once.
    """
    values = np.full(rows * row_features, row_features**-0.5, np.float32)
    return Partition(
        _sparse(rng, rows, features, row_features, values),
        _sparse(rng, rows, labels, row_labels, None),
    )


def _sparse(rng, rows, columns, each, values):
    drawn = np.sort((columns * rng.random((rows, each)) ** 2).astype(np.int32), axis=1)
    fresh = np.ones(drawn.shape, bool)
    fresh[:, 1:] = drawn[:, 1:] != drawn[:, :-1]
    indptr = np.append(0, np.cumsum(fresh.sum(axis=1))).astype(np.int64)
    data = None if values is None else values[fresh.ravel()]
    return Csr(indptr, drawn[fresh], data, columns)


def planted_rows(seed, rows, features, labels, row_features=20):
    """Rows of one label each, whose features are mostly that label's own."""
    rng = np.random.default_rng(seed)
    own = rng.integers(0, features, (labels, row_features))
    label = rng.integers(0, labels, rows)
    picked = np.where(rng.random((rows, row_features)) < 0.7, own[label],
                      rng.integers(0, features, (rows, row_features)))  # fmt: skip
    lists = [np.unique(row) for row in picked]
    indptr = np.append(0, np.cumsum([len(row) for row in lists])).astype(np.int64)
    indices = np.concatenate(lists).astype(np.int32)
    lengths = np.diff(indptr)
    data = np.repeat(lengths**-0.5, lengths).astype(np.float32)
    x = Csr(indptr, indices, data, features)
    y = Csr(np.arange(rows + 1, dtype=np.int64), label.astype(np.int32), None, labels)
    return Partition(x, y)
