"""Calibration error and F1 against their definitions, and against scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from daskxml.core.arrays import Csr
from daskxml.data.rows import to_scipy
from daskxml.metrics.decisions import calibration_error, f1_scores, find_hits
from harness.naive_decisions import naive_error
from harness.small_data import random_rows

SEEDS = st.integers(0, 10**6)
pairs = st.lists(st.tuples(st.floats(0, 1, width=32), st.booleans()), min_size=1, max_size=60)


@settings(max_examples=30)
@given(pairs, st.integers(1, 20))
def test_the_error_is_that_of_the_definition(found, bins):
    probabilities, hits = zip(*found, strict=True)
    wanted = naive_error(probabilities, hits, bins)
    assert calibration_error(probabilities, hits, bins) == pytest.approx(wanted, abs=1e-9)


def test_probabilities_that_hold_have_no_error():
    hits = np.array([True] * 3 + [False] * 7)
    assert calibration_error(np.full(10, 0.3), hits) == pytest.approx(0.0, abs=1e-12)
    assert calibration_error(np.full(10, 0.8), hits) == pytest.approx(0.5)


def chosen_rows(rng, rows, labels, k):
    ids = np.array([rng.permutation(labels)[:k] for _ in range(rows)], np.int32)
    return np.where(rng.random((rows, k)) < 0.4, -1, ids)


@settings(max_examples=30)
@given(SEEDS, st.integers(1, 12), st.integers(1, 9))
def test_f1_is_that_of_scikit_learn_over_the_labels_that_occur(seed, rows, labels):
    rng = np.random.default_rng(seed)
    truth = random_rows(rng, rows, labels, min(3, labels), ones=True)
    ids = chosen_rows(rng, rows, labels, min(4, labels))
    dense, chosen = to_scipy(truth).toarray() > 0, np.zeros((rows, labels), bool)
    for row, found in enumerate(ids):
        chosen[row, found[found >= 0]] = True
    hits = find_hits(ids, truth)
    assert hits.sum() == (dense & chosen).sum()
    found = f1_scores(ids, truth)
    wanted = f1_score(dense.ravel(), chosen.ravel(), zero_division=0)
    assert found["micro-F1"] == pytest.approx(wanted)
    each = [f1_score(dense[:, i], chosen[:, i]) for i in range(labels) if dense[:, i].any()]
    assert found["macro-F1"] == pytest.approx(np.mean(each) if each else 0.0)


def test_rows_without_labels_and_without_choices():
    truth = Csr(np.zeros(4, np.int64), np.empty(0, np.int32), None, columns=5)
    ids = np.full((3, 2), -1, np.int32)
    assert not find_hits(ids, truth).any()
    assert f1_scores(ids, truth) == {"macro-F1": 0.0, "micro-F1": 0.0}
