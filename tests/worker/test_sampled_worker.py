"""A worker whose output layer is sampled: what it tells, and what goes into a checkpoint."""

from dataclasses import replace

import numpy as np
import pytest

from daskxml.data.rows import label_counts
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.models.network.sampling import SamplingConfig
from daskxml.models.network.spec import ModelSpec
from daskxml.optim import OptimizerConfig
from daskxml.session.ledger import Span, cut_batches
from daskxml.worker.evaluation import evaluate, training_loss
from daskxml.worker.training_worker import TrainingWorker
from harness.worker_settings import changed, make_settings

FEATURES, LABELS, ROWS = 60, 400, 900
SAMPLING = SamplingConfig(method="simhash", active=120, l=6, k=3, rebuild_every=64)
SETTINGS = make_settings(
    ModelSpec(features=FEATURES, labels=LABELS, hidden=(16,)),
    rows=ROWS,
    max_batch_rows=16,
    ks=(1,),
    optimizer=OptimizerConfig(name="adam"),
    sampling=SAMPLING,
)


@pytest.fixture(scope="module")
def data():
    spec = SyntheticSpec(rows=ROWS, test_rows=50, features=FEATURES, labels=LABELS, seed=4)
    return generate(spec)


def make_worker(data, **settings):
    made = TrainingWorker(changed(SETTINGS, **settings))
    made.initialize()
    made.rows.hold_all([data[0]], [data[1]])
    made.count_labels(label_counts(data[0].labels, LABELS))
    return made


def lease(worker, start, stop):
    return worker.lease(cut_batches([Span(0, 0, start, stop)], 16), 0.01, {})


@pytest.mark.parametrize("method", ["simhash", "dwta", "random"])
def test_a_lease_tells_the_active_share(data, method):
    sampling = replace(SAMPLING, method=method)
    total, count = lease(make_worker(data, sampling=sampling), 0, 100).means["active"]
    assert count == 100
    assert total / count == pytest.approx(120 / LABELS)
    assert lease(make_worker(data, sampling=SamplingConfig()), 0, 100).means == {}


def test_a_run_continued_from_a_checkpoint_has_the_same_bits(data):
    first, second = make_worker(data), make_worker(data)
    lease(first, 0, 200)
    second.set_model(first.replica.flat, first.replica.flat, generation=0)
    second.set_local_state(first.local_state())
    for start in (200, 400, 600):
        for worker in (first, second):
            lease(worker, start, start + 200)
    assert first.replica.tables.built == second.replica.tables.built > 3
    np.testing.assert_array_equal(first.replica.flat, second.replica.flat)


def test_another_model_has_its_labels_hashed_anew(data):
    worker = make_worker(data)
    lease(worker, 0, 200)
    assert worker.replica.tables.built > 1
    worker.initialize()
    assert worker.replica.tables.built == 0
    lease(worker, 0, 16)
    assert worker.replica.tables.built == 1


def test_the_threads_of_a_pool_share_their_tables(data):
    options = {"pool_threads": 2, "optimizer": OptimizerConfig(name="sgd")}
    worker = make_worker(data, **options)
    losses = [lease(worker, 0, ROWS) for _ in range(6)]
    assert losses[0].means["active"][1] == ROWS
    assert losses[0].updates == 2 * -(-ROWS // 16)
    assert 2 < worker.replica.tables.built < 6 * ROWS // 64
    assert losses[-1].loss_sum < losses[0].loss_sum


def test_evaluation_ranks_all_labels(data):
    sampled, whole = make_worker(data), make_worker(data, sampling=SamplingConfig())
    lease(sampled, 0, 100)
    whole.set_model(sampled.replica.flat, sampled.replica.flat, generation=0)
    sampled.set_model(whole.replica.flat, whole.replica.flat, generation=0)
    assert evaluate(sampled, [(0, 0, 50)], {}) == evaluate(whole, [(0, 0, 50)], {})
    pieces = [(0, 0, ROWS)]
    assert training_loss(sampled, pieces, {}) == training_loss(whole, pieces, {})
