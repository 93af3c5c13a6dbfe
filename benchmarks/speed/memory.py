"""Time and largest memory at the papers' full numbers of labels: networks, and label trees.

    python benchmarks/speed/memory.py [--megabatches 4] [--rows 50000]

Networks: four virtual workers of unequal speed train networks with one hidden layer of 128 units by
Adaptive and by Elastic SGD, on generated rows of Amazon-670k's and Delicious-200k's shapes. Virtual
time is that of `v100_cost`. Limits are 16 GiB and half an hour for all four on two cores; a process
that needs more memory fails. Writes ``results/full_size.json``.

Label trees: Amazon-670k's 135,909 features, 76 of them and 5.5 labels a row, and ``--rows`` of its
490,449 rows, on one thread. Generated labels are easier or harder to separate than real ones: the
growth of time and memory is what counts. What a run chooses on held-out rows is given instead, so
that all shapes are fitted alike. Writes ``results/tree_large.json``.

Each is measured in a process of its own; the files are written after each.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import daskxml
from daskxml import Matrices
from daskxml.api.in_process import simulate
from daskxml.config import load_run_config
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.local import read_rows
from daskxml.local.rows import prepared
from daskxml.local.trees import LocalTreeRun

BENCHMARKS = Path(__file__).parents[1]
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "quality")]

from machine import write_result
from trees import shape

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


def measure_network(shape: str, strategy: str, megabatches: int) -> dict[str, Any]:
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


BENCHMARKS = Path(__file__).parents[1]


TREE_LABELS = (200_000, 670_091)
FIT = {"model.cost": 0.4}


def measure_tree(labels: int, count: int) -> dict[str, Any]:
    """Train at one shape in this process."""
    train, test = generate(shape(labels, count))
    matrices = [Matrices(*map(to_scipy, (part.features, part.labels))) for part in (train, test)]
    config = load_run_config("tree", {"cluster.threads": 1, **FIT, "training.keep_best": False})
    before_mb = _peak_mb()
    rows = read_rows(config, 1, *matrices)
    begun_s = time.process_time()
    prepared(rows, config)
    tree_s = time.process_time() - begun_s
    events: list[Any] = []
    begun_s = time.process_time()
    model, _ = LocalTreeRun(config, rows, events.append).run()
    fit_s = time.process_time() - begun_s
    last = next(event["row"] for event in reversed(events) if event["kind"] == "megabatch")
    features = to_scipy(rows.test[0].features)
    begun_s = time.process_time()
    model.predict_top_k(features, k=5)
    ranked_per_s = features.shape[0] / (time.process_time() - begun_s)
    return {
        "labels": labels,
        "labels_with_rows": int(np.count_nonzero(rows.label_counts)),
        "rows": count,
        "label_tree_cpu_s": round(tree_s, 1),
        "fit_cpu_s": round(fit_s - last["eval_s"], 1),
        "P@1": round(last["metrics"]["P@1"], 4),
        "model_mb": round(sum(array.nbytes for array in model.parameters.values()) / 1e6, 1),
        "rows_mb": round(before_mb),
        "peak_mb": round(_peak_mb()),
        "ranked_per_s": round(ranked_per_s),
    }


def _peak_mb() -> float:
    """Return the largest memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(which: str, *arguments: object) -> dict[str, Any]:
    """Measure in a process of its own, whose largest memory counts."""
    command = [sys.executable, __file__, which, *map(str, arguments)]
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "NUMBA")}
    environment = os.environ | (threads if which == "--tree" else {})
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def main() -> None:
    """Measure every network and every tree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabatches", type=int, default=4)
    parser.add_argument("--rows", type=int, default=50_000, help="of a tree")
    parser.add_argument("--network", nargs=3, help="shape, strategy and mega-batches")
    parser.add_argument("--tree", nargs=2, type=int, help="labels and rows")
    options = parser.parse_args()
    if options.network:
        shape, strategy, megabatches = options.network
        print(json.dumps(measure_network(shape, strategy, int(megabatches))))
    elif options.tree:
        print(json.dumps(measure_tree(*options.tree)))
    else:
        found: list[dict[str, Any]] = []
        for shape, strategy in itertools.product(SHAPES, STRATEGIES):
            found.append(measured("--network", shape, strategy, options.megabatches))
            write_result("full_size", found, speeds=SPEEDS, load=os.getloadavg()[0])
        found = []
        for labels in TREE_LABELS:
            found.append(measured("--tree", labels, options.rows))
            write_result("tree_large", found)


if __name__ == "__main__":
    main()
