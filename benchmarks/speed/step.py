"""One SGD step beside its matrix products (the floor) and beside PyTorch, in the same run.

    python benchmarks/speed/step.py [--threads 1,2] [--repeats 15]
    python benchmarks/speed/step.py --pool [--rounds 5] [--seconds 0.4]

Every case is timed in turns (ours, floor, PyTorch, ours, ...), so that other load disturbs all of
them; medians are reported. The floor is the three products of the output layer (logits, the
gradient of the hidden layer, the update) in the fastest known shape and split. PyTorch runs
EmbeddingBag (sum, with weights a row's values, sparse gradient) and Linear with SGD.

With ``--pool``: do two threads that update one model without locks do twice the work of one? Every
model is trained by one thread, by two, and by two that take a lock around each step, with parts of
one row (Hogwild) and of 16, in turns. The machine's own limit is measured beside them: the speed-up
of two threads that only read matrices of the model's size. The table has medians over the rounds:
rows per second, ratios within a round, and the cores that the process had with two threads (below 2
the threads waited, for each other or for other processes).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from daskxml.core.arrays import Csr, Partition, Segment
from daskxml.core.work_stats import WorkStats
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.kernels import Kernels, get_kernels
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
        return rate_of(lambda: self.pools[threads].run(some, step).rows, seconds)


def rate_of(work: Callable[[], int], seconds: float) -> Rate:
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

    rate = rate_of(lambda: team.run(threads, 1, work) * times, seconds)
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


def pools(rounds: int, seconds: float) -> None:
    """Measure pools, and write the table."""
    rows = [
        compare(name, spec, part_rows, rounds, seconds)
        for name, spec in MODELS.items()
        for part_rows in (1, 16)
    ]
    write_result("pool", rows, rounds=rounds, seconds=seconds)


BATCHES = 4  # different batches in turn, so that the sparse layer does not live in a cache


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A data set's proportions."""

    name: str
    features: int
    labels: int
    row_features: int
    row_labels: int
    rows: int = 256
    hidden: int = 128
    loss: str = "softmax"


SHAPES = (
    Shape(name="nvd-product", features=32335, labels=21764, row_features=24, row_labels=2),
    Shape(
        name="nvd-product, sigmoid", features=32335, labels=21764, row_features=24, row_labels=2,
        loss="sigmoid",
    ),
    Shape(name="delicious", features=500, labels=983, row_features=18, row_labels=19),
    Shape(name="bibtex", features=1836, labels=159, row_features=68, row_labels=2),
)  # fmt: skip


def random_rows(rng: np.random.Generator, rows: int, columns: int, each: int) -> Csr:
    """Return rows of ``each`` distinct columns, low ones more frequent, of unit norm."""
    weights = 1.0 / np.arange(1, columns + 1)
    keys = rng.exponential(size=(rows, columns)) / weights
    ids = np.sort(np.argpartition(keys, each, axis=1)[:, :each], axis=1).astype(np.int32)
    data = np.full(ids.size, each**-0.5, np.float32)
    return Csr(np.arange(rows + 1, dtype=np.int64) * each, ids.reshape(-1), data, columns)


def make_partition(shape: Shape) -> Partition:
    rng = np.random.default_rng(0)
    count = shape.rows * BATCHES
    features = random_rows(rng, count, shape.features, shape.row_features)
    labels = random_rows(rng, count, shape.labels, shape.row_labels)
    return Partition(features, Csr(labels.indptr, labels.indices, None, labels.columns))


def our_step(shape: Shape, partition: Partition, kernels: Kernels) -> Callable[[int], object]:
    spec = ModelSpec(
        features=shape.features, labels=shape.labels, hidden=(shape.hidden,), loss=shape.loss
    )
    replica = Replica(spec, OptimizerConfig(), kernels, max_batch_rows=shape.rows)
    kernels.copy(replica.flat, kernels.to_device(initial_parameters(spec, 1)))
    parts = [np.arange(shape.rows, dtype=np.int64) + i * shape.rows for i in range(BATCHES)]
    return lambda turn: replica.step([Segment(partition, parts[turn % BATCHES])], 0.1, turn)


def floor_step(shape: Shape, kernels: Kernels) -> Callable[[int], object]:
    """Return the output layer's three products, split among threads in whole blocks."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((shape.labels, shape.hidden), dtype=np.float32)
    hidden = rng.standard_normal((shape.rows, shape.hidden), dtype=np.float32)
    logits = np.empty((shape.labels, shape.rows), np.float32)
    sums = np.zeros((kernels.threads, shape.rows, shape.hidden), np.float32)

    def forward(lane: int, start: int, stop: int) -> None:
        kernels.gemm(logits[start:stop], weight[start:stop], hidden.T)

    def backward(lane: int, start: int, stop: int) -> None:
        kernels.gemm(sums[lane], logits[start:stop].T, weight[start:stop])
        kernels.gemm(weight[start:stop], logits[start:stop], hidden, -1e-9, 1.0)

    def products(turn: int) -> None:
        kernels.for_label_blocks(shape.labels, 2048, forward)
        kernels.for_label_blocks(shape.labels, 2048, backward)

    return products


def torch_step(shape: Shape, partition: Partition, threads: int) -> Callable[[int], object] | None:
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    bag = torch.nn.EmbeddingBag(shape.features, shape.hidden, mode="sum", sparse=True)
    first_bias = torch.nn.Parameter(torch.zeros(shape.hidden))
    linear = torch.nn.Linear(shape.hidden, shape.labels)
    parameters = [*bag.parameters(), first_bias, *linear.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    batches = [torch_batch(shape, partition, turn) for turn in range(BATCHES)]

    def step(turn: int) -> None:
        ids, offsets, values, row_of, label_of = batches[turn % BATCHES]
        logits = linear(torch.relu(bag(ids, offsets, values) + first_bias))
        optimizer.zero_grad(set_to_none=True)
        torch_loss(shape, logits, row_of, label_of).backward()
        optimizer.step()

    return step


def torch_loss(shape: Shape, logits: Any, row_of: Any, label_of: Any) -> Any:
    """Return the loss without a dense target matrix: it gathers the targets' logits."""
    import torch

    picked = logits[row_of, label_of].sum()
    if shape.loss == "softmax":
        total = torch.logsumexp(logits, dim=1).sum() - picked / shape.row_labels
    else:
        total = torch.nn.functional.softplus(logits).sum() - picked
    return total / shape.rows


def torch_batch(shape: Shape, partition: Partition, turn: int) -> tuple[Any, ...]:
    import torch

    each, rows = shape.row_features, shape.rows
    part = slice(turn * rows * each, (turn + 1) * rows * each)
    labels = slice(turn * rows * shape.row_labels, (turn + 1) * rows * shape.row_labels)
    return (
        torch.from_numpy(partition.features.indices[part].astype(np.int64)),
        torch.arange(rows) * each,
        torch.from_numpy(partition.features.data[part]),
        torch.arange(rows).repeat_interleave(shape.row_labels),
        torch.from_numpy(partition.labels.indices[labels].astype(np.int64)),
    )


def interleaved_ms(
    steps: dict[str, Callable[[int], object]], repeats: int
) -> dict[str, list[float]]:
    """Return the mean time of each step in every round, taking turns."""
    times: dict[str, list[float]] = defaultdict(list)
    for step in steps.values():
        for turn in range(3):
            step(turn)
    for _ in range(repeats):
        for name, step in steps.items():
            start = time.perf_counter()
            for turn in range(BATCHES):
                step(turn)
            times[name].append((time.perf_counter() - start) / BATCHES * 1e3)
    return dict(times)


def median_ratio(above: list[float], below: list[float]) -> float:
    """Return the median of ratios within rounds, in which a slow round cancels out."""
    return round(statistics.median(a / b for a, b in zip(above, below, strict=True)), 2)


def measure(shape: Shape, threads: int, repeats: int) -> dict[str, Any]:
    kernels = get_kernels("cpu", threads)
    partition = make_partition(shape)
    steps = {"ours": our_step(shape, partition, kernels), "floor": floor_step(shape, kernels)}
    peer = torch_step(shape, partition, threads)
    if peer is not None:
        steps["torch"] = peer
    times = interleaved_ms(steps, repeats)
    kernels.close()
    row: dict[str, Any] = {"shape": shape.name, "rows": shape.rows, "threads": threads}
    row |= {f"{name}_ms": round(statistics.median(ms), 2) for name, ms in times.items()}
    row["floor_share"] = median_ratio(times["floor"], times["ours"])
    if "torch" in times:
        row["times_torch"] = median_ratio(times["torch"], times["ours"])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--shape", default="", help="only shapes whose name contains this")
    parser.add_argument("--pool", action="store_true", help="pools of threads instead")
    parser.add_argument("--rounds", type=int, default=5, help="of --pool")
    parser.add_argument("--seconds", type=float, default=0.4, help="of --pool, a turn")
    options = parser.parse_args()
    if options.pool:
        pools(options.rounds, options.seconds)
        return
    rows = [
        measure(shape, int(threads), options.repeats)
        for shape in SHAPES
        if options.shape in shape.name
        for threads in options.threads.split(",")
    ]
    asked = os.environ.get("OPENBLAS_CORETYPE")  # may hold OpenBLAS below what the machine can
    cores = {each["architecture"] for each in threadpool_info() if each["user_api"] == "blas"}
    write_result("step", rows, blas_core=", ".join(cores), asked_core=asked)


if __name__ == "__main__":
    main()
