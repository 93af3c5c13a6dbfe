"""Amazon-670k's and Delicious-200k's shapes at their full numbers of labels, in the simulator.

    python benchmarks/speed/full_size.py [--shapes amazon-670k,delicious-200k] [--megabatches 4]

Four virtual workers of unequal speed train networks with one hidden layer of 128 units by Adaptive
and by Elastic SGD, on generated rows: the papers' sizes in features, labels, features and labels a
row, but fewer rows. Virtual time is that of `v100_cost`. Each run is a process of its own; told are
its virtual seconds, its own, and its largest memory. The budget is 16 GiB and half an hour for all
four on two cores; a process that needs more memory fails. Writes ``results/full_size.json`` after
every run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import daskxml
from daskxml.api.simulate import simulate
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import write_result

SHAPES = {
    "amazon-670k": SyntheticSpec(
        rows=4000, test_rows=500, features=135_909, labels=670_091, features_per_row=76,
        labels_per_row=5.5, flatness=50,
    ),
    "delicious-200k": SyntheticSpec(
        rows=4000, test_rows=500, features=782_585, labels=205_443, features_per_row=302,
        labels_per_row=75.5, flatness=50,
    ),
}  # fmt: skip
STRATEGIES = ("adaptive-sgd", "elastic")
SPEEDS = (1.0, 0.9, 0.8, 0.7)
BATCH, BATCHES = 256, 8  # of a mega-batch
MEMORY_GIB, GIB = 16, 1 << 30


def measure(shape: str, strategy: str, megabatches: int) -> dict[str, Any]:
    """Simulate one run in this process."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_GIB * GIB, MEMORY_GIB * GIB))
    spec = SHAPES[shape]
    parts = dict(zip(("train", "test"), generate(spec), strict=True))
    rows = {
        name: daskxml.Matrices(to_scipy(part.features), to_scipy(part.labels))
        for name, part in parts.items()
    }
    begun_s = time.perf_counter()
    run = simulate(
        strategy, SPEEDS, **rows,
        overrides={
            "model.hidden": [128], "strategy.batch_max": BATCH, "strategy.lr": 0.5,
            "strategy.megabatch_batches": BATCHES, "training.megabatches": megabatches,
            "evaluation.every": megabatches, "checkpoint.every": 10**6, "training.keep_best": False,
        },
    )  # fmt: skip
    last = run.history[-1]
    return {
        "shape": shape, "strategy": strategy, "labels": spec.labels, "features": spec.features,
        "parameters": sum(array.size for array in run.model.parameters.values()),
        "workers": len(SPEEDS), "rows": last["rows"], "P@1": round(run.metrics["P@1"], 4),
        "virtual_s": round(last["wall_s"], 2), "merge_s": round(last["merge_s"], 3),
        "seconds": round(time.perf_counter() - begun_s),
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20), 1),
    }  # fmt: skip


def main() -> None:
    """Measure every shape by every strategy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--megabatches", type=int, default=4)
    parser.add_argument("--one", nargs=2, help="a shape and a strategy to measure here")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one, options.megabatches)))
        return
    found = []
    for shape in options.shapes.split(","):
        for strategy in STRATEGIES:
            command = [sys.executable, __file__, "--megabatches", str(options.megabatches)]
            done = subprocess.run(
                [*command, "--one", shape, strategy], capture_output=True, text=True
            )
            if done.returncode:
                raise SystemExit(done.stderr[-2000:])
            found.append(json.loads(done.stdout.splitlines()[-1]))
            write_result("full_size", found, speeds=SPEEDS, load=os.getloadavg()[0])


if __name__ == "__main__":
    main()
