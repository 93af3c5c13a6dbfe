"""Label trees at many labels: time, memory and size, on generated rows of Amazon-670k's shape.

    python benchmarks/speed/tree_large.py [--shapes 200000,670091] [--rows 50000]

135,909 features, 76 of them and 5.5 labels a row, as Amazon-670k has; that has 490,449 training
rows, of which ``--rows`` are made. Generated labels are easier or harder to tell apart than real
ones: what counts is how time and memory grow. Each shape is trained by the run file ``tree`` on one
thread, in a process of its own, whose largest memory is told. What is chosen on held-out rows is
given instead, so that all shapes are fitted alike. Writes ``results/tree_large.json`` after every
shape.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from daskxml import Matrices
from daskxml.config import load_run_config
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import generate
from daskxml.local import read_rows
from daskxml.local.rows import prepared
from daskxml.local.run import LocalRun

BENCHMARKS = Path(__file__).parents[1]
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "quality")]

from machine import write_result
from trees import shape

FIT = {"model.solver": "sgd", "model.passes": 4, "model.lr": 0.5, "model.cost": 0.4}


def measure(labels: int, count: int) -> dict[str, Any]:
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
    model, _ = LocalRun(config, rows, events.append).run()
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


def main() -> None:
    """Measure each shape in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="200000,670091")
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--one", type=int, help="measure this shape here, and print it")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.rows)))
        return
    found = []
    for labels in options.shapes.split(","):
        command = [sys.executable, __file__, "--rows", str(options.rows), "--one", labels]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        write_result("tree_large", found)


if __name__ == "__main__":
    main()
