"""Unequal workers in real time, beside what the simulator predicts for them.

    python benchmarks/papers/real_clock.py [--seeds 0 1 2]

Two worker processes of one thread train with real arithmetic, in batches that take an idle core 50
ms. The second is stopped and continued (SIGSTOP, SIGCONT) every 40 ms so that it has half the first
one's speed. All algorithms train as many rows in turns, seed by seed; rows a second are those of
whole mega-batches, merge included, without the first two. Predicted are those on virtual clocks, at
50 ms a batch, without jitter and costs of messages. What is compared are ratios to Elastic SGD,
which the load of the machine changes least. Rows of other seeds in the result file are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster

import daskxml
from daskxml.data.synthetic import SyntheticSpec, write_xml
from daskxml.local import CostModel, Network
from drawing import interval

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import RESULTS, write_result

SPEED, PERIOD_S = 0.5, 0.04
ROWS = SyntheticSpec(rows=8192, features=2000, labels=20_000, labels_per_row=3.0, seed=1)
SMALL = SyntheticSpec(rows=8192, features=50, labels=10, seed=1)
COMMON = {
    "strategy.batch_max": 256, "strategy.megabatch_batches": 12, "training.megabatches": 8,
    "evaluation.every": 1000, "cluster.threads": 1, "data.residency": "replicate",
}  # fmt: skip
ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "Elastic": ("elastic", {"combine.quorum": 1.0}),
    "Adaptive": ("adaptive-sgd", {"combine.quorum": 1.0, "model.dropout": 0.0}),
    "static": ("static", {"combine.quorum": 1.0}),
    "synchronous": ("mirrored", {}),
    "Elastic, quorum 0.5": ("elastic", {"combine.quorum": 0.5}),
}


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """Give a process a share of the time, until the block ends."""
    over = threading.Event()

    def alternate() -> None:
        while not over.wait(SPEED * PERIOD_S):
            os.kill(pid, signal.SIGSTOP)
            over.wait((1.0 - SPEED) * PERIOD_S)
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=alternate)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def rows_per_s(history: Sequence[dict[str, Any]]) -> float:
    """Return the rows of all mega-batches but two, over their time."""
    seconds = sum(row["train_s"] + row["merge_s"] for row in history[2:])
    return float((history[-1]["rows"] - history[1]["rows"]) / seconds)


def measure(seed: int, folder: Path) -> list[dict[str, Any]]:
    """Return a row for each algorithm."""
    train, small = (write_xml(folder / f"{s.labels}.txt", s, "train") for s in (ROWS, SMALL))
    rows: list[dict[str, Any]] = []
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        slow = sorted(client.run(os.getpid, nanny=False).items())[1][1]
        for name, (run_file, own) in ALGORITHMS.items():
            given = {**COMMON, **own, "run.seed": seed}
            with slowed(slow):
                history = daskxml.train(
                    run_file, client=client, train=train, overrides=given
                ).history
            simulated = daskxml.simulate(
                run_file, [1.0, SPEED], train=small, overrides=given,
                cost=CostModel(per_row_s=0.05 / 256, jitter=0.0), network=Network(message_s=0.0),
            )  # fmt: skip
            rows.append({
                "seed": seed, "algorithm": name, "rows a second": round(rows_per_s(history), 1),
                "predicted": round(rows_per_s(simulated.history), 1),
            })  # fmt: skip
    return rows


def ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each algorithm, its speed over Elastic SGD's of the same seed."""
    table = []
    for name in ALGORITHMS:
        found: dict[str, list[float]] = {"rows a second": [], "predicted": []}
        for row in rows:
            (base,) = (r for r in rows if (r["seed"], r["algorithm"]) == (row["seed"], "Elastic"))
            for key, values in found.items() if row["algorithm"] == name else ():
                values.append(row[key] / base[key])
        measured, predicted = (interval(values) for values in found.values())
        table.append({
            "algorithm": name, "seeds": len(found["predicted"]),
            "times Elastic": round(measured[0], 3), "+-": round(measured[1], 3),
            "predicted": round(predicted[0], 3), "error": round(predicted[0] / measured[0] - 1, 3),
        })  # fmt: skip
    return table


def main() -> None:
    """Measure the seeds that are asked for, and write all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    options = parser.parse_args()
    path = RESULTS / "real_clock.json"
    rows = json.loads(path.read_text())["runs"] if path.exists() else []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(seed, Path(folder))
        rows = [row for row in rows if row["seed"] != seed] + found
        write_result("real_clock", ratios(rows), speeds=[1.0, SPEED], runs=rows)


if __name__ == "__main__":
    main()
