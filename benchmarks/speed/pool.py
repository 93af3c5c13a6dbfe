"""Pool: do two threads that update one model without locks do twice the work of one?

Every model is trained by one thread, by two, and by two that take a lock around each step, with
parts of one row (Hogwild) and of 16, in turns. The machine's own limit is measured beside them: the
speed-up of two threads that only read matrices of the model's size. Reported are medians over the
rounds: rows per second, ratios within a round, and the cores that the process had with two threads
(below 2 the threads waited, for each other or for other processes).

    python benchmarks/speed/pool.py [--rounds 5] [--seconds 0.4]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from daskxml.core.work_stats import WorkStats
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.kernels import get_kernels
from daskxml.kernels.cpu.gemm import dot_rows
from daskxml.kernels.cpu.thread_team import ThreadTeam
from daskxml.models.network.spec import ModelSpec, initial_parameters
from daskxml.optim import OptimizerConfig
from daskxml.session.ledger import Span, cut_batches
from daskxml.worker.pool import Pool
from daskxml.worker.replica import Replica
from daskxml.worker.resident_rows import Batch, ResidentRows

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import write_result

ROWS = 2000
LR = 1e-3
MODELS = {
    "300-64-2": ModelSpec(features=300, labels=2, hidden=(64,)),
    "300-8x512-2": ModelSpec(features=300, labels=2, hidden=(512,) * 8, activation="sigmoid"),
    "5,000-128-100,000": ModelSpec(features=5000, labels=100_000, hidden=(128,)),
}
Step = Callable[[Replica, Batch], WorkStats]
Rate = tuple[float, float]  # work per second, and cores that the process had


class Bench:
    """One model and its rows, for any number of threads."""

    def __init__(self, spec: ModelSpec, part_rows: int) -> None:
        kernels = get_kernels("cpu", 1)
        data = SyntheticSpec(rows=ROWS, test_rows=1, features=spec.features, labels=spec.labels)
        self.resident = ResidentRows(kernels, seed=0)
        self.resident.hold_all([generate(data)[0]], [])
        self.replica = Replica(spec, OptimizerConfig(), kernels, max_batch_rows=part_rows)
        self.replica.flat[:] = initial_parameters(spec, 0)
        self.part_rows, self.lock = part_rows, threading.Lock()
        self.pools = {n: Pool(self.replica, n, n * part_rows, 1 << 28) for n in (1, 2)}

    def step(self, mine: Replica, part: Batch) -> WorkStats:
        """Take a step as a worker does whose model has no dropout."""
        return mine.step(self.resident.batch(part, {}), LR, 0)

    def locked(self, mine: Replica, part: Batch) -> WorkStats:
        """Take a step under a lock."""
        with self.lock:
            return self.step(mine, part)

    def rate(self, threads: int, step: Step, seconds: float) -> Rate:
        """Measure rows per second."""
        batches = cut_batches([Span(0, 0, 0, ROWS)], threads * self.part_rows)
        some = batches[: max(1, 64 // (threads * self.part_rows))]
        return measure(lambda: self.pools[threads].run(some, step).rows, seconds)


def measure(work: Callable[[], int], seconds: float) -> Rate:
    """Repeat some work; return its amount per second, and the cores that it had."""
    work()
    done, begun_s, cpu_s = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - begun_s < seconds:
        done += work()
    took_s = time.perf_counter() - begun_s
    return done / took_s, (time.process_time() - cpu_s) / took_s


def native_rate(floats: int, threads: int, seconds: float) -> Rate:
    """Measure how often threads read a matrix of that size, without Python code between."""
    matrix, x = np.ones((max(1, floats // 512), 512), np.float32), np.ones(512, np.float32)
    one, zero = np.float32(1.0), np.float32(0.0)
    outs = [np.zeros(len(matrix), np.float32) for _ in range(threads)]
    times = max(1, (1 << 23) // floats)
    team = ThreadTeam(threads)

    def work(lane: int, *_: int) -> None:
        for _ in range(times):
            dot_rows(outs[lane], x, matrix, one, zero)

    rate = measure(lambda: team.run(threads, 1, work) * times, seconds)
    team.close()
    return rate


def compare(name: str, spec: ModelSpec, part_rows: int, rounds: int, seconds: float) -> Any:
    """Return one row of the table."""
    bench = Bench(spec, part_rows)
    found = []
    for _ in range(rounds):
        one, two = (bench.rate(threads, bench.step, seconds) for threads in (1, 2))
        locked = bench.rate(2, bench.locked, seconds)
        native = [native_rate(bench.replica.layout.size, n, seconds / 2) for n in (1, 2)]
        found.append({
            "rows_per_s_1": one[0],
            "rows_per_s_2": two[0],
            "ratio": two[0] / one[0],
            "locked_ratio": locked[0] / one[0],
            "machine_ratio": native[1][0] / native[0][0],
            "cores_2": two[1],
        })  # fmt: skip
    for pool in bench.pools.values():
        pool.close()
    medians = {key: statistics.median(row[key] for row in found) for key in found[0]}
    size = {"model_mib": bench.replica.layout.size * 4 / 2**20}
    return {"model": name, "part_rows": part_rows, **size, **medians}


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.4)
    options = parser.parse_args()
    rows = [
        compare(name, spec, part_rows, options.rounds, options.seconds)
        for name, spec in MODELS.items()
        for part_rows in (1, 16)
    ]
    write_result("pool", rows, **vars(options))


if __name__ == "__main__":
    main()
