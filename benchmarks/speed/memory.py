"""Time and largest memory at the papers' full numbers of labels: networks, and label trees.

    python benchmarks/speed/memory.py
    python benchmarks/speed/memory.py --trees FOLDER [--real]

Networks: four virtual workers of unequal speed train networks with one hidden layer of 128 units by
Adaptive and by Elastic SGD, on generated rows of Amazon-670k's and Delicious-200k's shapes. Virtual
time is that of `v100_cost`. Limits are 16 GiB and half an hour for all four on two cores; a process
that needs more memory fails. Writes ``results/full_size.json``.

Label trees, on one thread: how time and memory grow when labels, rows and features of a generated
set of Amazon-670k's shape are doubled, one at a time. Generated labels are easier or harder to
separate than real ones: their growth is what counts. What a run chooses on held-out rows is given
there, so that all shapes are fitted alike. Writes ``results/tree_large.json``, with ``slopes``: to
which power of the size a value grows. ``--real``: what ``FOLDER/pypi-names`` takes from its files,
without a limit and with one. Writes ``results/tree_memory.json``, and the memory that no file
holds over time, ``tree_memory.png``.

Each is measured in a process of its own; the files are written after each.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import daskxml
from daskxml import Matrices
from daskxml.api.in_process import simulate
from daskxml.config import load_run_config
from daskxml.core.hardware import memory_bytes
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.local import read_rows
from daskxml.local.fit_run import LocalFitRun, prepare

BENCHMARKS = Path(__file__).parents[1]
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "quality")]

from machine import RESULTS, anonymous_mib, write_result
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
BATCH, BATCHES, MEGABATCHES = 256, 8, 4  # rows, batches of a mega-batch, mega-batches
MEMORY_GIB, GIB = 16, 1 << 30


def measure_network(shape: str, strategy: str) -> dict[str, Any]:
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
            "strategy.megabatch_batches": BATCHES, "training.megabatches": MEGABATCHES,
            "evaluation.every": MEGABATCHES, "checkpoint.every": 10**6, "training.keep_best": False,
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


# Labels, rows and features: the first, and each of them doubled twice.
SIZES = {"labels": 100_000, "rows": 50_000, "features": 135_909}
GROWN = [SIZES, *(SIZES | {k: SIZES[k] * n} for k in SIZES for n in (2, 4))]
GROWING = ("label_tree_cpu_s", "fit_cpu_s", "model_mb", "fit_mb")
FIT = {"model.cost": 0.4}
REAL, LIMIT_MIB = "pypi-names", 448


def measure_tree(sizes: dict[str, int], folder: str, limit_mib: int = 0) -> dict[str, Any]:
    """Train one tree in this process, on generated rows or, without sizes, on real ones."""
    fixed = {"cluster.threads": 1, "training.keep_best": False, **(FIT if sizes else {})}
    fixed |= {"cluster.memory_limit": limit_mib * 2**20 / memory_bytes()}
    series: list[tuple[float, float]] = []
    threading.Thread(target=watch, args=(series,), daemon=True).start()
    begun_s, matrices = time.process_time(), []
    if sizes:
        spec = replace(shape(sizes["labels"], sizes["rows"]), features=sizes["features"])
        matrices = [Matrices(*map(to_scipy, (p.features, p.labels))) for p in generate(spec)]
    else:
        fixed |= {f"data.{p}": [f"{folder}/{REAL}.{p}.txt.gz"] for p in ("train", "test")}
    config = load_run_config("tree", fixed)
    rows = read_rows(config, 1, *matrices)
    read_s, rows_mb = time.process_time() - begun_s, _peak_mb()
    begun_s = time.process_time()
    prepare(rows, config)  # as the run below does
    tree_s = time.process_time() - begun_s
    events: list[Any] = []
    begun_s, begun_at_s = time.process_time(), series[-1][0]
    model, _ = LocalFitRun(config, rows, events.append).run()
    fit_s = time.process_time() - begun_s - tree_s
    last = next(event["row"] for event in reversed(events) if event["kind"] == "megabatch")
    ended_at_s = series[-1][0] - last["eval_s"] - 0.2
    features = to_scipy(rows.test.parts[0].features)
    begun_s = time.process_time()
    model.predict_top_k(features, k=5)
    ranked_per_s = features.shape[0] / (time.process_time() - begun_s)
    return {
        "labels": rows.facts.labels, "rows": rows.facts.rows, "features": rows.facts.features,
        "data": "generated" if sizes else REAL,
        **({} if sizes else {"read_cpu_s": round(read_s, 1), "limit_mib": limit_mib}),
        "label_tree_cpu_s": round(tree_s, 2), "fit_cpu_s": round(fit_s - last["eval_s"], 2),
        **{f"P@{k}": round(last["metrics"][f"P@{k}"], 4) for k in (1, 3, 5)},
        "model_mb": round(sum(array.nbytes for array in model.parameters.values()) / 1e6, 1),
        "rows_mb": round(rows_mb), "peak_mb": round(_peak_mb()),
        "fit_mb": round(_peak_mb() - rows_mb), "ranked_per_s": round(ranked_per_s),
        "fitting_mib": round(max(mib for s, mib in series if begun_at_s <= s <= ended_at_s)),
        "over_time": [] if sizes else series[::8],
    }  # fmt: skip


def watch(series: list[tuple[float, float]]) -> None:
    """Note seconds and the memory that no file holds, until the process ends."""
    begun_s = time.perf_counter()
    while True:
        series.append((round(time.perf_counter() - begun_s, 2), round(anonymous_mib(), 1)))
        time.sleep(0.05)


def draw(found: list[dict[str, Any]]) -> None:
    """Draw memory over time."""
    figure = Figure((7, 3.2), layout="constrained")
    panel = figure.subplots()
    for row in found:
        limit = row["limit_mib"]
        (line,) = panel.plot(*zip(*row["over_time"], strict=True))
        line.set_label(f"memory_limit of {limit} MiB" if limit else "no limit")
        if limit:
            panel.axhline(limit, color=line.get_color(), linestyle=":")
    panel.set(xlabel="seconds since the start of reading", ylabel="MiB", ylim=0)
    panel.legend()
    figure.savefig(RESULTS / "tree_memory.png", dpi=110)


def slopes(found: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return to which power of each size the values grow, from once to four times the size."""
    first, *grown = found
    return {
        key: {name: round(math.log(more[name] / first[name], 4), 2) for name in GROWING}
        for key, more in zip(SIZES, grown[1::2], strict=False)
    }


def _peak_mb() -> float:
    """Return the largest memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(function: Callable[..., dict[str, Any]], *arguments: object) -> dict[str, Any]:
    """Measure in a process of its own, whose largest memory counts."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def main() -> None:
    """Measure every network and every tree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trees", help="not networks: trees; the folder of pypi-names")
    parser.add_argument("--real", action="store_true", help="of pypi-names alone")
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    if options.trees is None:
        for of, strategy in itertools.product(SHAPES, STRATEGIES):
            found.append(measured(measure_network, of, strategy))
            write_result("full_size", found, speeds=SPEEDS, load=os.getloadavg()[0])
        return
    os.environ |= {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "NUMBA")}
    if options.real:
        found = [measured(measure_tree, {}, options.trees, limit) for limit in (0, LIMIT_MIB)]
        write_result("tree_memory", found, load=os.getloadavg()[0])
        return draw(found)
    for sizes in GROWN:
        found.append(measured(measure_tree, sizes, options.trees))
        write_result("tree_large", found, slopes=slopes(found), load=os.getloadavg()[0])


if __name__ == "__main__":
    main()
