"""Threads that update one model without locks."""

import threading
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.core.arrays import Csr, Segment
from daskxml.core.work_stats import WorkStats
from daskxml.data import order
from daskxml.data.order import derive_key
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.kernels import cpu, get_kernels
from daskxml.kernels.operands import KEEP_ALL
from daskxml.models.network.spec import ModelSpec, initial_parameters
from daskxml.optim import OPTIMIZERS, OptimizerConfig
from daskxml.session.ledger import Span, cut_batches
from daskxml.worker.pool import Pool
from daskxml.worker.replica import Replica
from daskxml.worker.resident_rows import part_of

FEATURES, LABELS, ROWS = 60, 12, 240
DATA, _ = generate(SyntheticSpec(rows=ROWS, test_rows=1, features=FEATURES, labels=LABELS, seed=4))
NOTHING = WorkStats(updates=1)


def make_replica(rows=32, optimizer=None, **options):
    spec = ModelSpec(**{"features": FEATURES, "labels": LABELS, "hidden": (16,), **options})
    optimizer = optimizer or OptimizerConfig()
    replica = Replica(spec, optimizer, get_kernels("cpu", 1), max_batch_rows=rows)
    replica.flat[:] = initial_parameters(spec, 5)
    return replica


def make_pool(replica, threads, rows=32):
    return Pool(replica, threads, rows, 1 << 20)


def step(replica, part, lr=0.5):
    """Step through a part's rows, which lie as they are numbered."""
    segments = [Segment(DATA, np.arange(span.start, span.stop)) for span in part]
    return replica.step(segments, lr, derive_key(1, part[0].epoch, part[0].start))


def all_rows(batch_rows, epochs=1):
    return cut_batches([Span(epoch, 0, 0, ROWS) for epoch in range(epochs)], batch_rows)


# ----------------------------------------------------------------------- parts


@given(
    st.lists(st.integers(0, 9), max_size=4),
    st.integers(1, 9),
)
@settings(max_examples=60, deadline=None)
def test_parts_are_near_equal_and_together_the_batch(sizes, threads):
    batch = [Span(i, 0, 5, 5 + size) for i, size in enumerate(sizes)]
    parts = [part_of(batch, part, threads) for part in range(threads)]
    places = [(s.epoch, row) for part in parts for s in part for row in range(s.start, s.stop)]
    assert places == [(s.epoch, row) for s in batch for row in range(s.start, s.stop)]
    assert all(span.rows for part in parts for span in part)
    rows = [sum(span.rows for span in part) for part in parts]
    assert max(rows) - min(rows) <= 1


@pytest.mark.parametrize(("rows", "updates"), [(3, 3), (4, 4), (9, 4), (0, 0)])
def test_an_update_for_each_part_that_has_rows(rows, updates):
    pool = make_pool(make_replica(), 4)
    done = pool.run([[Span(0, 0, 0, rows)]], step)
    assert (done.updates, done.rows) == (updates, rows)
    pool.close()


def test_nothing_to_do_is_done():
    pool = make_pool(make_replica(), 2)
    assert pool.run([], step) == WorkStats()
    pool.close()


# ------------------------------------------------------------- the same result


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_one_thread_has_the_bits_of_a_replica(name, loss):
    options = {
        "optimizer": OptimizerConfig(name=name, weight_decay=0.01, epsilon=1e-4),
        "loss": loss, "dropout": 0.2, "feature_dropout": 0.2,
    }  # fmt: skip
    pooled, plain = make_replica(**options), make_replica(**options)
    pool = make_pool(pooled, 1)
    done = pool.run(all_rows(32), lambda mine, part: step(mine, part, 0.02))
    results = [step(plain, batch, 0.02) for batch in all_rows(32)]
    np.testing.assert_array_equal(pooled.flat, plain.flat)
    for moment, array in plain.optimizer.state().items():
        np.testing.assert_array_equal(pooled.optimizer.state()[moment], array)
    assert done.loss_sum == sum(result.loss_sum for result in results)
    assert (done.rows, done.updates) == (ROWS, len(results))
    assert done.nonzeros == sum(result.nonzeros for result in results)
    pool.close()


def mean_loss(replica):
    rows = np.array_split(np.arange(ROWS), 8)
    return sum(replica.loss_sum([Segment(DATA, part)]) for part in rows) / ROWS


DECAY = OptimizerConfig(weight_decay=0.02)


@pytest.fixture(scope="module")
def least_loss():
    """The loss at the one minimum, which full gradients come close to."""
    replica = make_replica(rows=ROWS, hidden=(), optimizer=DECAY)
    for epoch in range(1000):
        step(replica, [Span(epoch, 0, 0, ROWS)], 1.0)
    return mean_loss(replica)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("part_rows", [1, 5])
def test_a_convex_problem_is_solved_with_any_number_of_threads(least_loss, threads, part_rows):
    replica = make_replica(hidden=(), optimizer=DECAY)
    first, pool = mean_loss(replica), make_pool(replica, threads)
    for epoch, lr in enumerate(np.geomspace(0.3, 0.003, 24) * part_rows):
        batches = cut_batches([Span(epoch, 0, 0, ROWS)], threads * part_rows)
        pool.run(batches, partial(step, lr=float(lr)))
    assert first > 1.5 * least_loss
    assert mean_loss(replica) == pytest.approx(least_loss, rel=0.02)
    pool.close()


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_threads_have_moments_in_common(name):
    replica = make_replica(optimizer=OptimizerConfig(name=name))
    first, pool = mean_loss(replica), make_pool(replica, 4)
    pool.run(all_rows(16, 4), lambda mine, part: step(mine, part, 0.01))
    assert mean_loss(replica) < 0.9 * first
    assert int(replica.optimizer.state()["steps"][0]) > 0.9 * 4 * ROWS / 4
    for array in replica.optimizer.state().values():
        assert array.any()
    pool.close()


@pytest.mark.parametrize("name", ["sgd", "momentum"])
@pytest.mark.parametrize("threads", [2, 4])
def test_no_update_of_weights_that_only_one_thread_changes_is_lost(name, threads):
    """Rows of a few floats: threads write into the same cache lines, at different places."""
    pooled, plain = (
        make_replica(hidden=(5,), optimizer=OptimizerConfig(name=name)) for _ in range(2)
    )
    pool, batches = make_pool(pooled, threads), [[Span(i, 0, 0, threads)] for i in range(400)]
    done = pool.run(batches, lambda mine, part: update(mine, part[0].epoch, part[0].start, threads))
    for span in (span for batch in batches for span in batch):
        for thread in range(threads):
            update(plain, span.epoch, thread, threads)
    assert done.updates == 400 * threads
    np.testing.assert_array_equal(pooled.flat, plain.flat)
    pool.close()


def update(replica, number, thread, threads):
    """Update features and labels ``thread``, ``thread + threads``... as a step does."""
    mine, updates = np.arange(thread, FEATURES, threads), replica.optimizer
    x = Csr(
        np.array([0, len(mine)]), mine.astype(np.int32), np.ones(len(mine), np.float32), FEATURES
    )
    delta = np.full((1, 5), 2.0 ** -(number % 7), np.float32)
    updates.begin_step()
    updates.sparse_product("hidden0.weight", x, np.array([0]), delta, 0.5, KEEP_ALL)
    block = slice(LABELS * thread // threads, LABELS * (thread + 1) // threads)
    slope = np.full((1, block.stop - block.start), 1.0 + number % 3, np.float32)
    updates.product("output.weight", block, slope, delta, 0.5)
    updates.dense("output.bias", slope[0], 0.5, rows=block)
    updates.end_step(0.5)
    return NOTHING


# ----------------------------------------------------------------- at the same time


def test_parts_are_worked_on_at_the_same_time():
    pool, meeting = make_pool(make_replica(), 3), threading.Barrier(3, timeout=60)

    def meet(mine, part):
        meeting.wait()  # breaks, if it is not met by all three
        return NOTHING

    assert pool.run(all_rows(6), meet).updates == 3 * len(all_rows(6))
    pool.close()


def test_threads_do_not_wait_for_each_other_between_batches():
    """The first thread is held up in its first part until the second is through with all."""
    pool, is_through = make_pool(make_replica(), 2), threading.Event()
    last = all_rows(2)[-1][0].stop

    def wait(mine, part):
        if part[0].start == 0:
            assert is_through.wait(timeout=60)
        elif part[0].stop == last:
            is_through.set()
        return NOTHING

    assert pool.run(all_rows(2), wait).updates == ROWS
    pool.close()


def test_every_kernel_lets_other_threads_run():
    """All compiled functions except those that are inlined into others."""
    paths = Path(cpu.__path__[0]).glob("*.py")
    modules = [import_module(f"daskxml.kernels.cpu.{path.stem}") for path in paths]
    found = [order.walk, *(value for module in modules for value in vars(module).values())]
    options = {kernel.__name__: kernel.targetoptions for kernel in found if is_compiled(kernel)}
    kernels = {name: chosen for name, chosen in options.items() if chosen.get("inline") != "always"}
    assert len(kernels) > 40
    assert [name for name, chosen in kernels.items() if not chosen.get("nogil")] == []


def is_compiled(value):
    return hasattr(value, "targetoptions")


# --------------------------------------------------------------------- errors


@pytest.mark.parametrize("thread", [0, 1])
def test_an_error_reaches_the_caller_and_ends_the_others_work(thread):
    pool = make_pool(make_replica(), 2)
    batches, done = [[Span(i, 0, 0, 2)] for i in range(100_000)], []

    def fail(mine, part):
        if part[0].start == thread and part[0].epoch == 3:
            raise ValueError("for a test")
        done.append(None)
        return NOTHING

    with pytest.raises(ValueError, match="for a test"):
        pool.run(batches, fail)
    assert len(done) < len(batches)
    assert pool.run(batches[:2], lambda mine, part: NOTHING).updates == 4  # it goes on
    pool.close()
