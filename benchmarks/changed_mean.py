"""Merges by the mean, and by each weight's mean over the workers that changed it.

    python benchmarks/changed_mean.py FOLDER [--sets bibtex,...] [--files best,...]

``FOLDER`` holds ``NAME.train.txt.gz``. Simulated workers of equal speed train by the run files
``adaptive-sgd`` and ``elastic`` for 2 epochs (bibtex 6), ``best`` for half as many, on seven
eighths of the training rows. P@1 is that of the last merged model on the rows held out. With 4
workers each rule is run at the learning rates of `RATES`; with 2 and 8 at the best of them.
``first layer`` is the new rule on the first layer and the mean on all others. ``partial`` is the
share of the features in a mega-batch's rows that some workers' rows have and others' have not, the
mean over an epoch, counted in the data: the first layers of the two rules differ in those. With
the run files' mega-batches bibtex and delicious have next to none, so theirs are of `SHORT`
batches. Writes ``results/changed_mean.json`` after every run, and ``results/changed_mean.md``;
what is there is not run again.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

import daskxml
from daskxml.collectives import combine, ring_all_reduce
from daskxml.collectives.changed_mean import changed_mean
from daskxml.config import RunConfig, load_run_config
from daskxml.core.arrays import Partition
from daskxml.data.rows import concatenate
from daskxml.local import read_rows
from machine import RESULTS, write_result

HELD = 0.125
EPOCHS = {"stackex4-2k": 2, "bibtex": 6, "delicious": 2}
RATES = {"adaptive-sgd": (1.0, 3.0, 10.0), "elastic": (1.0, 3.0, 10.0), "best": (0.005, 0.01)}
FILES = tuple(RATES)
SHORT = 10  # batches of a mega-batch, on all sets but stackex4-2k
RULES = ("mean", "changed-mean", "first layer")
KEY = ("data", "file", "workers", "rule", "lr")
Row = dict[str, Any]


def configured(folder: Path, name: str, file: str, lr: float, rule: str) -> RunConfig:
    """Return the run file with the benchmark's settings."""
    values = {
        "data.train": [str(folder / f"{name}.train.txt.gz")], "data.validation": HELD,
        "training.epochs": EPOCHS[name] / (2 if file == "best" else 1),
        "training.keep_best": False, "cluster.threads": 1,
        "strategy.lr": lr, "combine.rule": "mean" if rule == "mean" else "changed-mean",
        **({} if name == "stackex4-2k" else {"strategy.megabatch_batches": SHORT}),
        "evaluation.every": 10**6, "checkpoint.every": 10**6,
    }  # fmt: skip
    return load_run_config(file, values)


@cache
def rows_of(folder: Path, name: str) -> Any:
    """Read a set's rows, training and held out: they do not depend on the run file."""
    return read_rows(configured(folder, name, FILES[0], 1.0, "mean"), 1)


def first_layer_only(size: int) -> Any:
    """Return the rule that divides ``x[:size]`` alone; the rest is the mean."""

    def program(rank: int, x: Any, weights: Sequence[float], kernels: Any, transfer: str) -> Any:
        yield from changed_mean(rank, x[:size], weights, kernels, transfer=transfer)
        rest, ranks = x[size:], len(weights)
        yield from ring_all_reduce(
            rank, ranks, rest, rest, weights[rank], kernels, transfer=transfer
        )

    return program


def trained(config: RunConfig, rows: Any, workers: int, rule: str) -> Row:
    """Train; return the held-out scores of the last model."""
    features = rows.train[0].features.columns
    is_cut = rule == "first layer"
    combine.changed_mean = first_layer_only(features * config.model.hidden[0]) if is_cut else (
        changed_mean
    )  # fmt: skip
    begun_s = time.process_time()
    run = daskxml.simulate(config, [1.0] * workers, rows=rows)
    scores = {f"P@{k}": round(run.metrics[f"P@{k}"], 4) for k in (1, 3, 5)}
    return {**scores, "merges": len(run.history), "cpu_s": round(time.process_time() - begun_s, 1)}


def partial_share(part: Partition, megabatch_rows: int, workers: int) -> float:
    """Return the share of a mega-batch's features that some workers have in their rows, not all."""
    shares = []
    for first in range(0, part.rows - megabatch_rows + 1, megabatch_rows):
        cuts = first + np.arange(workers + 1) * megabatch_rows // workers
        counts = np.zeros(part.features.columns, np.int64)
        for start, stop in pairwise(part.features.indptr[cuts]):
            counts[np.unique(part.features.indices[start:stop])] += 1
        shares.append(((counts > 0) & (counts < workers)).sum() / (counts > 0).sum())
    return float(np.mean(shares))


def jobs(sets: Sequence[str], files: Sequence[str], rows: Sequence[Row]) -> Iterator[Row]:
    """Yield what is to run; ``rows`` grows meanwhile."""
    for name, file in product(sets, files):
        for rule, lr in product(RULES[:2], RATES[file]):
            yield dict(zip(KEY, (name, file, 4, rule, lr), strict=True))
        four = [r for r in rows if (r["data"], r["file"], r["workers"]) == (name, file, 4)]
        rates = {rule: best(four, rule)["lr"] for rule in RULES[:2]}
        for rule, workers in product(RULES[:2], (8, 2)):
            yield dict(zip(KEY, (name, file, workers, rule, rates[rule]), strict=True))
        yield dict(zip(KEY, (name, file, 4, RULES[2], rates[RULES[1]]), strict=True))


def measured(folder: Path, job: Row) -> Row:
    """Run a job."""
    rows = rows_of(folder, job["data"])
    config = configured(folder, job["data"], job["file"], job["lr"], job["rule"])
    size = config.strategy.megabatch_rows
    partial = partial_share(concatenate(rows.train), size, job["workers"])
    found = trained(config, rows, job["workers"], job["rule"])
    return {**job, **found, "megabatch_rows": size, "partial": round(partial, 3)}


def best(rows: Sequence[Row], rule: str) -> Row:
    """Return the row of a rule's better rate; an empty one where there is none."""
    return max((r for r in rows if r["rule"] == rule), key=lambda row: row["P@1"], default={})


def table(rows: Sequence[Row]) -> list[str]:
    """Return a line for each set, run file and number of workers."""
    lines, gains = [], []
    for cell in dict.fromkeys((r["data"], r["file"], r["workers"]) for r in rows):
        mine = [r for r in rows if (r["data"], r["file"], r["workers"]) == cell]
        mean, new, first = (best(mine, rule) for rule in RULES)
        if not (mean and new):
            continue
        gains.append(new["P@1"] - mean["P@1"])
        cut = f"{first['P@1']:.4f}" if first else ""
        lines.append(
            f"| {' | '.join(map(str, cell))} | {mean['megabatch_rows']} | {mean['partial']:.1%} "
            f"| {mean['P@1']:.4f} ({mean['lr']:g}) | {new['P@1']:.4f} ({new['lr']:g}) "
            f"| {cut} | {gains[-1]:+.4f} |"
        )
    if gains:
        won = sum(gain > 0 for gain in gains)
        lines += ["", f"Better in {won} of {len(gains)}; {np.mean(gains):+.4f} in the mean."]
    return lines


def write(rows: Sequence[Row]) -> None:
    """Write both results."""
    write_result("changed_mean", rows, epochs=EPOCHS, held=HELD)
    lines = [
        "# Merges by the mean over the workers that changed a weight",
        "",
        "Written by `python benchmarks/changed_mean.py`, whose head says what is measured: P@1 on",
        "held-out rows, with the learning rate. Machine and commit are in `changed_mean.json`.",
        "",
        "| data | run file | workers | rows a merge | partial | mean | changed-mean | first layer "
        "| gain |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
        *table(rows),
        "",
    ]
    (RESULTS / "changed_mean.md").write_text("\n".join(lines), encoding="utf-8")


def rows_of_before() -> list[Row]:
    """Return the rows of the result file, if there is one."""
    try:
        return list(json.loads((RESULTS / "changed_mean.json").read_text())["rows"])
    except (OSError, ValueError):
        return []


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=",".join(EPOCHS))
    parser.add_argument("--files", default=",".join(FILES))
    options = parser.parse_args()
    rows = rows_of_before()
    for job in jobs(options.sets.split(","), options.files.split(","), rows):
        if not any(all(row[key] == job[key] for key in KEY) for row in rows):
            rows.append(measured(options.folder, job))
            write(rows)


if __name__ == "__main__":
    main()
