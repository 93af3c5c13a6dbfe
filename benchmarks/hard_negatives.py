"""Two label trees with hard negatives in the second one, and without: accuracy on held-out rows.

    python benchmarks/hard_negatives.py FOLDER [--sets stackex4-2k,nvd-product] [--counts 0,5,20]

One thread, a tenth of the training rows held out. Writes ``results/hard_negatives.json``.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from daskxml.config import load_run_config
from daskxml.core.arrays import Segment
from daskxml.data.rows import concatenate
from daskxml.kernels import get_kernels
from daskxml.local import read_rows
from daskxml.local.run import InProcessRun
from daskxml.metrics import metric_sums
from daskxml.models.trees.forest import Forest
from machine import write_result

KS = (1, 3, 5)


def measure(path: Path, count: int) -> dict[str, Any]:
    """Train two trees; score both together, and the second one alone."""
    given = {"cluster.threads": 1, "data.train": [str(path)], "data.validation": 0.1}
    given |= {"training.keep_best": False, "training.epochs": 2, "evaluation.every": 2}
    config = load_run_config("tree", {**given, "model.hard_negatives": count})
    rows = read_rows(config, 1)
    begun_s = time.process_time()
    model, _ = InProcessRun(config, rows, lambda event: None).run()
    fit_s = time.process_time() - begun_s
    held, kernels = concatenate(rows.test), get_kernels("cpu", 1)
    second = {
        name.replace("tree1.", "tree0."): array
        for name, array in model.parameters.items()
        if name.startswith("tree1.")
    }
    found: dict[str, Any] = {"hard_negatives": count}
    for what, arrays in (("both", model.parameters), ("second", second)):
        forest = Forest(model.spec, arrays, kernels)
        ids, _ = forest.top_k([Segment(held, np.arange(held.rows))], KS[-1])
        result = metric_sums(ids, held.labels, np.ones(held.labels.columns), KS).result()
        found |= {f"{what} P@{k}": round(result[f"P@{k}"], 4) for k in KS}
    return found | {"fit_cpu_s": round(fit_s, 1)}


def main() -> None:
    """Measure every set with every number."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default="stackex4-2k,nvd-product")
    parser.add_argument("--counts", default="0,5,20")
    options = parser.parse_args()
    rows = []
    for name in options.sets.split(","):
        for count in map(int, options.counts.split(",")):
            rows.append({"data": name, **measure(options.folder / f"{name}.train.txt.gz", count)})
            write_result("hard_negatives", rows)


if __name__ == "__main__":
    main()
