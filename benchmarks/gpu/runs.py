"""Whole runs with a GPU beside a CPU's, and label trees fitted and ranked on both.

    pip install '.[cuda12]'
    python benchmarks/gpu/runs.py FOLDER [--sets bibtex delicious] [--seeds 0 1 2]
    python benchmarks/gpu/runs.py FOLDER --trees [--sets nvd-product ...] [--parts kernels runs]

``FOLDER`` holds ``NAME.train.txt.gz`` and ``NAME.test.txt.gz``. Every run is one of `daskxml.train`
on a local cluster:

``one worker``   Adaptive SGD on the GPU with every seed, also over ucx, and on a CPU: P@1, rows/s
``mixed``        the GPU and a CPU worker side by side: shares of the rows, and of the speeds
``hogbatch``     CPU+GPU Hogbatch and Adaptive Hogbatch, the GPU beside a pool of two threads

With ``--own-cluster``, ``dask cuda worker`` with a pool of RMM and spilling on, and ``dask worker``
beside it: by the barrier, and by the quorum, with the CPU's worker frozen for ``--frozen`` seconds.

With ``--trees``, one tree of the run file ``tree``:

``kernels``      all nodes of a tree in one call, and a ranking of all test rows, on the GPU, on
                 one core, and the nodes on all cores; the same rows, order of labels and cost
``runs``         `daskxml.train` with one worker on the GPU, with one on a core, and with one on
                 each core: P@1, and seconds of fitting and merging

``--device cpu`` replaces the GPU by a CPU, to try this script, and writes no result. The result,
written after each run, is ``benchmarks/results/gpu_runs.json``, ``gpu_own_cluster.json`` or
``gpu_trees.json``; without a GPU the exit status is 2.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from distributed import Client

import daskxml
from daskxml.config import load_run_config
from daskxml.core.arrays import Partition, Segment
from daskxml.data.rows import to_scipy
from daskxml.kernels import Kernels, get_kernels
from daskxml.local.fit_run import prepare
from daskxml.local.rows import Rows, read_rows, share_rows
from daskxml.metrics import metric_sums
from daskxml.models.trees.clustering import order_of_tree
from daskxml.models.trees.forest import Forest, assemble_tree
from daskxml.models.trees.nodes import TreeRows, fit_blocks, plan_pieces
from daskxml.models.trees.spec import TreeShape
from device import random_rows, write_each

SETS, TREE_SETS = ("bibtex", "delicious"), ("nvd-product", "stackex4-2k", "made-up")
SEEDS = (0, 1, 2)
POOL_THREADS, LONG = 2, 2000  # batches of a long mega-batch
UCX = "ucx" if find_spec("distributed_ucxx") else "tcp"
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
    """Return shares of rows and speeds in all mega-batches but the first, if all took part."""
    rows: dict[str, float] = {}
    busy_s: dict[str, float] = {}
    for workers in (row["workers"] for row in run.history[1:]):
        for name, worker in workers.items() if all(w["rows"] for w in workers.values()) else ():
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
            for where in (device, "cpu")[: 1 + (seed == seeds[0])]:
                run = train(folder, data, "adaptive-sgd", seed, device=where, workers=1)
                yield row_of("one worker", data, where, run, seed=seed)
        run = train(folder, data, "adaptive-sgd", seeds[0], device=device, workers=1, protocol=UCX)
        yield row_of(f"one worker, {UCX}", data, device, run, seed=seeds[0])
        mixed: Mapping[str, Any] = {"device": "auto" if device == "cuda" else "cpu", "workers": 2}
        run = train(folder, data, "adaptive-sgd", seeds[0], **mixed)
        yield row_of("mixed", data, f"{device} + cpu", run, seed=seeds[0], **shares(run))
        for name in ("cpu-gpu-hogbatch", "adaptive-hogbatch"):
            pool = {"device": mixed["device"], "workers": 1, "pools": 1}
            run = train(folder, data, name, seeds[0], **pool, pool_threads=POOL_THREADS)
            yield row_of(name, data, f"{device} + pool", run, seed=seeds[0], **shares(run))


@contextmanager
def own_cluster(device: str) -> Iterator[tuple[Client, int]]:
    """Start a scheduler and two workers by Dask's commands; give a client, and the last's pid."""
    place = ["--host", "127.0.0.1"]
    pool = ["--rmm-pool-size", "0.3", "--set-rmm-allocator-for-libs", "cupy"]
    on_gpu = ["cuda", "worker", *pool, "--rmm-track-allocations", "--device-memory-limit", "0.5"]
    with TemporaryDirectory() as folder, ExitStack() as stack:
        address = f"{folder}/scheduler.json"

        def start(*words: str) -> int:
            command = [sys.executable, "-m", "dask", *words, "--scheduler-file", address, *place]
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=folder)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return process.pid

        start("scheduler", "--port", "0", "--no-dashboard")
        alone = ["--nthreads", "1", "--no-dashboard"]
        start(*(on_gpu if device == "cuda" else ["worker", *alone]), "--name", "gpu")
        pid = start("worker", *alone, "--no-nanny", "--name", "cpu")
        client = stack.enter_context(Client(scheduler_file=address, timeout=60))
        client.wait_for_workers(2, timeout=60)
        yield client, pid


def on_own_cluster(folder: Path, data: str, device: str, frozen_s: float) -> Iterator[Row]:
    """Train by the barrier, then by the quorum with the worker on the CPU frozen for a while."""
    files = {part: str(folder / f"{data}.{part}.txt.gz") for part in ("train", "test")}
    told, where = list[Any](), f"{device} + cpu"
    with own_cluster(device) as (client, pid):

        def freeze(row: Mapping[str, Any]) -> Any:
            told.append(row["wall_s"])
            if len(told) == 20:
                os.kill(pid, signal.SIGSTOP)
                threading.Timer(frozen_s, os.kill, (pid, signal.SIGCONT)).start()
            is_over = len(told) > 20 and told[-1] > told[19] + frozen_s + 5.0
            return daskxml.STOP if is_over else None

        common: dict[str, Any] = {"checkpoint.every": 0, "combine.quorum": 1.0}
        for batches, epochs in (("auto", 20), (LONG, 60)):
            common |= {"strategy.megabatch_batches": batches, "training.epochs": epochs}
            run = daskxml.train("adaptive-sgd", client=client, **files, overrides=common)
            yield row_of("own cluster, barrier", data, where, run, batches=batches, **shares(run))
        endless = {"training.epochs": 1_000_000, "evaluation.every": 1_000_000}
        run = daskxml.train("adaptive-sgd", client=client, **files, on_megabatch=freeze,
                            overrides={**common, **endless, "combine.quorum": 0.5})  # fmt: skip
        longest_s = max(after - before for before, after in pairwise(told))
        about = {"batches": LONG, "frozen_s": frozen_s, "longest_s": round(longest_s, 2)}
        yield row_of("own cluster, quorum", data, where, run, **about, **shares(run))


SLOTS, SEED, REPEATS = 4, 0, 3
MADE_UP = 100_000, 135_909, 200_000, 75, 5  # rows, features, labels, and of each in a row


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a call returns, and its seconds."""
    begun_s = time.perf_counter()
    found = call()
    return found, time.perf_counter() - begun_s


def tree_kernels(name: str, rows: Rows, kernels: Kernels, cores: int = 1) -> Row:
    """Fit and rank with one tree; on several cores, fit only."""
    (train,), (test,) = rows.train.parts, rows.test.parts
    spec, vectors = prepare(rows, load_run_config("tree"))
    labels, counts = spec.labels, rows.label_counts
    shape, order = TreeShape.of(spec), order_of_tree(vectors, spec, SEED, 0)
    pieces = plan_pieces(shape, counts[order], train.rows, max(SLOTS, cores))
    blocks = [block for piece in pieces for block in piece.blocks]
    tree_rows, rows_s = timed(lambda: TreeRows(kernels, train, order))
    if cores > 1:
        fit = partial(fit_blocks, tree_rows, spec, shape, seed=SEED, tree=0)
        with ThreadPoolExecutor(cores) as pool:
            _, fit_s = timed(lambda: [*pool.map(fit, [piece.blocks for piece in pieces])])
        return {"part": "kernels", "set": name, "device": f"{cores} cores", "workers": 1,
                "nodes": len(blocks), "fit_s": round(fit_s, 3)}  # fmt: skip
    fits_s, fitted = [], None
    for _ in range(REPEATS if kernels.name == "cuda" else 1):
        fitted, spent_s = timed(lambda: fit_blocks(tree_rows, spec, shape, blocks, SEED, 0))
        fits_s.append(spent_s)
    arrays = assemble_tree(order, list(zip(blocks, fitted, strict=True)))
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
        "passes": spec.passes, "nodes": len(blocks),
        "P@1": round(precision, 4), "weights": int(arrays["weights"].shape[0]),
        "rows_s": round(rows_s, 2),
        "first fit_s": round(fits_s[0], 3), "fit_s": round(min(fits_s), 3),
        "ranked rows/s": round(test.rows / min(rank_s)),
    }  # fmt: skip


def tree_run(folder: Path, name: str, device: str, workers: int) -> Row:
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


def tree_rows_of(
    folder: Path, sets: Sequence[str], parts: Sequence[str], device: str
) -> Iterator[Row]:
    """Measure one after the other, a GPU's first."""
    for name in sets:
        if "kernels" in parts:
            rows = load(folder, name)
            yield tree_kernels(name, rows, get_kernels(device, 1))
            yield tree_kernels(name, rows, get_kernels("cpu", 1), os.cpu_count() or 1)
            yield tree_kernels(name, rows, get_kernels("cpu", 1))
        if "runs" in parts and name != "made-up":
            for where, workers in ((device, 1), ("cpu", 1), ("cpu", os.cpu_count() or 1)):
                yield tree_run(folder, name, where, workers)


def main() -> int:
    """Make all runs and write what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of the data sets")
    parser.add_argument("--trees", action="store_true", help="label trees, not networks")
    parser.add_argument("--sets", nargs="+", help="default: two for networks, three for trees")
    parser.add_argument("--parts", nargs="+", default=["kernels", "runs"], help="of --trees")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--own-cluster", action="store_true", help="workers by Dask's commands")
    parser.add_argument("--frozen", type=float, default=60.0, help="seconds, of a worker")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    folder, device = options.folder, options.device
    sets = options.sets or (TREE_SETS if options.trees else SETS)
    if options.trees:
        return write_each("gpu_trees", tree_rows_of(folder, sets, options.parts, device), device)
    if options.own_cluster:
        rows = on_own_cluster(folder, sets[0], device, options.frozen)
        return write_each("gpu_own_cluster", rows, device)
    return write_each("gpu_runs", all_rows(folder, sets, options.seeds, device), device)


if __name__ == "__main__":
    sys.exit(main())
