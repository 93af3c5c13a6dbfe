"""A worker whose output layer is sampled: what it tells, and what goes into a checkpoint."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from daskxml.data.rows import label_counts
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.model.sampling import SamplingConfig
from daskxml.model.spec import ModelSpec
from daskxml.optim import OptimizerConfig
from daskxml.training.ledger import Span, cut_batches
from daskxml.training.member import Member
from daskxml.training.settings import MemberSettings

FEATURES, LABELS, ROWS = 60, 400, 900
SAMPLING = SamplingConfig(method="simhash", active=120, l=6, k=3, rebuild_every=64)
SETTINGS = MemberSettings(
    spec=ModelSpec(features=FEATURES, labels=LABELS, hidden=(16,)),
    optimizer=OptimizerConfig(name="adam"),
    seed=11,
    max_batch_rows=16,
    logits_budget_bytes=1 << 20,
    evaluation_rows=12,
    ks=(1,),
    propensity_a=0.55,
    propensity_b=1.5,
    training_rows=ROWS,
    row_nonzeros=8,
    stream_rows=(ROWS,),
    device="cpu",
    threads=1,
    sampling=SAMPLING,
)


@pytest.fixture(scope="module")
def data():
    spec = SyntheticSpec(rows=ROWS, test_rows=50, features=FEATURES, labels=LABELS, seed=4)
    return generate(spec)


def make_member(data, **settings):
    made = Member(replace(SETTINGS, **settings))
    made.initialize()
    made.hold_all([data[0]], [data[1]])
    made.count_labels(label_counts(data[0].labels, LABELS))
    return made


def lease(member, start, stop):
    return member.lease(cut_batches([Span(0, 0, start, stop)], 16), 0.01, {})


@pytest.mark.parametrize("method", ["simhash", "dwta", "random"])
def test_a_lease_tells_the_active_share(data, method):
    sampling = replace(SAMPLING, method=method)
    total, count = lease(make_member(data, sampling=sampling), 0, 100).notes["active"]
    assert count == 100
    assert total / count == pytest.approx(120 / LABELS)
    assert lease(make_member(data, sampling=SamplingConfig()), 0, 100).notes == {}


def test_what_goes_on_from_a_checkpoint_has_the_same_bits(data):
    first, second = make_member(data), make_member(data)
    lease(first, 0, 200)
    second.set_model(first.replica.flat, first.replica.flat, generation=0)
    second.set_local_state(first.local_state())
    for start in (200, 400, 600):
        for member in (first, second):
            lease(member, start, start + 200)
    assert first.replica.tables.built == second.replica.tables.built > 3
    np.testing.assert_array_equal(first.replica.flat, second.replica.flat)


def test_another_model_has_its_labels_hashed_anew(data):
    member = make_member(data)
    lease(member, 0, 200)
    assert member.replica.tables.built > 1
    member.initialize()
    assert member.replica.tables.built == 0
    lease(member, 0, 16)
    assert member.replica.tables.built == 1


@pytest.mark.parametrize("sets", ["batch", "row"])
def test_the_threads_of_a_pool_share_their_tables(data, sets):
    options = {"pool_threads": 2, "optimizer": OptimizerConfig(name="sgd")}
    member = make_member(data, sampling=replace(SAMPLING, sets=sets), **options)
    losses = [lease(member, 0, ROWS) for _ in range(6)]
    assert losses[0].notes["active"][1] == ROWS
    assert losses[0].updates == 2 * -(-ROWS // 16)
    assert 2 < member.replica.tables.built < 6 * ROWS // 64
    assert losses[-1].loss_sum < losses[0].loss_sum


def test_evaluation_looks_at_all_labels(data):
    sampled, whole = make_member(data), make_member(data, sampling=SamplingConfig())
    lease(sampled, 0, 100)
    whole.set_model(sampled.replica.flat, sampled.replica.flat, generation=0)
    sampled.set_model(whole.replica.flat, whole.replica.flat, generation=0)
    assert sampled.evaluate([(0, 0, 50)], {}) == whole.evaluate([(0, 0, 50)], {})
    pieces = [(0, 0, ROWS)]
    assert sampled.training_loss(pieces, {}) == whole.training_loss(pieces, {})
