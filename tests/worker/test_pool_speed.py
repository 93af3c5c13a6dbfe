"""Two threads of a pool do more than one, on a machine that has two cores to spare."""

import os
import statistics
import time

import numpy as np
import pytest

from daskxml.core.arrays import Segment
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.kernels import get_kernels
from daskxml.kernels.cpu.gemm import dot_rows
from daskxml.kernels.cpu.thread_team import ThreadTeam
from daskxml.models.network.spec import ModelSpec, initial_parameters
from daskxml.optim import OptimizerConfig
from daskxml.session.ledger import Span
from daskxml.worker.pool import Pool
from daskxml.worker.replica import Replica

SPEC = ModelSpec(features=1000, labels=100_000, hidden=(128,))  # 51 MB: more than a cache holds
ROWS = 64
PART_ROWS = 16  # with one row a part, memory is the limit sooner than the cores
READS, BATCHES, ROUNDS = 40, 8, 7
LEAST, QUIET = 1.6, 1.7  # times one thread: the pool, and two threads that only read


def seconds(work):
    begun_s = time.perf_counter()
    work()
    return time.perf_counter() - begun_s


def native_work(threads):
    """Read matrices of the model's size with Python out of the way: what the machine allows."""
    matrix, x = np.ones((SPEC.labels, 128), np.float32), np.ones(128, np.float32)
    outs = [np.zeros(SPEC.labels, np.float32) for _ in range(threads)]
    lanes, times = ThreadTeam(threads), READS // threads

    def read(lane, *_):
        for _ in range(times):
            dot_rows(outs[lane], x, matrix, np.float32(1.0), np.float32(0.0))

    return lambda: lanes.run(threads, 1, read)


@pytest.mark.slow
def test_two_threads_do_more_than_one():
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this process may use one core only")
    data, _ = generate(
        SyntheticSpec(rows=ROWS, test_rows=1, features=SPEC.features, labels=SPEC.labels)
    )
    replica = Replica(SPEC, OptimizerConfig(), get_kernels("cpu", 1), max_batch_rows=PART_ROWS)
    replica.flat[:] = initial_parameters(SPEC, 0)

    def step(mine, part):
        segments = [Segment(data, np.arange(span.start, span.stop)) for span in part]
        return mine.step(segments, 1e-3, 0)

    def pool_work(threads):
        rows = threads * PART_ROWS
        pool = Pool(replica, threads, rows, 1 << 26)
        batches = [[Span(0, 0, 0, rows)]] * (BATCHES // threads)
        return lambda: pool.run(batches, step)

    works = [make(threads) for make in (native_work, pool_work) for threads in (1, 2)]
    for work in works:
        work()
    rounds = [[seconds(work) for work in works] for _ in range(ROUNDS)]
    native = statistics.median(one / two for one, two, _, _ in rounds)
    found = statistics.median(one / two for _, _, one, two in rounds)
    if native < QUIET:
        pytest.skip(f"two threads do {native:.2f} times the reading of one here: it is not idle")
    assert found >= LEAST, f"{found:.2f} times the rows of one thread; reading: {native:.2f} times"
