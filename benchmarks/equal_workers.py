"""Batch sizes of two equal real workers over 200 mega-batches: they have no reason to differ.

    python benchmarks/equal_workers.py FOLDER

``FOLDER`` holds the training and test files of bibtex and delicious. Adaptive SGD with its default
rule on a local cluster of two processes; sizes are shares of ``batch_max``. On two cores the
scheduler and the client take their time from the workers, which so are not quite equal.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import daskxml
from machine import write_result

MEGABATCHES = 200
SETS = {"bibtex": (64, 100), "delicious": (256, 40)}  # batch_max, and batches of a mega-batch


def measured(data: str, folder: Path, seed: int) -> list[dict[str, Any]]:
    """Train, and return a row for each worker."""
    batch_max, batches = SETS[data]
    settings = {
        "run.seed": seed,
        "training.megabatches": MEGABATCHES,
        "training.epochs": 0,
        "strategy.batch_max": batch_max,
        "strategy.megabatch_batches": batches,
        "evaluation.every": 50,
    }
    train, test = (folder / f"{data}.{part}.txt.gz" for part in ("train", "test"))
    run = daskxml.train("adaptive-sgd", train=train, test=test, workers=2, overrides=settings)
    rows = []
    for name in sorted(run.history[0]["workers"]):
        did = [row["workers"][name] for row in run.history]
        shares = [it["batch_rows"] / batch_max for it in did]
        seconds = [it["busy_s"] / it["updates"] for it in did if it["updates"]]
        rows.append(
            {
                "data": data, "seed": seed, "worker": name, "smallest": min(shares),
                "mean": statistics.mean(shares), "last": shares[-1],
                "batch_ms": 1e3 * statistics.median(seconds),
                "batch_ms_spread": statistics.stdev(seconds) / statistics.mean(seconds),
            }
        )  # fmt: skip
    return [{name: _short(value) for name, value in row.items()} for row in rows]


def _short(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="with the files of the sets")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each set")
    chosen = parser.parse_args()
    rows = [
        row
        for data in SETS for seed in range(chosen.seeds)
        for row in measured(data, chosen.folder, seed)
    ]  # fmt: skip
    write_result("equal_workers", rows, megabatches=MEGABATCHES)


if __name__ == "__main__":
    main()
