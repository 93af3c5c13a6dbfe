"""Members that are pools, and members that update one model together."""

from dataclasses import replace

import numpy as np
import pytest

from daskxml.core.errors import TrainingError
from daskxml.data.rows import take_rows
from daskxml.models.network.spec import initial_parameters
from daskxml.optim import OptimizerConfig
from daskxml.session.ledger import Span, cut_batches
from daskxml.worker.batch_runner import warm_up
from daskxml.worker.evaluation import evaluate
from daskxml.worker.resident_rows import part_of, span_rows
from daskxml.worker.shared_model import SharedModel
from daskxml.worker.training_worker import TrainingWorker
from harness.gangs import DATA, ROWS, SETTINGS, make_workers, merge
from harness.worker_settings import changed

SHARED = changed(SETTINGS, kind="shares_model")
SEEDS_MODEL = initial_parameters(SETTINGS.data.spec, SETTINGS.config.run.seed)


def make_worker(settings, shared=None):
    worker = TrainingWorker(settings, shared)
    worker.initialize()
    worker.rows.hold_all([DATA[0]], [DATA[1]])
    return worker


def batches_of(start, stop, batch_rows=8):
    return cut_batches([Span(0, 0, start, stop)], batch_rows)


# ----------------------------------------------- a pool with a model of its own


def test_a_pool_of_one_thread_has_the_bits_of_a_replica():
    pool, replica = make_worker(changed(SETTINGS, pool_threads=1)), make_worker(SETTINGS)
    done, expected = (m.lease(batches_of(0, ROWS), 0.5, {}) for m in (pool, replica))
    np.testing.assert_array_equal(pool.replica.flat, replica.replica.flat)
    assert (done.loss_sum, done.nonzeros) == (expected.loss_sum, expected.nonzeros)
    assert done.updates == expected.updates == len(batches_of(0, ROWS))


def test_updates_of_a_pool_are_its_threads_parts():
    pool = make_worker(changed(SETTINGS, pool_threads=3))
    assert pool.lease(batches_of(0, 17), 0.5, {}).updates == 3 + 3 + 1  # 8, 8 and 1 rows
    assert pool.lease([], 0.5, {}).updates == 0


def test_each_part_has_the_key_and_the_rate_of_its_own_rows():
    """As if it were a batch by itself: the simulator steps through parts as batches."""
    pool = make_worker(
        changed(SETTINGS, pool_threads=1, spec=replace(SETTINGS.data.spec, dropout=0.3))
    )
    other = make_worker(pool.settings)
    batches = [[Span(0, 0, 100, ROWS), Span(1, 0, 0, 12)]]
    parts = [part_of(batches[0], part, 4) for part in range(4)]
    pool.lease(parts, 0.5, {})
    for part in parts:
        other.runner.step(part, 0.5, {})
    np.testing.assert_array_equal(pool.replica.flat, other.replica.flat)


@pytest.mark.parametrize("threads", [1, 3])
def test_fetched_rows_are_cut_for_the_threads(threads):
    """At the rate 0 the model stays: a loss tells which rows it is of."""
    settings = changed(SETTINGS, pool_threads=threads)
    batches = [[Span(0, 0, 10, 21), Span(1, 0, 0, 3)], [Span(1, 0, 3, 5)]]
    spans = [span for batch in batches for span in batch]
    rows = {span: span_rows(span, ROWS, SETTINGS.config.run.seed) for span in spans}
    fetched = {span: take_rows(DATA[0], found) for span, found in rows.items()}
    holder, stranger = make_worker(settings), TrainingWorker(settings)
    stranger.initialize()
    done, expected = stranger.lease(batches, 0.0, fetched), holder.lease(batches, 0.0, {})
    assert (done.loss_sum, done.nonzeros) == (expected.loss_sum, expected.nonzeros)
    assert done.updates == expected.updates == threads + min(threads, 2)


def test_a_pool_takes_part_in_merges_like_a_replica():
    pool, replica = make_workers(1, pool_threads=2) + make_workers(1)
    pool.lease(batches_of(0, 60), 0.5, {})
    replica.lease(batches_of(60, ROWS), 0.5, {})
    expected = 0.25 * pool.replica.flat + 0.75 * replica.replica.flat
    merge([pool, replica], [0.25, 0.75])
    for worker in (pool, replica):
        np.testing.assert_allclose(worker.current, expected, atol=1e-6)
        np.testing.assert_array_equal(worker.replica.flat, worker.current)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_loss_that_is_not_finite_ends_a_pools_lease(threads):
    pool = make_worker(changed(SETTINGS, pool_threads=threads))
    pool.replica.flat[:] = np.nan
    with pytest.raises(TrainingError, match=r"not finite .* rate 0.5: lower strategy.lr"):
        pool.lease(batches_of(0, ROWS), 0.5, {})


def test_a_pools_checkpoint_has_the_moments_of_its_threads():
    settings = changed(SETTINGS, pool_threads=2, optimizer=OptimizerConfig(name="adam"))
    pool, resumed = make_worker(settings), make_worker(settings)
    pool.lease(batches_of(0, 60), 0.01, {})
    state = pool.local_state()
    assert state["optimizer.first"].any()
    resumed.set_local_state(state)
    for name, array in resumed.local_state().items():
        np.testing.assert_array_equal(array, state[name])


def test_an_evaluation_by_a_pool_is_that_of_a_replica():
    pool, replica = make_worker(changed(SETTINGS, pool_threads=2)), make_worker(SETTINGS)
    pieces = [(0, 0, 30)]
    assert evaluate(pool, pieces, {}) == evaluate(replica, pieces, {})


# ------------------------------------------------------- one model for all


def test_a_pool_on_the_model_host_steps_in_the_shared_memory():
    pool = make_worker(changed(SHARED, pool_threads=1))
    other = SharedModel.open(pool.shared.handle)
    np.testing.assert_array_equal(other.flat, SEEDS_MODEL)
    plain = make_worker(SETTINGS)
    pool.lease(batches_of(0, 40), 0.5, {})
    plain.lease(batches_of(0, 40), 0.5, {})
    np.testing.assert_array_equal(other.flat, plain.replica.flat)
    np.testing.assert_array_equal(pool.current, SEEDS_MODEL)  # until the merge


def test_a_replica_on_the_model_host_adds_its_change_batch_by_batch():
    """A naive twin: copy, step, add the difference."""
    replica, plain = make_worker(SHARED), make_worker(SETTINGS)
    model = SEEDS_MODEL.copy()
    for batch in batches_of(0, 40):
        replica.lease([batch], 0.5, {})
        plain.replica.flat[:] = model
        before = plain.replica.flat.copy()
        plain.runner.step(batch, 0.5, {})
        model += plain.replica.flat - before
        np.testing.assert_array_equal(replica.shared.flat, model)
        replica.shared.flat[:] += np.float32(0.125)  # somebody else
        model += np.float32(0.125)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("act", ["warm up", "initialize", "checkpoint", "rewind", "commit"])
def test_a_newcomer_on_the_model_host_leaves_the_shared_model_alone(threads, act):
    owner = make_worker(changed(SHARED, pool_threads=2))
    owner.lease(batches_of(0, 40), 0.5, {})
    trained = owner.shared.flat.copy()
    shared = SharedModel.open(owner.shared.handle)
    shared.flat.flags.writeable = False  # any write by a kernel would raise
    newcomer = TrainingWorker(changed(SHARED, pool_threads=threads), shared)
    match act:
        case "warm up":
            assert warm_up(newcomer.replica, newcomer.settings) > 0.0
        case "initialize":
            newcomer.initialize()
            np.testing.assert_array_equal(newcomer.current, SEEDS_MODEL)
        case "checkpoint":
            newcomer.set_model(trained + 1, trained + 2, generation=3)
            np.testing.assert_array_equal(newcomer.current, trained + 1)
        case "rewind":
            newcomer.rewind()
        case "commit":
            newcomer.scratch[:] = 3.0
            newcomer.commit(1)
            assert (newcomer.current == 3.0).all()
    np.testing.assert_array_equal(owner.shared.flat, trained)


@pytest.mark.parametrize("threads", [0, 2])
def test_the_creator_of_the_model_loads_a_checkpoint_into_it(threads):
    owner = make_worker(changed(SHARED, pool_threads=threads))
    other = make_worker(SHARED, SharedModel.open(owner.shared.handle))
    owner.set_model(SEEDS_MODEL + 1, SEEDS_MODEL, generation=4)
    np.testing.assert_array_equal(other.shared.flat, SEEDS_MODEL + 1)
    np.testing.assert_array_equal(owner.replica.flat, owner.current)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_that_train_at_the_same_time_as_a_replica_lower_the_loss(threads):
    pool = make_worker(changed(SHARED, pool_threads=threads))
    replica = make_worker(SHARED, SharedModel.open(pool.shared.handle))
    losses = [
        pool.lease(batches_of(0, ROWS), 0.3, {}).loss_sum
        + replica.lease(batches_of(0, ROWS, 32), 0.3, {}).loss_sum
        for _ in range(6)
    ]
    assert losses[-1] < 0.8 * losses[0]


# ---------------------------------------------------------------------- merges


def test_a_merge_takes_the_shared_model_down_for_all():
    pool = make_worker(changed(SHARED, pool_threads=2))
    others = [
        make_worker(changed(SHARED, pool_threads=threads), SharedModel.open(pool.shared.handle))
        for threads in (0, 0, 1)
    ]
    group = [others[0], pool, *others[1:]]
    for worker, start in zip(group, (0, 30, 60, 90), strict=True):
        worker.lease(batches_of(start, start + 30), 0.3, {})
    trained = group[1].shared.flat.copy()
    assert merge(group, [0.1, 0.2, 0.3, 0.4]) == [{}] * 4
    for worker in group:
        np.testing.assert_array_equal(worker.current, trained)
        np.testing.assert_array_equal(worker.previous, SEEDS_MODEL)
        np.testing.assert_array_equal(worker.replica.flat, trained)  # evaluations use it
    np.testing.assert_array_equal(group[1].shared.flat, trained)
