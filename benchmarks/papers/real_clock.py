"""Unequal workers in real time, beside what the simulator predicts for them.

    python benchmarks/papers/real_clock.py [--workers 2] [--seeds 10]

Two or four worker processes of one thread train with real arithmetic, in batches that take an idle
core 50 ms. Those with a speed below 1 are stopped and continued (SIGSTOP, SIGCONT) every 40 ms; two
cores are enough for the sum of the speeds. All algorithms train as many rows in turns, seed by
seed; rows a second are those of whole mega-batches, merge included, without the first two.
Predicted are those on virtual clocks, at 50 ms a batch, without jitter and costs of messages. What
is compared are ratios to Elastic SGD, which the load of the machine changes least.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributed import Client

import daskxml
from daskxml.data.synthetic import SyntheticSpec, write_xml
from daskxml.local import CostModel, Network
from drawing import interval

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import write_result

SPEEDS = {2: (1.0, 0.5), 4: (0.5, 0.4, 0.3, 0.2)}  # by the number of workers
PERIOD_S = 0.04
ROWS = SyntheticSpec(rows=8192, features=2000, labels=20_000, labels_per_row=3.0, seed=1)
SMALL = SyntheticSpec(rows=8192, features=50, labels=10, seed=1)
COMMON = {
    "strategy.batch_max": 256, "training.megabatches": 8, "evaluation.every": 1000,
    "cluster.threads": 1, "data.residency": "replicate",
}  # fmt: skip
ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "Elastic": ("elastic", {"combine.quorum": 1.0}),
    "Adaptive": ("adaptive-sgd", {"combine.quorum": 1.0, "model.dropout": 0.0}),
    "static": ("static", {"combine.quorum": 1.0}),
    "synchronous": ("mirrored", {}),
    "Elastic, quorum 0.5": ("elastic", {"combine.quorum": 0.5}),
}


@contextmanager
def slowed(speeds: Mapping[int, float]) -> Iterator[None]:
    """Give processes their shares of the time, until the block ends."""
    over = threading.Event()

    def alternate(pid: int, speed: float) -> None:
        while not over.wait(speed * PERIOD_S):
            os.kill(pid, signal.SIGSTOP)
            over.wait((1.0 - speed) * PERIOD_S)
            os.kill(pid, signal.SIGCONT)

    threads = [threading.Thread(target=alternate, args=s) for s in speeds.items() if s[1] < 1.0]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def rows_per_s(history: Sequence[dict[str, Any]]) -> float:
    """Return the rows of all mega-batches but two, over their time."""
    seconds = sum(row["train_s"] + row["merge_s"] for row in history[2:])
    return float((history[-1]["rows"] - history[1]["rows"]) / seconds)


def measure(seed: int, speeds: Sequence[float], folder: Path) -> list[dict[str, Any]]:
    """Return a row for each algorithm: rows a second, and their ratios to Elastic SGD's."""
    train, small = (write_xml(folder / f"{s.labels}.txt", s, "train") for s in (ROWS, SMALL))
    rows: list[dict[str, Any]] = []
    with Client(n_workers=len(speeds), threads_per_worker=1, dashboard_address=None) as client:
        pids = [pid for _, pid in sorted(client.run(os.getpid, nanny=False).items())]
        for name, (run_file, own) in ALGORITHMS.items():
            given = COMMON | own | {"run.seed": seed, "strategy.megabatch_batches": 6 * len(speeds)}
            with slowed(dict(zip(pids, speeds, strict=True))):
                history = daskxml.train(
                    run_file, client=client, train=train, overrides=given
                ).history
            simulated = daskxml.simulate(
                run_file, speeds, train=small, overrides=given,
                cost=CostModel(per_row_s=0.05 / 256, jitter=0.0), network=Network(message_s=0.0),
            )  # fmt: skip
            rows.append({
                "seed": seed, "algorithm": name,
                "measured": round(rows_per_s(history), 1),
                "predicted": round(rows_per_s(simulated.history), 1),
            })  # fmt: skip
    return [
        row | {"ratios": [row[key] / rows[0][key] for key in ("measured", "predicted")]}
        for row in rows
    ]


def ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each algorithm, its speed over Elastic SGD's."""
    table = []
    for name in ALGORITHMS:
        found = [row["ratios"] for row in rows if row["algorithm"] == name]
        measured, predicted = map(interval, zip(*found, strict=True))
        table.append({
            "algorithm": name, "seeds": len(found), "times Elastic": round(measured[0], 3),
            "+-": round(measured[1], 3), "predicted": round(predicted[0], 3),
            "error": round(predicted[0] / measured[0] - 1, 3),
        })  # fmt: skip
    return table


def main() -> None:
    """Measure seed by seed, and write what is known after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, choices=SPEEDS)
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(seed, SPEEDS[options.workers], Path(folder))
        name = f"real_clock_{options.workers}"
        write_result(name, ratios(rows), speeds=SPEEDS[options.workers], runs=rows)


if __name__ == "__main__":
    main()
