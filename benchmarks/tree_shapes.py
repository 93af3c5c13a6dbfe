"""Label trees of several shapes: accuracy on held-out rows, and the seconds of training.

    python benchmarks/tree_shapes.py FOLDER [--sets stackex4-2k,nvd-product] [--seeds 0,1,2]

``FOLDER`` holds ``NAME.train.txt.gz``. The run file ``tree`` is trained with one thread on nine
tenths of the training rows and scored on the others, with each shape and seed; a row of the result
is the mean over the seeds, and the least and the largest P@1. Writes ``results/tree_shapes.json``
and ``results/tree_shapes.md`` after every shape.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from daskxml.config import load_run_config
from daskxml.data.rows import concatenate
from daskxml.local import read_rows
from daskxml.local.run import InProcessRun
from machine import RESULTS, write_result
from trees import SETS

SHAPES = ((32, 200), (256, 200), (256, 400), (256, 800))  # branching, labels of a leaf's parent
KS = (1, 3, 5)
Row = dict[str, Any]


def measure(path: Path, branching: int, leaf_labels: int, seed: int) -> Row:
    """Train one tree; return its scores on the rows held out, and what it took."""
    given = {"cluster.threads": 1, "data.train": [str(path)], "data.validation": 0.1}
    shape = {"model.branching": branching, "model.leaf_labels": leaf_labels, "run.seed": seed}
    rows = read_rows(config := load_run_config("tree", {**given, **shape}), 1)
    begun_s = time.process_time()
    model, _ = InProcessRun(config, rows, lambda event: None).run()
    cpu_s = time.process_time() - begun_s
    found = model.evaluate(concatenate(rows.test))
    children = [1 << bits for bits in model.spec.level_bits]
    scores = {f"P@{k}": found[f"P@{k}"] for k in KS}
    return {"children": children, "solver": model.spec.solver, **scores, "cpu_s": cpu_s}


def summary(runs: Sequence[Row]) -> Row:
    """Return the means over seeds, and the spread of P@1."""
    means = {key: statistics.mean(run[key] for run in runs) for key in ("P@1", "P@3", "P@5")}
    spread = [run["P@1"] for run in runs]
    return {
        "levels": " x ".join(map(str, runs[0]["children"])) or "-",
        "solver": ", ".join(sorted({run["solver"] for run in runs})),
        **{key: round(mean, 4) for key, mean in means.items()},
        "least P@1": round(min(spread), 4),
        "largest P@1": round(max(spread), 4),
        "cpu_s": round(statistics.median(run["cpu_s"] for run in runs), 2),
    }


def write(rows: Sequence[Row], seeds: Sequence[int]) -> None:
    """Write both results."""
    write_result("tree_shapes", rows, seeds=seeds, load=os.getloadavg()[0])
    lines = [
        "# Shapes of label trees",
        "",
        "Written by `python benchmarks/tree_shapes.py`: one tree, scored on a tenth of the",
        f"training rows that it has not seen; means of {len(seeds)} seeds, least and largest P@1,",
        "and the median of the CPU seconds of training. Machine, commit and load in",
        "`tree_shapes.json`.",
        "",
        "| data | branching | leaf_labels | levels above the leaves' parents | solver | P@1 "
        "| least | largest | P@3 | P@5 | training, CPU s |",
        "|---|---:|---:|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {r['data']} | {r['branching']} | {r['leaf_labels']} | {r['levels']} | {r['solver']} "
        f"| {r['P@1']:.4f} | {r['least P@1']:.4f} | {r['largest P@1']:.4f} | {r['P@3']:.4f} "
        f"| {r['P@5']:.4f} | {r['cpu_s']:.2f} |"
        for r in rows
    ]
    (RESULTS / "tree_shapes.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


def main() -> None:
    """Measure every shape on every set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--seeds", default="0,1,2")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    rows: list[Row] = []
    for name in options.sets.split(","):
        path = options.folder / f"{name}.train.txt.gz"
        measure(path, *SHAPES[0], seeds[0])  # compiles
        for shape in SHAPES:
            runs = [measure(path, *shape, seed) for seed in seeds]
            named = {"data": name, "branching": shape[0], "leaf_labels": shape[1]}
            rows.append({**named, **summary(runs)})
            write(rows, seeds)


if __name__ == "__main__":
    main()
