"""Compressed models beside those that they were made from: size, accuracy, and time of answers.

    python benchmarks/quality/compressed.py FOLDER [--sets bibtex,nvd-product] \
        [--shapes 200000,670000]

``FOLDER`` holds ``NAME.train.txt.gz`` and ``NAME.test.txt.gz``. Of every set the run file ``trees``
and a network (the run file ``best``, with 128 hidden units and 8 epochs) are trained with one
worker of one thread, and scored on the test rows before and after `daskxml.compress`. Of every
shape, so many labels, a network with 128 hidden units has random weights, of which only times are
told. One thread; a row's milliseconds are the median and the 99th of 100 by the clock, after
`Model.warm_up`. Writes ``results/compressed.json`` and ``results/compressed.md``.
"""

from __future__ import annotations

import os
import sys

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from daskxml import Model, compress
from daskxml.config import load_run_config
from daskxml.core.arrays import Partition
from daskxml.data.rows import to_scipy
from daskxml.local import read_rows
from daskxml.local.run import LocalRun
from daskxml.models.network.spec import Layout, ModelSpec, initial_parameters
from daskxml.models.store import ModelHeader, model_bytes
from daskxml.models.trees.spec import TreeSpec

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import RESULTS, write_result

SETS, SHAPES = "bibtex,nvd-product", "200000,670000"
NETWORK = {"model.hidden": [128], "training.epochs": 8}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "trees": ("trees", {}),
    "network": ("best", NETWORK),
}
FEATURES, NONZEROS = 100_000, 24  # of a generated network's rows
KS = (1, 3, 5)
SINGLES, BATCH = 100, 512  # rows
Row = dict[str, Any]


def trained(folder: Path, name: str, kind: str) -> tuple[Model, Partition]:
    """Train one model of a set; return it and the test rows."""
    run_file, values = KINDS[kind]
    files = {f"data.{part}": [str(folder / f"{name}.{part}.txt.gz")] for part in ("train", "test")}
    never = {"evaluation.every": 10**6, "training.keep_best": False}
    config = load_run_config(run_file, {"cluster.threads": 1, **never, **values, **files})
    rows = read_rows(config, 1)
    (test,) = rows.test
    model, _ = LocalRun(config, replace(rows, test=()), lambda event: None).run()
    return model, test


def generated(labels: int) -> tuple[Model, Any]:
    """Return a network with random weights, and rows for it."""
    spec, rng = ModelSpec(features=FEATURES, labels=labels), np.random.default_rng(0)
    header = ModelHeader(spec=spec, training_rows=labels)
    views = Layout(spec).views(initial_parameters(spec, seed=0))
    rows = scipy.sparse.random(
        BATCH, FEATURES, NONZEROS / FEATURES, "csr", dtype=np.float32, rng=rng
    )
    return Model(header, views, np.ones(labels, np.int64), threads=1), rows


def each_size(model: Model) -> Iterator[tuple[str, Model]]:
    """Yield a model by name, and what it is compressed to."""
    if isinstance(model.spec, TreeSpec):
        yield "as trained", model
        yield "without small weights", compress(model)
        return
    yield "32 bits", model
    for bits in (16, 8):
        yield f"{bits} bits", compress(model, bits=bits)


def answers(model: Model, rows: Any) -> Row:
    """Save a model, map it, and time its answers."""
    with tempfile.TemporaryDirectory() as name:
        model.save(name)
        mapped = Model.load(name, threads=1, verify=False)
        mapped.warm_up()
        singles = [rows[i] for i in range(min(SINGLES, rows.shape[0]))]
        times_s = []
        for row in singles:
            begun_s = time.perf_counter()
            mapped.predict_top_k(row, 5)
            times_s.append(time.perf_counter() - begun_s)
        begun_s = time.process_time()
        mapped.predict_top_k(rows[:BATCH], 5)
        cpu_s = time.process_time() - begun_s
        return {
            "mb": model_bytes(name) / 1e6,
            "row_ms": 1e3 * float(np.median(times_s)),
            "row_p99_ms": 1e3 * float(np.quantile(times_s, 0.99)),
            "rows_per_cpu_s": min(BATCH, rows.shape[0]) / cpu_s,
        }


def measured(folder: Path, sets: list[str], shapes: list[int]) -> Iterator[Row]:
    """Yield a row for each model and size."""
    for name in sets:
        for kind in KINDS:
            model, test = trained(folder, name, kind)
            rows = to_scipy(test.features)
            for size, each in each_size(model):
                each.threads = 1
                found = each.evaluate(test, k=KS)
                scores = {f"P@{k}": found[f"P@{k}"] for k in KS}
                yield {"data": name, "model": kind, "stored": size, **scores, **answers(each, rows)}
    for labels in shapes:
        model, rows = generated(labels)
        for size, each in each_size(model):
            none = dict.fromkeys(f"P@{k}" for k in KS)
            named = {"data": f"{labels:,} labels", "model": "generated", "stored": size}
            yield {**named, **none, **answers(each, rows)}


def write(rows: list[Row]) -> None:
    """Write both files."""
    write_result("compressed", rows, load=os.getloadavg()[0])
    lines = [
        "# Compressed models",
        "",
        "Written by `python quality/compressed.py`: the files' size; P@k on the test rows; one",
        "row alone, median and 99th of 100 in milliseconds by the clock; rows of a batch of 512 in",
        "a processor second. One thread. Machine, commit and load in `compressed.json`.",
        "",
        "| data | model | stored | MB | P@1 | P@3 | P@5 | ms a row | p99 | rows/s |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        scores = ["-" if row[f"P@{k}"] is None else f"{row[f'P@{k}']:.4f}" for k in KS]
        cells = [row["data"], row["model"], row["stored"], f"{row['mb']:.1f}", *scores]
        cells += [f"{row[key]:.2f}" for key in ("row_ms", "row_p99_ms")]
        lines.append(f"| {' | '.join(cells)} | {row['rows_per_cpu_s']:,.0f} |")
    (RESULTS / "compressed.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


def main() -> None:
    """Measure every set and shape, and write what is there after each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--shapes", default=SHAPES)
    options = parser.parse_args()
    sets = [name for name in options.sets.split(",") if name]
    shapes = [int(labels) for labels in options.shapes.split(",") if labels]
    rows: list[Row] = []
    for row in measured(options.folder, sets, shapes):
        rows.append(row)
        write(rows)


if __name__ == "__main__":
    main()
