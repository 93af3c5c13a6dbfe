"""Dispatch: are unequal workers busy, and do the rows split by their speeds?

Four real workers whose batches are sleeps of 5 ms, at speeds 1, 1, 0.5 and 0.25, run Adaptive SGD
through the real runtime. Reported for each mega-batch: the share of the time between merges that
the workers were busy, the largest deviation of a worker's share of the rows from its share of the
speed, leases a second, and the floor: the time that a perfect split would have taken.

    python benchmarks/dispatch.py [--megabatch-batches 1000] [--megabatches 6]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster, Worker
from machine import write_result

import daskxml
from daskxml.data.synthetic import SyntheticSpec, write_xml

SPEEDS = (1.0, 1.0, 0.5, 0.25)
BATCH_S = 0.005
BATCH_ROWS = 64


def sleep_through_batches(speeds: dict[str, float], dask_worker: Worker) -> None:
    """On a worker: let a step be a sleep, as long as the worker's speed asks for."""
    from daskxml.training.replica import Replica, StepResult

    pause_s = BATCH_S / speeds[str(dask_worker.name)]
    overslept_s = 0.0  # a sleep is too long, by more of a short one: the next makes up for it

    def step(self: Replica, batch: Any, lr: float, key: int) -> StepResult:
        nonlocal overslept_s
        rows = sum(len(segment.rows) for segment in batch)
        wanted_s = max(0.0, pause_s * rows / BATCH_ROWS - overslept_s)
        begun_s = time.perf_counter()
        time.sleep(wanted_s)
        overslept_s = time.perf_counter() - begun_s - wanted_s
        return StepResult(loss=0.0, rows=rows, nonzeros=rows, seen=0)

    Replica.step = step  # type: ignore[method-assign]


def run(megabatch_batches: int, megabatches: int) -> list[dict[str, Any]]:
    """Return the history of a run on sleeping workers."""
    spec = SyntheticSpec(rows=5000, features=200, labels=50, seed=1)
    settings = {
        "strategy": {
            "batch_max": BATCH_ROWS,
            "batch_min": BATCH_ROWS,
            "megabatch_batches": megabatch_batches,
        },
        "training": {"megabatches": megabatches},
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        path = write_xml(Path(folder) / "train.txt", spec, "train")
        speeds = {str(i): speed for i, speed in enumerate(SPEEDS)}
        client.run(sleep_through_batches, speeds)
        return daskxml.train(settings, client=client, train=path).history


def describe(row: dict[str, Any]) -> dict[str, float]:
    """Return one mega-batch's figures."""
    workers = row["workers"]
    rows = sum(worker["rows"] for worker in workers.values())
    share = {str(i): speed / sum(SPEEDS) for i, speed in enumerate(SPEEDS)}
    deviations = [abs(w["rows"] / rows / share[name] - 1.0) for name, w in workers.items()]
    leases = sum(len(worker["leases"]) for worker in workers.values())
    busy_s = sum(worker["busy_s"] for worker in workers.values())
    return {
        "megabatch": row["megabatch"],
        "busy_share": busy_s / (len(workers) * row["train_s"]),
        "worst_deviation": max(deviations),
        "leases_per_s": leases / row["train_s"],
        "train_s": row["train_s"],
        "perfect_s": rows / BATCH_ROWS * BATCH_S / sum(SPEEDS),
        "merge_s": row["merge_s"],
    }


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabatch-batches", type=int, default=1000)
    parser.add_argument("--megabatches", type=int, default=6)
    options = parser.parse_args()
    rows = [describe(row) for row in run(options.megabatch_batches, options.megabatches)]
    steady = rows[1:]  # nothing is measured yet in the first
    median = {key: statistics.median(row[key] for row in steady) for key in rows[0]}
    write_result("dispatch", [*rows, {**median, "megabatch": "median"}], speeds=SPEEDS)


if __name__ == "__main__":
    main()
