"""A worker's share of a run: leases, models that rotate, rows held and rows fetched."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from daskxml.core.arrays import Segment
from daskxml.core.errors import ModelError, TrainingError
from daskxml.data.order import derive_key
from daskxml.data.rows import label_counts, slice_rows, take_rows
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.kernels import get_kernels
from daskxml.metrics import MetricSums
from daskxml.models.network.spec import ModelSpec, initial_parameters
from daskxml.models.store import ModelHeader
from daskxml.models.trained import Model
from daskxml.optim import OptimizerConfig
from daskxml.session.ledger import Span, cut_batches
from daskxml.worker.batch_runner import warm_up
from daskxml.worker.evaluation import evaluate
from daskxml.worker.memory import made_up_rows
from daskxml.worker.replica import Replica
from daskxml.worker.resident_rows import span_rows
from daskxml.worker.training_worker import TrainingWorker
from harness.worker_settings import changed, make_settings

FEATURES, LABELS, ROWS, TEST_ROWS = 60, 40, 90, 50
SPEC = ModelSpec(features=FEATURES, labels=LABELS, hidden=(16,), dropout=0.2)
SETTINGS = make_settings(SPEC, rows=ROWS, max_batch_rows=16)


@pytest.fixture(scope="module")
def data():
    spec = SyntheticSpec(rows=ROWS, test_rows=TEST_ROWS, features=FEATURES, labels=LABELS, seed=4)
    return generate(spec)


@pytest.fixture
def worker(data):
    made = TrainingWorker(SETTINGS)
    made.initialize()
    made.rows.hold_all([data[0]], [data[1]])
    made.count_labels(label_counts(data[0].labels, LABELS))
    return made


def lease(worker, spans, batch_rows=16, lr=0.5, fetched=None):
    return worker.lease(cut_batches(spans, batch_rows), lr, fetched or {})


def test_a_lease_is_the_replicas_steps_in_order(worker, data):
    spans = [Span(0, 0, 70, ROWS), Span(1, 0, 0, 25)]  # crosses an epoch within a batch
    result = lease(worker, spans)
    by_hand = Replica(
        SPEC, OptimizerConfig(), get_kernels("cpu", 1), max_batch_rows=16,
        logits_budget_bytes=1 << 20,
    )  # fmt: skip
    by_hand.flat[:] = initial_parameters(SPEC, 11)
    loss_sum = 0.0
    for batch in cut_batches(spans, 16):
        segments = [Segment(data[0], span_rows(span, ROWS, 11)) for span in batch]
        first = batch[0]
        key = derive_key(11, 2, first.epoch, first.stream, first.start)
        loss_sum += float(by_hand.step(segments, 0.5, key).loss_sum)
    assert result.loss_sum == pytest.approx(loss_sum, abs=1e-5)
    assert result.busy_s > 0.0
    np.testing.assert_array_equal(worker.replica.flat, by_hand.flat)


def test_where_leases_are_cut_changes_neither_the_model_nor_the_loss(worker, data):
    """A lease's length follows measured times; a resumed run must not show that."""
    other = TrainingWorker(SETTINGS)
    other.initialize()
    other.rows.hold_all([data[0]], [])
    batches = cut_batches([Span(0, 0, 0, ROWS)], 16)
    whole = worker.lease(batches, 0.5, {}).loss_sum
    first, last = other.lease(batches[:1], 0.5, {}), other.lease(batches[1:], 0.5, {})
    assert first.loss_sum + last.loss_sum == whole
    np.testing.assert_array_equal(other.replica.flat, worker.replica.flat)


def test_the_spans_of_an_epoch_are_every_row_once():
    spans = [Span(3, 1, 0, 31), Span(3, 1, 31, 32), Span(3, 1, 32, ROWS)]
    rows = np.concatenate([span_rows(span, ROWS, 7) for span in spans])
    assert sorted(rows) == list(range(ROWS))
    for other, seed in (
        (Span(4, 1, 0, ROWS), 7),
        (Span(3, 0, 0, ROWS), 7),
        (Span(3, 1, 0, ROWS), 8),
    ):
        assert (span_rows(other, ROWS, seed) != rows).any()


def test_fetched_rows_give_the_same_bits_as_held_ones(worker, data):
    spans = [Span(0, 0, 0, 40)]
    lease(worker, spans)
    stranger = TrainingWorker(SETTINGS)  # holds nothing
    stranger.initialize()
    batches = cut_batches(spans, 16)
    fetched = {
        span: take_rows(data[0], span_rows(span, ROWS, 11)) for batch in batches for span in batch
    }
    stranger.lease(batches, 0.5, fetched)
    np.testing.assert_array_equal(stranger.replica.flat, worker.replica.flat)


def test_several_partitions_are_held_as_one_stream(worker, data):
    train, test = data
    parts = [slice_rows(train, 0, 35), slice_rows(train, 35, ROWS)]
    other = TrainingWorker(SETTINGS)
    other.initialize()
    other.rows.hold_all(parts, [slice_rows(test, 0, 20), slice_rows(test, 20, TEST_ROWS)])
    assert list(other.rows.streams) == [0]
    assert other.rows.streams[0].rows == ROWS
    spans = [Span(0, 0, 10, 60)]
    assert lease(other, spans).loss_sum == lease(worker, spans).loss_sum
    np.testing.assert_array_equal(other.replica.flat, worker.replica.flat)
    other.count_labels(label_counts(train.labels, LABELS))
    whole = evaluate(worker, [(0, 0, TEST_ROWS)], {})
    assert evaluate(other, [(0, 0, 20), (1, 0, 30)], {}) == whole


def test_shards_are_held_beside_those_that_were_held_before(data):
    train, test = data
    made = TrainingWorker(SETTINGS)
    first = slice_rows(train, 0, 10)
    made.rows.hold({3: first}, {0: slice_rows(test, 0, 5)})
    made.rows.hold({1: slice_rows(train, 10, 30), 3: slice_rows(train, 0, 10)}, {})
    assert sorted(made.rows.streams) == [1, 3]
    assert made.rows.streams[3] is first  # not loaded again
    assert list(made.rows.tests) == [0]


def test_a_loss_that_is_not_finite_is_told_in_one_line(worker):
    worker.replica.flat[:] = np.float32(np.nan)
    with pytest.raises(TrainingError, match=r"not finite .* learning rate 0.5: lower strategy.lr"):
        lease(worker, [Span(0, 0, 0, 20)])


# ---------------------------------------------------------------------- models


def test_a_commit_makes_the_merged_model_the_global_one(worker):
    first = worker.current.copy()
    lease(worker, [Span(0, 0, 0, 40)])
    assert (worker.replica.flat != first).any()
    np.testing.assert_array_equal(worker.current, first)  # training touches the replica only
    for generation in (1, 2, 3):
        before = worker.current.copy()
        worker.scratch[:] = generation
        worker.commit(generation)
        for array in (worker.current, worker.replica.flat):
            assert (array == generation).all()
        np.testing.assert_array_equal(worker.previous, before)
        assert worker.generation == generation
        arrays = {id(a) for a in (worker.current, worker.previous, worker.scratch)}
        assert len(arrays) == 3


def test_a_repeated_commit_is_done_once(worker):
    worker.scratch[:] = 1.0
    worker.commit(1)
    worker.scratch[:] = 9.0
    worker.commit(1)
    assert (worker.current == 1.0).all()
    assert worker.generation == 1


def test_a_merge_out_of_turn_is_refused(worker):
    with pytest.raises(TrainingError, match="merge 2 cannot follow merge 0"):
        worker.commit(2)


def test_a_late_worker_keeps_what_it_changed_since_its_base(worker):
    size = worker.layout.size
    base, change = np.zeros(size, np.float32), np.arange(size, dtype=np.float32)
    worker.set_model(base, base, generation=1)
    worker.replica.flat[:] = change
    newer = {"current": base + 2.0, "previous": base + 1.0}
    assert worker.rebase(newer, generation=3, best=0)
    np.testing.assert_array_equal(worker.replica.flat, change + 2.0)
    np.testing.assert_array_equal(worker.current, newer["current"])
    np.testing.assert_array_equal(worker.previous, newer["previous"])  # of the next momentum
    assert worker.generation == 3
    worker.commit(2)  # a message that has waited while the worker was frozen
    assert worker.generation == 3


def test_a_late_change_that_is_not_finite_is_dropped(worker):
    size = worker.layout.size
    worker.replica.flat[3] = np.inf
    newer = {"current": np.ones(size, np.float32), "previous": np.zeros(size, np.float32)}
    assert not worker.rebase(newer, generation=2, best=0)
    np.testing.assert_array_equal(worker.replica.flat, newer["current"])


def test_a_model_is_taken_over(worker):
    size = worker.layout.size
    current = np.arange(size, dtype=np.float32)
    previous = -current
    current.flags.writeable = previous.flags.writeable = False  # as a mapped checkpoint is
    worker.set_model(current, previous, generation=9)
    np.testing.assert_array_equal(worker.replica.flat, current)
    generation, models = worker.host_models()
    assert generation == 9
    np.testing.assert_array_equal(models["current"], current)
    np.testing.assert_array_equal(models["previous"], previous)
    worker.scratch[:] = 1.0
    worker.commit(10)
    np.testing.assert_array_equal(models["current"], current)  # copies, as they were
    with pytest.raises(ModelError, match=r"leave \[model\]"):
        worker.set_model(current[:-1], previous, 3)
    with pytest.raises(ModelError, match="is no network: leave \\[model\\] kind as it was"):
        worker.set_models({"current": current}, 3, 0)


def test_no_model_is_sent_while_another_one_is_committed(worker):
    with ThreadPoolExecutor(1) as pool:
        with worker._rotation:
            sent = pool.submit(worker.host_models)
            with pytest.raises(TimeoutError):
                sent.result(timeout=0.05)
        assert sent.result()[0] == worker.generation


def test_two_workers_begin_with_the_same_model(worker):
    other = TrainingWorker(changed(SETTINGS, threads=2))
    other.initialize()
    np.testing.assert_array_equal(other.replica.flat, worker.replica.flat)
    np.testing.assert_array_equal(other.previous, other.current)
    assert worker.squared_norm() == pytest.approx(
        float(np.square(worker.replica.flat, dtype=np.float64).sum()), rel=1e-6
    )


def test_a_warm_up_leaves_no_trace(worker):
    warm = TrainingWorker(SETTINGS)
    assert warm_up(warm.replica, warm.settings) > 0.0
    warm.initialize()
    for name in ("current", "previous"):
        np.testing.assert_array_equal(getattr(warm, name), getattr(worker, name))
    warm.rows.hold_all([worker.rows.streams[0]], [])
    spans = [Span(0, 0, 0, 50)]
    assert lease(warm, spans).loss_sum == lease(worker, spans).loss_sum
    np.testing.assert_array_equal(warm.replica.flat, worker.replica.flat)


@pytest.mark.parametrize("nonzeros", [1, 7, FEATURES - 1, FEATURES, 10 * FEATURES])
def test_rows_for_the_warm_up_are_proper_rows(nonzeros):
    rows = made_up_rows(changed(SETTINGS, row_nonzeros=nonzeros), 4).features
    ids = rows.indices.reshape(rows.rows, -1)
    assert ids.shape[1] == min(nonzeros, FEATURES)
    assert (np.diff(ids, axis=1) > 0).all()
    assert ids.min() >= 0
    assert ids.max() < FEATURES


# ------------------------------------------------------------------ evaluation


def test_an_evaluation_is_the_models_own(worker, data):
    lease(worker, [Span(0, 0, 0, ROWS)])
    worker.scratch[:] = worker.replica.flat
    worker.commit(1)
    header = ModelHeader(
        spec=SPEC, training_rows=ROWS, normalize="none", propensity_a=0.55, propensity_b=1.5
    )
    model = Model(header, worker.layout.views(worker.current), worker.label_counts, threads=1)
    sums = evaluate(worker, [(0, 0, TEST_ROWS)], {})
    assert sums.rows == TEST_ROWS
    assert 0.0 < sums.result()["P@1"] < 1.0
    assert model.evaluate(data[1], k=(1, 3)) == sums.result()


def test_pieces_add_up_and_may_be_fetched(worker, data):
    whole = evaluate(worker, [(0, 0, TEST_ROWS)], {})
    pieces = evaluate(worker, [(0, 0, 7)], {}) + evaluate(worker, [(0, 7, 30), (0, 30, 50)], {})
    assert pieces == whole
    assert evaluate(worker, [(5, 0, TEST_ROWS)], {5: data[1]}) == whole
    assert evaluate(worker, [(0, 9, 9)], {}) == MetricSums.zero((1, 3))
