"""A sampled output layer in a replica: against the one of all labels; what it leaves alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.core.arrays import Segment
from daskxml.core.errors import ConfigError
from daskxml.kernels import get_kernels
from daskxml.models.batch import with_offsets
from daskxml.models.network.sampling import (
    ALL_LABELS,
    SamplingConfig,
    hash_tables,
    label_tables,
    row_pairs,
    samplers,
)
from daskxml.models.network.sampling.samplers import BatchSampler
from daskxml.models.network.spec import ModelSpec
from daskxml.optim.gradient import GradientBuffer
from harness import naive_sampling
from harness.naive_kernels import NaiveKernels
from harness.sampled_cases import (
    LABELS,
    METHODS,
    PARTITION,
    ROWS,
    UNITS,
    make_partition,
    make_replica,
)

SETS = pytest.mark.parametrize("sets", ["batch", "row"])


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
@SETS
def test_all_labels_at_once_are_the_whole_layer(method, loss, optimizer, sets):
    whole = make_replica(ALL_LABELS, optimizer=optimizer, loss=loss, dropout=0.2)
    config = SamplingConfig(method=method, active=1.0, sets=sets)
    sampled = make_replica(config, optimizer=optimizer, loss=loss, dropout=0.2)
    np.testing.assert_allclose(train(sampled), train(whole), rtol=1e-5)
    np.testing.assert_allclose(sampled.flat, whole.flat, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("weighted", [True, False])
@SETS
def test_fast_kernels_choose_and_train_as_naive_ones_do(method, loss, weighted, sets, monkeypatch):
    config = SamplingConfig(method=method, active=200, weighted=weighted, k=2, sets=sets)
    fast = make_replica(config, get_kernels("cpu", 2), loss=loss)
    losses = train(fast, 2)
    for user in (samplers, hash_tables):
        monkeypatch.setattr(user, "sampling", naive_sampling)
    for user in (samplers, row_pairs):
        monkeypatch.setattr(user, "row_sampling", naive_sampling)
    monkeypatch.setattr("daskxml.kernels.cpu.sampling.take_rows", naive_sampling.take_rows)
    slow = make_replica(config, NaiveKernels("float64", threads=2, block=64), loss=loss)
    np.testing.assert_allclose(losses, train(slow, 2), rtol=1e-4)
    np.testing.assert_allclose(fast.flat, slow.flat, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_only_chosen_rows_change(method, optimizer):
    replica = make_replica(SamplingConfig(method=method, active=150), optimizer=optimizer)
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
@SETS
def test_same_bits_for_any_number_of_lanes_once_and_again(method, optimizer, loss, sets):
    flats = []
    for threads in (1, 1, 3):
        config = SamplingConfig(method=method, active=100, rebuild_every=100, sets=sets)
        replica = make_replica(config, get_kernels("cpu", threads), optimizer, loss)
        train(replica)
        flats.append(replica.flat)
    np.testing.assert_array_equal(flats[0], flats[1])
    np.testing.assert_array_equal(flats[0], flats[2])


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**32), st.sampled_from(METHODS), st.integers(2, 600), st.floats(0, 1),
    st.booleans(),
)  # fmt: skip
def test_a_batch_sample(seed, method, active, random, weighted):
    rng, kernels = np.random.default_rng(seed), get_kernels("cpu", 1)
    options = {"active": active, "random": random, "weighted": weighted}
    config, part = SamplingConfig(method=method, **options), make_partition(seed)
    spec = ModelSpec(features=1, labels=LABELS, hidden=(UNITS,))
    source = label_tables(config, spec, 0)
    weight = rng.standard_normal((LABELS, UNITS), dtype=np.float32)
    rows = rng.integers(0, ROWS, 20)
    hidden = np.abs(rng.standard_normal((20, UNITS), dtype=np.float32))
    if source:
        source.refresh(kernels, weight, np.zeros(LABELS, np.float32), 20)
    batch = list(with_offsets([Segment(part, rows[:8]), Segment(part, rows[8:])]))
    sample = BatchSampler(config, kernels, LABELS, source).sample(hidden, batch, seed)
    own = [part.labels.indices[part.labels.indptr[r] : part.labels.indptr[r + 1]] for r in rows]
    wanted = np.unique(np.concatenate(own))
    assert len(np.unique(sample.ids)) == len(sample.ids) == max(len(wanted), min(active, LABELS))
    assert np.isin(wanted, sample.ids[: sample.certain]).all()
    room = max(0, min(active, LABELS) - len(wanted))
    assert len(sample.ids) - sample.certain >= round(random * room) - 1
    drawn = len(sample.ids) - sample.certain
    standing = (LABELS - sample.certain) / drawn if drawn and weighted else 1.0
    assert sample.weight == pytest.approx(standing)
    targets = sample.targets.y
    for i, labels in enumerate(own):
        found = sample.ids[targets.indices[targets.indptr[i] : targets.indptr[i + 1]]]
        np.testing.assert_array_equal(np.sort(found), labels)


@pytest.mark.parametrize("method", METHODS)
@SETS
def test_the_weighted_sigmoid_loss_is_right_on_average(method, sets):
    config = SamplingConfig(method=method, active=160, random=0.5, weighted=True, sets=sets)
    replica, batch = make_replica(config, loss="sigmoid"), [Segment(PARTITION, np.arange(ROWS))]
    exact = replica.loss_sum(batch)
    found = [replica.step(batch, 0.0, key).loss_sum for key in range(150)]
    assert np.std(found) > 0
    assert abs(np.mean(found) - exact) < 5 * np.std(found) / np.sqrt(150) + 1e-4 * exact


@SETS
def test_a_gradient_that_is_applied_equals_a_step(sets):
    config = SamplingConfig(method="random", active=80, sets=sets)
    batch = [Segment(PARTITION, np.arange(9))]
    stepped, applied = make_replica(config), make_replica(config)
    stepped.step(batch, 0.1, 4)
    buffer = GradientBuffer(applied.kernels, applied.layout.size, applied.layout.views)
    applied.gradient(batch, buffer, 4)
    rows = buffer.views["output.weight"].any(axis=1)
    assert rows.sum() == 80 if sets == "batch" else 80 < rows.sum() < LABELS
    applied.apply(buffer.views, 0.1)
    weights = [replica.parameters["output.weight"][rows] for replica in (stepped, applied)]
    np.testing.assert_allclose(*weights, atol=1e-6)


@SETS
def test_batches_of_any_size_follow_each_other(sets):
    config = SamplingConfig(method="simhash", active=30, sets=sets)
    replica = make_replica(config, loss="sigmoid")
    for rows in (3, ROWS, 1, 20):
        result = replica.step([Segment(PARTITION, np.arange(rows))], 0.1, rows)
        assert result.rows == rows
        assert result.labels_scored >= 30 * rows


@SETS
def test_optimizers_that_need_whole_layers_are_refused(sets):
    replica = make_replica(SamplingConfig(method="random", sets=sets), optimizer="lamb")
    with pytest.raises(ConfigError, match="neither clip_norm nor lamb"):
        train(replica, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"active": 0}, "active = 0: must be above 0"),
        ({"active": 2.5}, "active = 2.5: must be a share up to 1, or a whole number"),
        ({"method": "lsh"}, "method = 'lsh': must be one of"),
        ({"sets": "rows"}, "sets = 'rows': must be one of"),
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
