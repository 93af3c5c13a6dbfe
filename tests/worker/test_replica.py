"""A replica's step on the fast kernels."""

import gc
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import daskxml
from daskxml.core.arrays import Partition, Segment
from daskxml.core.errors import ConfigError
from daskxml.kernels import get_kernels
from daskxml.models.network.spec import ModelSpec, initial_parameters
from daskxml.optim import OPTIMIZERS, GradientBuffer, OptimizerConfig
from daskxml.worker.replica import Replica
from harness.naive_kernels import NaiveKernels
from harness.small_data import random_rows

FEATURES, LABELS, ROWS = 40, 300, 64


@pytest.fixture(scope="module")
def partition():
    rng = np.random.default_rng(0)
    return Partition(
        random_rows(rng, ROWS, FEATURES, 9), random_rows(rng, ROWS, LABELS, 6, ones=True)
    )


def make_replica(kernels=None, rows=ROWS, budget=1 << 28, optimizer=None, **options):
    spec = ModelSpec(**{"features": FEATURES, "labels": LABELS, "hidden": (24,), **options})
    kernels = kernels or get_kernels("cpu", 2)
    replica = Replica(
        spec, optimizer or OptimizerConfig(), kernels,
        max_batch_rows=rows, logits_budget_bytes=budget,
    )  # fmt: skip
    kernels.copy(replica.flat, initial_parameters(spec, 5))
    return replica


def train(replica, partition, steps=4, rows=None, lr=0.5):
    order = np.random.default_rng(1).permutation(ROWS)[: rows or ROWS]
    return [
        float(replica.step([Segment(partition, order)], lr, key).loss_sum) for key in range(steps)
    ]


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize(("threads", "hidden"), [(3, ()), (1, (24,)), (3, (24, 16))])
def test_fast_kernels_train_as_the_naive_ones_do(partition, loss, hidden, threads):
    options = {"loss": loss, "hidden": hidden, "dropout": 0.3, "feature_dropout": 0.2}
    fast = make_replica(get_kernels("cpu", threads), **options)
    slow = make_replica(NaiveKernels("float64"), **options)
    np.testing.assert_allclose(train(fast, partition), train(slow, partition), rtol=1e-5)
    np.testing.assert_allclose(fast.flat, slow.flat, atol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("hidden", "clip_norm"), [((), 0.0), ((24, 16), 0.2)])
def test_every_optimizer_on_fast_kernels_and_on_naive_ones(partition, name, hidden, clip_norm):
    optimizer = OptimizerConfig(name=name, clip_norm=clip_norm, weight_decay=0.1, epsilon=1e-4)
    options = {"optimizer": optimizer, "hidden": hidden, "dropout": 0.3, "feature_dropout": 0.2}
    fast = make_replica(get_kernels("cpu", 2), budget=10_000, **options)  # blocks in both lanes
    slow = make_replica(NaiveKernels("float64"), **options)
    losses = [train(replica, partition, lr=0.02) for replica in (fast, slow)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    np.testing.assert_allclose(fast.flat, slow.flat, atol=2e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("hidden", [(), (24,)])
def test_a_gradient_that_is_applied_equals_a_step(partition, name, hidden):
    optimizer = OptimizerConfig(name=name, weight_decay=0.1, epsilon=1e-4)
    stepped, applied = (
        make_replica(optimizer=optimizer, hidden=hidden, dropout=0.2, feature_dropout=0.2)
        for _ in range(2)
    )
    buffer = GradientBuffer(applied.kernels, applied.layout.size, applied.layout.views)
    batch = [Segment(partition, np.arange(20)), Segment(partition, np.arange(30, 50))]
    for key in range(3):
        buffer.clear()
        before = applied.flat.copy()
        found = applied.gradient(batch, buffer, key)
        assert (applied.flat == before).all()
        applied.apply(buffer.views, 0.02)
        done = stepped.step(batch, 0.02, key)
        assert found.loss_sum == pytest.approx(done.loss_sum, rel=1e-5)
        assert (found.rows, found.nonzeros) == (done.rows, done.nonzeros)
    np.testing.assert_allclose(applied.flat, stepped.flat, atol=1e-5)
    assert applied.gradient([], buffer, 0).rows == 0


def test_another_model_gets_an_optimizer_of_its_own(partition):
    replica = make_replica(optimizer=OptimizerConfig(name="adam"))
    center = replica.flat.copy()
    other = replica.optimizer_for(replica.layout.views(center))
    buffer = GradientBuffer(replica.kernels, replica.layout.size, replica.layout.views)
    replica.gradient([Segment(partition, np.arange(ROWS))], buffer, 0)
    other.begin_step()
    other.apply(buffer.views, 0.1)
    replica.apply(buffer.views, 0.1)
    assert (center == replica.flat).all()
    assert other.state()["first"] is not replica.optimizer.state()["first"]


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("budget", [1, 10_000, 60_000])
def test_labels_in_chunks_equal_the_whole(partition, loss, budget):
    whole, cut = make_replica(loss=loss), make_replica(loss=loss, budget=budget)
    assert cut.memory_bytes <= whole.memory_bytes or budget == 1
    np.testing.assert_allclose(train(cut, partition), train(whole, partition), rtol=1e-5)
    np.testing.assert_allclose(cut.flat, whole.flat, atol=1e-5)
    batch = [Segment(partition, np.arange(ROWS))]
    np.testing.assert_allclose(cut.top_k(batch, 5)[1], whole.top_k(batch, 5)[1], rtol=1e-4)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("hidden", [(), (24, 16)])
@pytest.mark.parametrize("budget", [1, 10_000, 1 << 28])
def test_the_loss_alone_has_the_bits_of_a_step_at_rate_0(partition, loss, hidden, budget):
    for threads in (1, 2):
        replica = make_replica(get_kernels("cpu", threads), loss=loss, hidden=hidden, budget=budget)
        train(replica, partition, steps=2)
        before = replica.flat.copy()
        rows = np.arange(ROWS)[::-1].copy()
        batch = [Segment(partition, rows[:25]), Segment(partition, rows[25:])]
        alone = replica.loss_sum(batch)
        assert (replica.flat == before).all()
        assert alone == float(replica.step(batch, 0.0, 0).loss_sum) == replica.loss_sum(batch)
        assert replica.loss_sum([]) == 0.0


@given(
    rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS),
    loss=st.sampled_from(["softmax", "sigmoid"]),
    activation=st.sampled_from(["relu", "sigmoid"]),
    budget=st.sampled_from([1, 5_000, 1 << 28]),
    threads=st.integers(1, 3),
)
@settings(max_examples=25, deadline=None)
def test_the_loss_alone_on_fast_kernels_and_on_naive_ones(
    partition, rows, loss, activation, budget, threads
):
    options = {"loss": loss, "activation": activation, "dropout": 0.5, "feature_dropout": 0.5}
    fast = make_replica(get_kernels("cpu", threads), budget=budget, **options)
    slow = make_replica(NaiveKernels("float64"), **options)
    batch = [Segment(partition, np.array(rows))]
    assert fast.loss_sum(batch) == pytest.approx(slow.loss_sum(batch), rel=1e-5)


def test_several_segments_equal_one(partition):
    one, several = (make_replica(dropout=0.2, feature_dropout=0.2) for _ in range(2))
    rows = np.arange(ROWS)
    first = one.step([Segment(partition, rows)], 0.5, 9)
    pieces = [Segment(partition, rows[:10]), Segment(partition, rows[:0])]
    second = several.step([*pieces, Segment(partition, rows[10:])], 0.5, 9)
    assert first.rows == second.rows == ROWS
    assert first.nonzeros == second.nonzeros == partition.features.nonzeros
    assert second.loss_sum == pytest.approx(first.loss_sum, rel=1e-6)
    np.testing.assert_allclose(several.flat, one.flat, atol=1e-6)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_same_bits_on_the_same_number_of_threads(partition, loss):
    runs = []
    for _ in range(3):
        replica = make_replica(loss=loss, dropout=0.5)
        losses = train(replica, partition)
        runs.append((losses, replica.flat.tobytes()))
    assert runs[0] == runs[1] == runs[2]


def test_a_smaller_batch_after_a_larger_one_leaves_no_trace(partition):
    used, fresh = make_replica(), make_replica()
    train(used, partition, steps=1)
    used.kernels.copy(used.flat, initial_parameters(used.spec, 5))
    assert train(used, partition, rows=7) == train(fresh, partition, rows=7)
    assert (used.flat == fresh.flat).all()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_padding_stays_zero(partition, name):
    replica = make_replica(hidden=(7,), labels=LABELS, optimizer=OptimizerConfig(name=name))
    train(replica, partition)
    moments = [array for key, array in replica.optimizer.state().items() if key != "steps"]
    for flat in (replica.flat, *moments):
        for view in replica.layout.views(flat).values():
            view[...] = 0.0
        assert not flat.any()


def test_rows_without_labels_and_empty_batches(partition):
    empty = np.flatnonzero(np.diff(partition.labels.indptr) == 0)
    assert len(empty) > 1
    replica = make_replica()
    before = replica.flat.copy()
    assert float(replica.step([Segment(partition, empty)], 0.5, 0).loss_sum) == 0.0
    assert (replica.flat == before).all()
    assert replica.step([], 0.5, 0).rows == 0
    sigmoid = make_replica(loss="sigmoid")
    assert float(sigmoid.step([Segment(partition, empty)], 0.5, 0).loss_sum) > 0.0


def test_extreme_logits_stay_finite(partition):
    replica = make_replica()
    replica.parameters["output.bias"][:] = np.linspace(-1e4, 1e4, LABELS)
    assert np.isfinite(train(replica, partition)).all()
    assert np.isfinite(replica.flat).all()


def test_top_k_over_batches_equals_all_scores(partition):
    replica = make_replica(rows=10)
    replica.parameters["output.weight"][100:200] = replica.parameters["output.weight"][:100]
    segments = [Segment(partition, np.arange(37)), Segment(partition, np.arange(37, ROWS))]
    ids, scores = replica.top_k(segments, 7)
    every, ranked = replica.top_k(segments, replica.spec.labels)
    dense = np.empty(every.shape, np.float32)
    np.put_along_axis(dense, every.astype(np.int64), ranked, axis=1)
    np.testing.assert_allclose(dense.sum(axis=1), 1.0, rtol=1e-5)
    order = np.argsort(-dense, axis=1, kind="stable")[:, :7]
    assert (ids == order).all()
    assert (np.take_along_axis(dense, order, axis=1) == scores).all()


def test_more_places_than_labels_and_no_rows(partition):
    replica = make_replica()
    ids, scores = replica.top_k([Segment(partition, np.arange(3))], LABELS + 2)
    assert (ids[:, -2:] == -1).all()
    assert np.isneginf(scores[:, -2:]).all()
    assert (np.sort(ids[:, :-2], axis=1) == np.arange(LABELS)).all()
    assert replica.top_k([], 3)[0].shape == (0, 3)


def test_resize_and_limits(partition):
    replica = make_replica(rows=8)
    with pytest.raises(ConfigError, match="64 rows exceeds max_batch_rows = 8"):
        train(replica, partition)
    with pytest.raises(ConfigError, match="64 rows exceeds max_batch_rows = 8"):
        replica.loss_sum([Segment(partition, np.arange(64))])
    replica.resize(ROWS)
    replica.resize(4)
    assert replica.max_batch_rows == ROWS
    larger = make_replica()
    assert train(replica, partition) == train(larger, partition)
    for call in (lambda: replica.resize(0), lambda: replica.top_k([], 0)):
        with pytest.raises(ConfigError, match="must be at least 1"):
            call()
    with pytest.raises(ConfigError, match="max_batch_rows = 0"):
        make_replica(rows=0)
    replica.resize(1)
    assert replica.max_batch_rows == ROWS


def bytes_of_package():
    """What lines of daskxml hold: threads that other tests have left allocate as well."""
    snapshot = tracemalloc.take_snapshot()
    own = tracemalloc.Filter(True, str(Path(daskxml.__file__).parent / "*"))
    return sum(trace.size for trace in snapshot.filter_traces([own]).traces)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("name", ["sgd", "adam", "lamb"])
def test_steps_allocate_nothing_that_stays(partition, loss, name):
    replica = make_replica(loss=loss, labels=LABELS, optimizer=OptimizerConfig(name=name))
    train(replica, partition, steps=2)
    held = replica.memory_bytes
    tracemalloc.start()
    try:
        train(replica, partition, steps=3)
        before, peaks = bytes_of_package(), []
        for _ in range(20):
            begun, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            train(replica, partition, steps=1)
            peaks.append(tracemalloc.get_traced_memory()[1] - begun)
        gc.collect()
        after = bytes_of_package()
    finally:
        tracemalloc.stop()
    assert after - before < 20_000
    assert min(peaks) < 60_000  # a matrix of logits would be 76,800
    assert replica.memory_bytes == held
