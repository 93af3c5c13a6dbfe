"""Whole runs with a GPU: what they reach beside a CPU's, and how a GPU and a CPU share the rows.

    pip install '.[cuda12]'
    python benchmarks/gpu/runs.py FOLDER [--sets bibtex delicious] [--seeds 0 1 2]

``FOLDER`` holds ``NAME.train.txt.gz`` and ``NAME.test.txt.gz``. Every run is one of `daskxml.train`
on a local cluster:

``one worker``   Adaptive SGD on the GPU and on a CPU, each with every seed: P@1, rows a second
``mixed``        the GPU and a CPU worker side by side: shares of the rows, and of the speeds
``hogbatch``     CPU+GPU Hogbatch and Adaptive Hogbatch, the GPU beside a pool of two threads

``--device cpu`` lets CPU workers take the GPU's place, which tries this script out and writes no
result. The result, written anew after each run, is ``benchmarks/results/gpu_runs.json``; without a
GPU it says so in a line and ends with status 2.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import daskxml
from row_by_row import write_each

SEEDS = (0, 1, 2)
POOL_THREADS = 2
Row = dict[str, Any]


def train(folder: Path, data: str, run_file: str, seed: int, **cluster: Any) -> daskxml.Run:
    """Train with a run file as it is, but for the seed and the cluster."""
    overrides = {"run.seed": seed, "checkpoint.every": 0}
    overrides |= {f"cluster.{name}": value for name, value in cluster.items()}
    files = {part: str(folder / f"{data}.{part}.txt.gz") for part in ("train", "test")}
    return daskxml.train(run_file, **files, overrides=overrides)


def row_of(part: str, data: str, device: str, run: daskxml.Run, **more: Any) -> Row:
    """Return what a run reached, and how fast it was after its first mega-batch."""
    later = run.history[1:] or run.history
    rows = later[-1]["rows"] - (run.history[0]["rows"] if len(run.history) > 1 else 0)
    spent_s = sum(row["train_s"] + row["merge_s"] for row in later)
    return {
        "part": part,
        "set": data,
        "device": device,
        "P@1": round(run.metrics["P@1"], 4),
        "rows/s": round(rows / spent_s),
        **more,
    }


def shares(run: daskxml.Run) -> Row:
    """Return each worker's share of the rows and of the speeds, after the first mega-batch."""
    rows: dict[str, float] = {}
    busy_s: dict[str, float] = {}
    for megabatch in run.history[1:]:
        for name, worker in megabatch["workers"].items():
            rows[name] = rows.get(name, 0.0) + worker["rows"]
            busy_s[name] = busy_s.get(name, 0.0) + worker["busy_s"]
    speeds = {name: rows[name] / busy_s[name] for name in rows if busy_s[name]}
    return {
        f"{what} of {name}": round(values[name] / sum(values.values()), 4)
        for name in speeds
        for what, values in (("rows", rows), ("speed", speeds))
    }


def all_rows(folder: Path, sets: Sequence[str], seeds: Sequence[int], device: str) -> Iterator[Row]:
    """Make the runs, one after the other."""
    for data in sets:
        for seed in seeds:
            for where in (device, "cpu"):
                run = train(folder, data, "adaptive-sgd", seed, device=where, workers=1)
                yield row_of("one worker", data, where, run, seed=seed)
        mixed: Mapping[str, Any] = {"device": "auto" if device == "cuda" else "cpu", "workers": 2}
        run = train(folder, data, "adaptive-sgd", seeds[0], **mixed)
        yield row_of("mixed", data, f"{device} + cpu", run, seed=seeds[0], **shares(run))
        for name in ("cpu-gpu-hogbatch", "adaptive-hogbatch"):
            pool = {"device": mixed["device"], "workers": 1, "pools": 1}
            run = train(folder, data, name, seeds[0], **pool, pool_threads=POOL_THREADS)
            yield row_of(name, data, f"{device} + pool", run, seed=seeds[0], **shares(run))


def main() -> int:
    """Make all runs and write what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of the data sets")
    parser.add_argument("--sets", nargs="+", default=["bibtex", "delicious"])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    rows = all_rows(options.folder, options.sets, options.seeds, options.device)
    return write_each("gpu_runs", rows, options.device)


if __name__ == "__main__":
    sys.exit(main())
