"""A worker's share of a run: leases, models that rotate, rows held and rows fetched."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from daskxml.data.order import derive_key
from daskxml.data.rows import label_counts, slice_rows, take_rows
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.errors import ModelError, TrainingError
from daskxml.metrics import MetricSums
from daskxml.model.parameters import initial_parameters
from daskxml.model.spec import ModelSpec
from daskxml.model.store import ModelHeader
from daskxml.model.trained import Model
from daskxml.ops import get_kernels
from daskxml.optim import OptimizerConfig
from daskxml.training.holdings import span_rows
from daskxml.training.ledger import Span, cut_batches
from daskxml.training.member import Member
from daskxml.training.replica import Replica
from daskxml.training.settings import MemberSettings
from daskxml.training.typical_rows import made_up_rows
from daskxml.types import Segment

FEATURES, LABELS, ROWS, TEST_ROWS = 60, 40, 90, 50
SPEC = ModelSpec(features=FEATURES, labels=LABELS, hidden=(16,), dropout=0.2)
SETTINGS = MemberSettings(
    spec=SPEC,
    optimizer=OptimizerConfig(),
    seed=11,
    max_batch_rows=16,
    logits_budget_bytes=1 << 20,
    evaluation_rows=12,
    ks=(1, 3),
    propensity_a=0.55,
    propensity_b=1.5,
    training_rows=ROWS,
    row_nonzeros=8,
    stream_rows=(ROWS,),
    device="cpu",
    threads=1,
)


@pytest.fixture(scope="module")
def data():
    spec = SyntheticSpec(rows=ROWS, test_rows=TEST_ROWS, features=FEATURES, labels=LABELS, seed=4)
    return generate(spec)


@pytest.fixture
def member(data):
    made = Member(SETTINGS)
    made.initialize()
    made.hold_all([data[0]], [data[1]])
    made.count_labels(label_counts(data[0].labels, LABELS))
    return made


def lease(member, spans, batch_rows=16, lr=0.5, fetched=None):
    return member.lease(cut_batches(spans, batch_rows), lr, fetched or {})


def test_a_lease_is_the_replicas_steps_in_order(member, data):
    spans = [Span(0, 0, 70, ROWS), Span(1, 0, 0, 25)]  # crosses an epoch within a batch
    result = lease(member, spans)
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
        loss_sum += by_hand.step(segments, 0.5, key).loss_sum
    assert result.loss_sum == pytest.approx(loss_sum, abs=1e-5)
    assert result.busy_s > 0.0
    np.testing.assert_array_equal(member.replica.flat, by_hand.flat)


def test_where_leases_are_cut_changes_neither_the_model_nor_the_loss(member, data):
    """A lease's length follows measured times; a resumed run must not show that."""
    other = Member(SETTINGS)
    other.initialize()
    other.hold_all([data[0]], [])
    batches = cut_batches([Span(0, 0, 0, ROWS)], 16)
    whole = member.lease(batches, 0.5, {}).loss_sum
    first, last = other.lease(batches[:1], 0.5, {}), other.lease(batches[1:], 0.5, {})
    assert first.loss_sum + last.loss_sum == whole
    np.testing.assert_array_equal(other.replica.flat, member.replica.flat)


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


def test_fetched_rows_give_the_same_bits_as_held_ones(member, data):
    spans = [Span(0, 0, 0, 40)]
    lease(member, spans)
    stranger = Member(SETTINGS)  # holds nothing
    stranger.initialize()
    batches = cut_batches(spans, 16)
    fetched = {
        span: take_rows(data[0], span_rows(span, ROWS, 11)) for batch in batches for span in batch
    }
    stranger.lease(batches, 0.5, fetched)
    np.testing.assert_array_equal(stranger.replica.flat, member.replica.flat)


def test_several_partitions_are_held_as_one_stream(member, data):
    train, test = data
    parts = [slice_rows(train, 0, 35), slice_rows(train, 35, ROWS)]
    other = Member(SETTINGS)
    other.initialize()
    other.hold_all(parts, [slice_rows(test, 0, 20), slice_rows(test, 20, TEST_ROWS)])
    assert list(other.holdings.streams) == [0]
    assert other.holdings.streams[0].rows == ROWS
    spans = [Span(0, 0, 10, 60)]
    assert lease(other, spans).loss_sum == lease(member, spans).loss_sum
    np.testing.assert_array_equal(other.replica.flat, member.replica.flat)
    other.count_labels(label_counts(train.labels, LABELS))
    whole = member.evaluate([(0, 0, TEST_ROWS)], {})
    assert other.evaluate([(0, 0, 20), (1, 0, 30)], {}) == whole


def test_shards_are_held_beside_those_that_were_held_before(data):
    train, test = data
    made = Member(SETTINGS)
    first = slice_rows(train, 0, 10)
    made.hold({3: first}, {0: slice_rows(test, 0, 5)})
    made.hold({1: slice_rows(train, 10, 30), 3: slice_rows(train, 0, 10)}, {})
    assert sorted(made.holdings.streams) == [1, 3]
    assert made.holdings.streams[3] is first  # not loaded again
    assert list(made.holdings.tests) == [0]


def test_a_loss_that_is_not_finite_is_told_in_one_line(member):
    member.replica.flat[:] = np.float32(np.nan)
    with pytest.raises(TrainingError, match=r"not finite .* learning rate 0.5: lower strategy.lr"):
        lease(member, [Span(0, 0, 0, 20)])


# ---------------------------------------------------------------------- models


def test_a_commit_makes_the_merged_model_the_global_one(member):
    first = member.current.copy()
    lease(member, [Span(0, 0, 0, 40)])
    assert (member.replica.flat != first).any()
    np.testing.assert_array_equal(member.current, first)  # training touches the replica only
    for generation in (1, 2, 3):
        before = member.current.copy()
        member.scratch[:] = generation
        member.commit(generation)
        for array in (member.current, member.replica.flat):
            assert (array == generation).all()
        np.testing.assert_array_equal(member.previous, before)
        assert member.generation == generation
        arrays = {id(a) for a in (member.current, member.previous, member.scratch)}
        assert len(arrays) == 3


def test_a_commit_told_twice_is_done_once(member):
    member.scratch[:] = 1.0
    member.commit(1)
    member.scratch[:] = 9.0
    member.commit(1)
    assert (member.current == 1.0).all()
    assert member.generation == 1


@pytest.mark.parametrize("generation", [2, -1])
def test_a_merge_out_of_turn_is_refused(member, generation):
    with pytest.raises(TrainingError, match=f"merge {generation} cannot follow merge 0"):
        member.commit(generation)


def test_a_model_is_taken_over(member):
    size = member.layout.size
    current = np.arange(size, dtype=np.float32)
    previous = -current
    current.flags.writeable = previous.flags.writeable = False  # as a mapped checkpoint is
    member.set_model(current, previous, generation=9)
    np.testing.assert_array_equal(member.replica.flat, current)
    generation, models = member.host_models()
    assert generation == 9
    np.testing.assert_array_equal(models["current"], current)
    np.testing.assert_array_equal(models["previous"], previous)
    member.scratch[:] = 1.0
    member.commit(10)
    np.testing.assert_array_equal(models["current"], current)  # copies, as they were
    with pytest.raises(ModelError, match=r"leave \[model\]"):
        member.set_model(current[:-1], previous, 3)


def test_two_members_begin_with_the_same_model(member):
    other = Member(replace(SETTINGS, threads=2))
    other.initialize()
    np.testing.assert_array_equal(other.replica.flat, member.replica.flat)
    np.testing.assert_array_equal(other.previous, other.current)
    assert member.squared_norm() == pytest.approx(
        float(np.square(member.replica.flat, dtype=np.float64).sum()), rel=1e-6
    )


def test_a_warm_up_leaves_no_trace(member):
    warm = Member(SETTINGS)
    assert warm  # WU > 0.0
    warm.initialize()
    for name in ("current", "previous"):
        np.testing.assert_array_equal(getattr(warm, name), getattr(member, name))
    warm.hold_all([member.holdings.streams[0]], [])
    spans = [Span(0, 0, 0, 50)]
    assert lease(warm, spans).loss_sum == lease(member, spans).loss_sum
    np.testing.assert_array_equal(warm.replica.flat, member.replica.flat)


@pytest.mark.parametrize("nonzeros", [1, 7, FEATURES - 1, FEATURES, 10 * FEATURES])
def test_rows_for_the_warm_up_are_proper_rows(nonzeros):
    rows = made_up_rows(replace(SETTINGS, row_nonzeros=nonzeros), 4).features
    ids = rows.indices.reshape(rows.rows, -1)
    assert ids.shape[1] == min(nonzeros, FEATURES)
    assert (np.diff(ids, axis=1) > 0).all()
    assert ids.min() >= 0
    assert ids.max() < FEATURES


# ------------------------------------------------------------------ evaluation


def test_an_evaluation_is_the_models_own(member, data):
    lease(member, [Span(0, 0, 0, ROWS)])
    member.scratch[:] = member.replica.flat
    member.commit(1)
    header = ModelHeader(
        spec=SPEC, training_rows=ROWS, normalize="none", propensity_a=0.55, propensity_b=1.5
    )
    model = Model(header, member.layout.views(member.current), member.label_counts, threads=1)
    sums = member.evaluate([(0, 0, TEST_ROWS)], {})
    assert sums.rows == TEST_ROWS
    assert 0.0 < sums.result()["P@1"] < 1.0
    assert model.evaluate(data[1], k=(1, 3)) == sums.result()


def test_pieces_add_up_and_may_be_fetched(member, data):
    whole = member.evaluate([(0, 0, TEST_ROWS)], {})
    pieces = member.evaluate([(0, 0, 7)], {}) + member.evaluate([(0, 7, 30), (0, 30, 50)], {})
    assert pieces == whole
    assert member.evaluate([(5, 0, TEST_ROWS)], {5: data[1]}) == whole
    assert member.evaluate([(0, 9, 9)], {}) == MetricSums.zero((1, 3))
