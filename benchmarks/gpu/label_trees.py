"""Label trees with a GPU: fitting and ranking beside a CPU's cores, kernels alone and whole runs.

    pip install '.[cuda12]'
    python benchmarks/gpu/label_trees.py FOLDER [--sets nvd-product ...] [--parts kernels runs]

``FOLDER`` holds ``NAME.train.txt.gz`` and ``NAME.test.txt.gz``. One tree of the run file ``tree``:

``kernels``  all nodes of a tree in one call, and a ranking of all test rows, on the GPU and on one
             core; the same rows, order of labels and solver
``runs``     `daskxml.train` with one worker on the GPU, with one on a core, and with one on each
             core: P@1, and seconds of fitting and merging

``--device cpu`` lets a core take the GPU's place, which tries this script out and writes no result.
The result, written anew after each row, is ``benchmarks/results/gpu_trees.json``; without a GPU it
says so in a line and ends with status 2.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import daskxml
from daskxml.config import load_run_config
from daskxml.core.arrays import Partition, Segment
from daskxml.data.rows import to_scipy
from daskxml.kernels import Kernels, get_kernels
from daskxml.local.rows import Rows, read_rows, share_rows
from daskxml.metrics import metric_sums
from daskxml.models.trees.forest import Forest, assemble_tree
from daskxml.models.trees.nodes import TreeRows, fit_blocks, plan_pieces
from daskxml.models.trees.shape import TreeShape
from made_up import random_rows
from row_by_row import write_each

PIECES, SEED, REPEATS = 64, 0, 3
MADE_UP = 100_000, 135_909, 200_000, 75, 5  # rows, features, labels, and of each in a row
Row = dict[str, Any]


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a call returns, and its seconds."""
    begun_s = time.perf_counter()
    found = call()
    return found, time.perf_counter() - begun_s


def kernel_row(name: str, rows: Rows, kernels: Kernels) -> Row:
    """Fit and rank with one tree."""
    (train,), (test,), spec, orders = rows.train, rows.test, rows.tree_spec, rows.label_orders
    labels, counts = spec.labels, rows.label_counts
    shape, order = TreeShape.of(spec), orders[0]
    pieces = plan_pieces(shape, counts[order], train.rows, PIECES)
    blocks = [block for piece in pieces for block in piece]
    tree_rows, rows_s = timed(lambda: TreeRows(kernels, train, order))
    fit_s, fitted = [], None
    for _ in range(REPEATS if kernels.name == "cuda" else 1):
        fitted, spent_s = timed(lambda: fit_blocks(tree_rows, spec, shape, blocks, SEED, 0))
        fit_s.append(spent_s)
    arrays = assemble_tree(order, shape, list(zip(blocks, fitted, strict=True)))
    forest = Forest(spec, {f"tree0.{n}": array for n, array in arrays.items()}, kernels)
    there = kernels.to_device(Partition(test.features, test.labels))
    segment = Segment(there, kernels.to_device(np.arange(test.rows)))
    rank_s = []
    for _ in range(REPEATS):
        (ids, _), spent_s = timed(lambda: forest.top_k([segment], 5))
        rank_s.append(spent_s)
    precision = metric_sums(ids, test.labels, np.ones(labels), (1,)).result()["P@1"]
    return {
        "part": "kernels", "set": name, "device": kernels.name, "workers": 1,
        "solver": f"{spec.solver} {spec.passes}", "nodes": len(blocks),
        "P@1": round(precision, 4), "weights": int(arrays["weights"].shape[0]),
        "rows_s": round(rows_s, 2),
        "first fit_s": round(fit_s[0], 3), "fit_s": round(min(fit_s), 3),
        "ranked rows/s": round(test.rows / min(rank_s)),
    }  # fmt: skip


def run_row(folder: Path, name: str, device: str, workers: int) -> Row:
    """Train one tree with a run file as it is, but for the cluster."""
    files = {part: str(folder / f"{name}.{part}.txt.gz") for part in ("train", "test")}
    overrides = {"cluster.device": device, "cluster.workers": workers, "checkpoint.every": 0}
    run, whole_s = timed(lambda: daskxml.train("tree", **files, overrides=overrides))
    spent_s = sum(row["train_s"] + row["merge_s"] for row in run.history)
    return {
        "part": "runs", "set": name, "device": device, "workers": workers,
        "P@1": round(run.metrics["P@1"], 4), "fit_s": round(spent_s, 2),
        "whole_s": round(whole_s, 2),
    }  # fmt: skip


def load(folder: Path, name: str) -> Rows:
    """Return a set's rows, in one partition; of the shape ``made-up``, random ones."""
    if name != "made-up":
        paths = {part: folder / f"{name}.{part}.txt.gz" for part in ("train", "test")}
        config = load_run_config("tree", [f"data.{part}={path}" for part, path in paths.items()])
        return share_rows(read_rows(config, workers=1))
    whole = random_rows(np.random.default_rng(SEED), *MADE_UP)
    x, y = to_scipy(whole.features), to_scipy(whole.labels)
    held = x.shape[0] // 20
    train, test = daskxml.Matrices(x[held:], y[held:]), daskxml.Matrices(x[:held], y[:held])
    return share_rows(read_rows(load_run_config("tree"), 1, train, test))


def all_rows(folder: Path, sets: Sequence[str], parts: Sequence[str], device: str) -> Iterator[Row]:
    """Measure one after the other, a GPU's first."""
    for name in sets:
        if "kernels" in parts:
            rows = load(folder, name)
            for where in (device, "cpu"):
                yield kernel_row(name, rows, get_kernels(where, 1))
        if "runs" in parts and name != "made-up":
            for where, workers in ((device, 1), ("cpu", 1), ("cpu", os.cpu_count() or 1)):
                yield run_row(folder, name, where, workers)


def main() -> int:
    """Measure everything and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of the data sets")
    parser.add_argument("--sets", nargs="+", default=["nvd-product", "stackex4-2k", "made-up"])
    parser.add_argument("--parts", nargs="+", default=["kernels", "runs"])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    rows = all_rows(options.folder, options.sets, options.parts, options.device)
    return write_each("gpu_trees", rows, options.device)


if __name__ == "__main__":
    sys.exit(main())
