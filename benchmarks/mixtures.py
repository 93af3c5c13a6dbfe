"""Mixtures of label trees and a network beside their parts: accuracy on the test rows.

    python benchmarks/mixtures.py FOLDER [--sets bibtex,delicious] [--seeds 0,1,2] [--network best]

``FOLDER`` holds ``NAME.train.txt.gz`` and ``NAME.test.txt.gz``. The run file ``trees`` and that of
a network, ``best`` or ``sampled``, are trained with one worker of one thread, first without a tenth
of the training rows, on which the mixture's weights are chosen, then with all of them: those models
and their mixture with these weights are scored on the test rows. Writes ``results/mixtures.json``
and ``results/mixtures.md`` after every set and seed; those that are there are not measured again.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from daskxml import Model, mix
from daskxml.config import load_run_config
from daskxml.core.arrays import Partition
from daskxml.data.rows import concatenate
from daskxml.local import read_rows
from daskxml.local.run import InProcessRun
from machine import RESULTS, machine, write_result
from trees import read

SETS = "bibtex,delicious,stackex4-2k,citeuliket-8k"
TREES = "trees"
HELD = 0.1
KS = (1, 3, 5)
Row = dict[str, Any]


def trained(part: str, files: Row, seed: int, held: float) -> tuple[Model, Partition, float]:
    """Train by a run file; return the model, the rows held out or of the test, and CPU seconds."""
    values = {"run.seed": seed, "cluster.threads": 1, "data.validation": held}
    values |= {"evaluation.every": 10**6, "training.keep_best": False}
    config = load_run_config(part, {**values, **files})
    rows = read_rows(config, 1)
    begun_s = time.process_time()
    model, _ = InProcessRun(config, rows, lambda event: None).run()
    return model, concatenate(rows.test), time.process_time() - begun_s


def measured(folder: Path, name: str, seed: int, network: str) -> Iterator[Row]:
    """Yield a row for each part and one for the mixture."""
    parts = TREES, network
    files = {f"data.{part}": [str(folder / f"{name}.{part}.txt.gz")] for part in ("train", "test")}
    held = [trained(part, files, seed, HELD) for part in parts]
    chosen = mix([model for model, _, _ in held], valid=held[0][1])
    whole = [trained(part, files, seed, 0.0) for part in parts]
    weights: tuple[float, ...] = chosen.spec.weights  # type: ignore[union-attr]
    mixture = mix([model for model, _, _ in whole], weights=weights)
    test = concatenate(read(folder, name).test)
    cpu_s = [taken_s for _, _, taken_s in whole]
    in_all_s = sum(cpu_s) + sum(taken_s for _, _, taken_s in held)
    models = [*(model for model, _, _ in whole), mixture]
    names = *parts, f"mixture with {network}"
    for what, model, weight, taken_s in zip(
        names, models, (*weights, None), (*cpu_s, in_all_s), strict=True
    ):
        found = model.evaluate(test)
        scores = {f"P@{k}": round(found[f"P@{k}"], 4) for k in KS}
        yield {"data": name, "seed": seed, "network": network, "model": what, **scores,
               "weight": weight, "train_cpu_s": round(taken_s, 1)}  # fmt: skip


def rows_of_before() -> list[Row]:
    """Return the rows of the result file."""
    try:
        before = json.loads((RESULTS / "mixtures.json").read_text())
    except (OSError, ValueError):
        return []
    rows: list[Row] = before["rows"]
    return rows


def write(rows: list[Row]) -> None:
    """Write both results."""
    write_result("mixtures", rows)
    lines = [
        "# Mixtures of label trees and a network",
        "",
        "Written by `python benchmarks/mixtures.py`: one worker of one thread; weights chosen on a",
        "tenth of the training rows, held out, and used for models of all training rows; the",
        "mixture's seconds are those of both trainings of both parts.",
        "",
        "| data | seed | model | weight | P@1 | P@3 | P@5 | training, CPU s |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {r['data']} | {r['seed']} | {r['model']} "
        f"| {'' if r['weight'] is None else format(r['weight'], '.2f')} "
        f"| {r['P@1']:.4f} | {r['P@3']:.4f} | {r['P@5']:.4f} | {r['train_cpu_s']:.1f} |"
        for r in rows
    ]
    (RESULTS / "mixtures.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--network", default="best", help="its run file")
    options = parser.parse_args()
    rows = rows_of_before()
    for name in options.sets.split(","):
        for seed in map(int, options.seeds.split(",")):
            key = (name, seed, options.network)
            if not any((row["data"], row["seed"], row["network"]) == key for row in rows):
                commit = machine()["commit"]
                found = measured(options.folder, *key)
                rows += [{**row, "commit": commit} for row in found]
                write(rows)


if __name__ == "__main__":
    main()
