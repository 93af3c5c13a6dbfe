"""Labels for each row: which they are, and what they leave alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.core.arrays import Segment
from daskxml.kernels import get_kernels
from daskxml.models.batch import with_offsets
from daskxml.models.network.sampling import SamplingConfig, label_tables
from daskxml.models.network.sampling.samplers import RowSampler
from daskxml.models.network.spec import ModelSpec
from harness.sampled_cases import (
    FEATURES,
    LABELS,
    METHODS,
    PARTITION,
    ROWS,
    UNITS,
    make_partition,
    make_replica,
)

SPEC = ModelSpec(features=FEATURES, labels=LABELS, hidden=(UNITS,))


def choose(config, part, rows, seed, key, threads=1):
    """The labels of each row, and how many of them are its own and certain."""
    rng, kernels = np.random.default_rng(seed), get_kernels("cpu", threads)
    source = label_tables(config, SPEC, 0)
    weight = rng.standard_normal((LABELS, UNITS), dtype=np.float32)
    hidden = np.abs(rng.standard_normal((len(rows), UNITS), dtype=np.float32))
    if source:
        source.refresh(kernels, weight, np.zeros(LABELS, np.float32), len(rows))
    cut = len(rows) // 3
    batch = list(with_offsets([Segment(part, rows[:cut]), Segment(part, rows[cut:])]))
    sets = RowSampler(config, kernels, LABELS, source).sample(hidden, batch, key)
    kernels.close()
    return np.split(sets.ids, sets.starts[1:-1]), sets.own, sets.certain


def own_labels(part, row):
    return part.labels.indices[part.labels.indptr[row] : part.labels.indptr[row + 1]]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(METHODS), st.integers(2, 600), st.floats(0, 1))
def test_each_row_sees_its_own_labels_and_as_many_as_it_should(seed, method, active, random):
    config = SamplingConfig(method=method, active=active, random=random, sets="row")
    part, rows = make_partition(seed), np.random.default_rng(seed).integers(0, ROWS, 20)
    found, own, certain = choose(config, part, rows, seed, seed)
    for i, row in enumerate(rows):
        mine = own_labels(part, row)
        np.testing.assert_array_equal(found[i][: own[i]], mine)
        size = max(len(mine), min(active, LABELS))
        assert len(np.unique(found[i])) == len(found[i]) == size
        assert own[i] == len(mine) <= certain[i] <= size
        assert size - certain[i] >= round(random * (size - own[i])) - 1


def test_chance_depends_on_the_key_and_the_place_only():
    config, rows = SamplingConfig(method="random", active=40, sets="row"), np.arange(12)
    first, *_ = choose(config, PARTITION, rows, 0, key=5)
    longer, *_ = choose(config, PARTITION, np.append(rows, rows), 0, key=5)
    other, *_ = choose(config, PARTITION, rows, 0, key=6)
    for i in rows:
        np.testing.assert_array_equal(first[i], longer[i])
        assert set(first[i]) != set(other[i])
        assert set(first[i]) != set(longer[12 + i])  # the same row of data, elsewhere


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_only_labels_that_a_row_saw_change(method, optimizer):
    config = SamplingConfig(method=method, active=12, sets="row")
    replica, twin = (make_replica(config, optimizer=optimizer) for _ in range(2))
    before = {name: view.copy() for name, view in replica.parameters.items()}
    rows = np.arange(ROWS)[np.diff(PARTITION.labels.indptr) > 0][:9]
    batch = [Segment(PARTITION, rows)]
    assert replica.step(batch, 0.05, 7).labels_scored == 12 * len(rows)
    pieces = tuple(with_offsets(batch))
    hidden = twin._mlp.forward(pieces, len(rows), 7)[-1]
    seen = np.unique(twin._mlp._sample(hidden, pieces, 7).ids)
    changed = (replica.parameters["output.weight"] != before["output.weight"]).any(axis=1)
    np.testing.assert_array_equal(np.flatnonzero(changed), seen)
    assert 12 < len(seen) < LABELS
    biases = replica.parameters["output.bias"] != before["output.bias"]
    assert (biases <= changed).all()
    for name, array in replica.optimizer.state().items():
        if name != "steps":
            moved = replica.layout.views(array)["output.weight"].any(axis=1)
            assert (moved <= changed).all()  # of a row without active units nothing is remembered
            assert moved.any()


def test_lanes_share_large_sets():
    """Enough pairs that all kernels wake other lanes."""
    config = SamplingConfig(method="simhash", active=20_000, sets="row", weighted=True)
    spec = ModelSpec(features=FEATURES, labels=30_000, hidden=(UNITS,))
    flats = []
    for threads in (1, 2, 3):
        replica = make_replica(config, get_kernels("cpu", threads), "adam", spec=spec)
        for key in range(2):
            replica.step([Segment(PARTITION, np.arange(7, 31))], 0.05, key)
        flats.append(replica.flat)
        replica.kernels.close()
    np.testing.assert_array_equal(flats[0], flats[1])
    np.testing.assert_array_equal(flats[0], flats[2])


def test_rows_without_labels_have_no_softmax_loss():
    rows = np.flatnonzero(np.diff(PARTITION.labels.indptr) == 0)
    assert len(rows)
    replica = make_replica(SamplingConfig(method="random", active=12, sets="row"))
    assert replica.step([Segment(PARTITION, rows)], 0.05, 1).loss_sum == 0.0
