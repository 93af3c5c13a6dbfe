"""A sampled output layer in a replica: which labels, against the one of all, what is left alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.core.arrays import Segment
from daskxml.core.errors import ConfigError
from daskxml.kernels import get_kernels
from daskxml.models.batch import with_offsets
from daskxml.models.network import hash_tables, samplers
from daskxml.models.network.samplers import BatchSampler, RowSampler
from daskxml.models.network.sampling import ALL_LABELS, SamplingConfig, label_tables
from daskxml.models.network.spec import ModelSpec
from daskxml.optim import GradientBuffer
from harness import naive_sampling
from harness.naive_kernels import NaiveKernels
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

HASHES = ("simhash", "dwta")
SPEC = ModelSpec(features=FEATURES, labels=LABELS, hidden=(UNITS,))


def train(replica, steps=5, lr=0.05):
    """Steps over two segments a batch; the losses."""
    order = np.random.default_rng(1).permutation(ROWS)
    batch = [Segment(PARTITION, order[:11]), Segment(PARTITION, order[11:])]
    return [replica.step(batch, lr, key).loss_sum for key in range(steps)]


def true_labels():
    return np.unique(PARTITION.labels.indices)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "adam"])
def test_all_labels_at_once_are_the_whole_layer(method, loss, optimizer):
    whole = make_replica(ALL_LABELS, optimizer=optimizer, loss=loss, dropout=0.2)
    config = SamplingConfig(method=method, active=1.0)
    sampled = make_replica(config, optimizer=optimizer, loss=loss, dropout=0.2)
    np.testing.assert_allclose(train(sampled), train(whole), rtol=1e-5)
    np.testing.assert_allclose(sampled.flat, whole.flat, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_fast_kernels_choose_and_train_as_naive_ones_do(method, loss, monkeypatch):
    config = SamplingConfig(method=method, active=200, k=2)
    fast = make_replica(config, get_kernels("cpu", 2), loss=loss)
    losses = train(fast, 2)
    for user in (samplers, hash_tables):
        monkeypatch.setattr(user, "sampling", naive_sampling)
    monkeypatch.setattr(samplers, "row_sampling", naive_sampling)
    monkeypatch.setattr("daskxml.kernels.cpu.sampling.take_rows", naive_sampling.take_rows)
    slow = make_replica(config, NaiveKernels("float64", threads=2, block=64), loss=loss)
    np.testing.assert_allclose(losses, train(slow, 2), rtol=1e-4)
    np.testing.assert_allclose(fast.flat, slow.flat, atol=1e-4)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_only_chosen_rows_change(optimizer):
    replica = make_replica(SamplingConfig(method="random", active=150), optimizer=optimizer)
    before = {name: view.copy() for name, view in replica.parameters.items()}
    order = np.arange(ROWS)
    result = replica.step([Segment(PARTITION, order)], 0.05, 7)
    assert result.labels_scored == 150 * ROWS
    changed = (replica.parameters["output.weight"] != before["output.weight"]).any(axis=1)
    biases = replica.parameters["output.bias"] != before["output.bias"]
    assert changed.sum() == 150
    assert (biases <= changed).all()
    assert changed[true_labels()].all()
    for name, array in replica.optimizer.state().items():
        if name != "steps":
            moved = replica.layout.views(array)["output.weight"].any(axis=1)
            np.testing.assert_array_equal(moved, changed)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_same_bits_for_any_number_of_lanes_once_and_again(method, optimizer, loss):
    flats = []
    for threads in (1, 1, 3):
        config = SamplingConfig(method=method, active=100, rebuild_every=100)
        replica = make_replica(config, get_kernels("cpu", threads), optimizer, loss)
        train(replica)
        flats.append(replica.flat)
    np.testing.assert_array_equal(flats[0], flats[1])
    np.testing.assert_array_equal(flats[0], flats[2])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 600))
def test_a_batch_sample(seed, active):
    rng, kernels = np.random.default_rng(seed), get_kernels("cpu", 1)
    config, part = SamplingConfig(method="random", active=active), make_partition(seed)
    rows = rng.integers(0, ROWS, 20)
    hidden = np.abs(rng.standard_normal((20, UNITS), dtype=np.float32))
    batch = list(with_offsets([Segment(part, rows[:8]), Segment(part, rows[8:])]))
    sample = BatchSampler(config, kernels, LABELS).sample(hidden, batch, seed)
    wanted = np.unique(np.concatenate([own_labels(part, row) for row in rows]))
    assert len(np.unique(sample.ids)) == len(sample.ids) == max(len(wanted), min(active, LABELS))
    assert np.isin(wanted, sample.ids[: len(wanted)]).all()
    targets = sample.targets.y
    for i, row in enumerate(rows):
        found = sample.ids[targets.indices[targets.indptr[i] : targets.indptr[i + 1]]]
        np.testing.assert_array_equal(np.sort(found), own_labels(part, row))


def own_labels(part, row):
    return part.labels.indices[part.labels.indptr[row] : part.labels.indptr[row + 1]]


@pytest.mark.parametrize("method", METHODS)
def test_a_gradient_that_is_applied_equals_a_step(method):
    config = SamplingConfig(method=method, active=80)
    batch = [Segment(PARTITION, np.arange(9))]
    stepped, applied = make_replica(config), make_replica(config)
    stepped.step(batch, 0.1, 4)
    buffer = GradientBuffer(applied.kernels, applied.layout.size, applied.layout.views)
    applied.gradient(batch, buffer, 4)
    rows = buffer.views["output.weight"].any(axis=1)
    assert rows.sum() == 80 if method == "random" else 80 < rows.sum() < LABELS
    applied.apply(buffer.views, 0.1)
    weights = [replica.parameters["output.weight"][rows] for replica in (stepped, applied)]
    np.testing.assert_allclose(*weights, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_batches_of_any_size_follow_each_other(method):
    config = SamplingConfig(method=method, active=30)
    replica = make_replica(config, loss="sigmoid")
    for rows in (3, ROWS, 1, 20):
        result = replica.step([Segment(PARTITION, np.arange(rows))], 0.1, rows)
        assert result.rows == rows
        assert result.labels_scored >= 30 * rows


@pytest.mark.parametrize("method", METHODS)
def test_optimizers_that_need_whole_layers_are_refused(method):
    replica = make_replica(SamplingConfig(method=method), optimizer="lamb")
    with pytest.raises(ConfigError, match="neither clip_norm nor lamb"):
        train(replica, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"active": 0}, "active = 0: must be above 0"),
        ({"active": 2.5}, "active = 2.5: must be a share up to 1, or a whole number"),
        ({"method": "lsh"}, "method = 'lsh': must be one of"),
        ({"method": "dwta", "k": 7}, "k = 7: must be at most 6 for 'dwta'"),
        ({"random": 1.5}, "random = 1.5: must be from 0 to 1"),
        ({"l": 0}, "l = 0"),
        ({"rebuild_growth": 0.5}, "rebuild_growth = 0.5"),
    ],
)
def test_nonsense_is_refused(options, message):
    with pytest.raises(ConfigError) as caught:
        SamplingConfig(**options)
    assert message in str(caught.value)


def test_numbers_of_labels():
    assert SamplingConfig(active=0.001).labels_of(100) == 1
    assert SamplingConfig(active=1.0).labels_of(100) == 100
    assert SamplingConfig(active=5000).labels_of(100) == 100
    assert SamplingConfig(active=30).labels_of(100) == 30


def choose(config, part, rows, seed, key, threads=1):
    """The labels of each row, and how many of them are its own."""
    rng, kernels = np.random.default_rng(seed), get_kernels("cpu", threads)
    source = label_tables(config, SPEC, 0)
    weight = rng.standard_normal((LABELS, UNITS), dtype=np.float32)
    hidden = np.abs(rng.standard_normal((len(rows), UNITS), dtype=np.float32))
    source.refresh(kernels, weight, np.zeros(LABELS, np.float32), len(rows))
    cut = len(rows) // 3
    batch = list(with_offsets([Segment(part, rows[:cut]), Segment(part, rows[cut:])]))
    sets = RowSampler(config, kernels, source).sample(hidden, batch, key)
    kernels.close()
    return np.split(sets.ids, sets.starts[1:-1]), sets.own


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(HASHES), st.integers(2, 600), st.floats(0, 1))
def test_each_row_sees_its_own_labels_and_as_many_as_it_should(seed, method, active, random):
    config = SamplingConfig(method=method, active=active, random=random)
    part, rows = make_partition(seed), np.random.default_rng(seed).integers(0, ROWS, 20)
    found, own = choose(config, part, rows, seed, seed)
    for i, row in enumerate(rows):
        mine = own_labels(part, row)
        np.testing.assert_array_equal(found[i][: own[i]], mine)
        size = max(len(mine), min(active, LABELS))
        assert len(np.unique(found[i])) == len(found[i]) == size
        assert own[i] == len(mine) <= size


def test_chance_depends_on_the_key_and_the_place_only():
    config, rows = SamplingConfig(method="simhash", active=40, random=1.0), np.arange(12)
    first, _ = choose(config, PARTITION, rows, 0, key=5)
    longer, _ = choose(config, PARTITION, np.append(rows, rows), 0, key=5)
    other, _ = choose(config, PARTITION, rows, 0, key=6)
    for i in rows:
        np.testing.assert_array_equal(first[i], longer[i])
        assert set(first[i]) != set(other[i])
        assert set(first[i]) != set(longer[12 + i])  # the same row of data, elsewhere


@pytest.mark.parametrize("method", HASHES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_only_labels_that_a_row_saw_change(method, optimizer):
    config = SamplingConfig(method=method, active=12)
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
    config = SamplingConfig(method="simhash", active=20_000)
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
    replica = make_replica(SamplingConfig(method="simhash", active=12))
    assert replica.step([Segment(PARTITION, rows)], 0.05, 1).loss_sum == 0.0
