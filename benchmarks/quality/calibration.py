"""Does the simulator predict a real run? Two local workers, one of them slowed down.

A process is slowed down by stopping it for a part of every few milliseconds (SIGSTOP, SIGCONT). A
real run's history is fitted (``daskxml simulate --calibrate``), the same run is simulated with the
fitted costs, speeds and message times, and the times of its mega-batches are compared. Elastic SGD
is also predicted from the fit of Adaptive SGD, without a fit of its own.

    python benchmarks/quality/calibration.py [--megabatches 30]
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

import numpy as np
from distributed import Client, LocalCluster

import daskxml
from daskxml.api.simulate import simulate
from daskxml.data.synthetic import SyntheticSpec, write_xml
from daskxml.local.calibration import Fitted, fit_run
from daskxml.records.run_dir import read_history

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import write_result

ROWS = SyntheticSpec(rows=24_000, test_rows=1_000, features=5_000, labels=2_000, seed=3)
PERIOD_S, STOPPED = 0.01, 0.4  # of every ten milliseconds the slow worker gets six
MOST_ERROR = 0.10


def run_file(strategy: str, megabatches: int) -> dict[str, Any]:
    return {
        "run": {"name": f"calibration-{strategy}"},
        "model": {"hidden": [64]},
        "strategy": {"name": strategy, "batch_max": 128, "megabatch_batches": 150, "lr": 0.2},
        "training": {"megabatches": megabatches},
        "evaluation": {"every": 1000},
        "checkpoint": {"every": 0},
        "cluster": {"threads": 1},
    }


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """Stop a process for a part of every period."""
    over = threading.Event()

    def pulse() -> None:
        while not over.wait(PERIOD_S * (1.0 - STOPPED)):
            os.kill(pid, signal.SIGSTOP)
            over.wait(PERIOD_S * STOPPED)
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=pulse)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def real_runs(folder: Path, strategies: Sequence[str], megabatches: int) -> dict[str, Path]:
    """Train with each strategy on two workers, the second of them slowed."""
    files = {part: write_xml(folder / f"{part}.txt", ROWS, part) for part in ("train", "test")}
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
        ) as cluster,
        Client(cluster) as client,
    ):
        pids, runs = client.run(os.getpid), {}
        slow = pids[cluster.workers[1].worker_address]
        with slowed(slow):
            for strategy in strategies:
                values, runs[strategy] = run_file(strategy, megabatches), folder / strategy
                daskxml.train(values, client=client, **files, out=runs[strategy])
    return runs


def times_s(history: Sequence[Mapping[str, Any]], skipped: int) -> np.ndarray:
    return np.array([row["train_s"] + row["merge_s"] for row in history[skipped:]])


def predicted(run_dir: Path, fitted: Fitted) -> Sequence[Mapping[str, Any]]:
    """Simulate a real run again, with fitted costs."""
    return simulate(
        run_dir / "run.toml", fitted.speeds, cost=fitted.cost, network=fitted.network
    ).history


def compare(run_dir: Path, fitted: Fitted, fitted_on: str) -> dict[str, Any]:
    """Compare a real run's mega-batches with the predicted ones."""
    found = times_s(read_history(run_dir / "history.jsonl"), fitted.skipped)
    expected = times_s(predicted(run_dir, fitted), fitted.skipped)
    return {
        "run": run_dir.name,
        "fitted on": fitted_on,
        "mega-batches": len(found),
        "real_s": float(found.sum()),
        "predicted_s": float(expected.sum()),
        "total_error": float(abs(expected.sum() / found.sum() - 1.0)),
        "median_real_s": float(np.median(found)),
        "median_predicted_s": float(np.median(expected)),
        "median_error": float(abs(np.median(expected) / np.median(found) - 1.0)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabatches", type=int, default=30)
    options = parser.parse_args()
    strategies = ("adaptive-sgd", "elastic", "mirrored")
    with tempfile.TemporaryDirectory() as folder:
        runs = real_runs(Path(folder), strategies, options.megabatches)
        fits = {name: fit_run(path) for name, path in runs.items()}
        pairs = [*zip(strategies, strategies, strict=True), ("elastic", "adaptive-sgd")]
        rows = [compare(runs[name], fits[source], source) for name, source in pairs]
    lines = {name: fitted.lines() for name, fitted in fits.items()}
    write_result("calibration", rows, fitted=lines, slow_worker={"stopped": STOPPED})
    worst = max(max(row["total_error"], row["median_error"]) for row in rows[:1])
    print(f"Adaptive SGD is predicted within {worst:.1%}; wanted: {MOST_ERROR:.0%}")


if __name__ == "__main__":
    main()
