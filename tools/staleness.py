"""P@1 of asynchronous SGD by workers and rate: how stale gradients may be.

    python tools/staleness.py FOLDER [--seeds 5]

simulates the run file ``asynchronous`` on bibtex with equal workers, 60 epochs: while a worker
computes a gradient, each of the others changes the model once. Of each number of workers and rate:
P@1 at the end, and the largest fall from one evaluation to the next in the second half of a run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import daskxml
from daskxml.config import load_run_config

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from machine import write_result

WORKERS, RATES, EPOCHS = (2, 4, 6, 8, 12), (1.0, 0.5), 60


def main() -> None:
    """Simulate, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="with bibtex.train.txt.gz")
    parser.add_argument("--seeds", type=int, default=5)
    chosen = parser.parse_args()
    rows = []
    for rate in RATES:
        for workers in WORKERS:
            runs = [_precisions(chosen.folder, workers, rate, seed) for seed in range(chosen.seeds)]
            ends = [run[-1] for run in runs]
            late = [pairwise(run[len(run) // 2 :]) for run in runs]
            falls = [before - after for pairs in late for before, after in pairs]
            row = {"workers": workers, "rate": rate, "seeds": chosen.seeds}
            row |= {"P@1": statistics.mean(ends), "least": min(ends), "most": max(ends)}
            rows.append(row | {"largest fall": max(falls)})
            write_result("staleness", rows)


def _precisions(folder: Path, workers: int, rate: float, seed: int) -> list[float]:
    given = {"strategy.lr": rate, "run.seed": seed, "training.epochs": EPOCHS}
    config = load_run_config("asynchronous", given)
    train, test = (folder / f"bibtex.{part}.txt.gz" for part in ("train", "test"))
    with tempfile.TemporaryDirectory() as out:
        run = daskxml.simulate(config, [1.0] * workers, train=train, test=test, out=f"{out}/run")
    return [row["metrics"]["P@1"] for row in run.history if row["metrics"]]


if __name__ == "__main__":
    main()
