"""What weights of labels change: P@k and PSP@k on the test rows.

    python benchmarks/weights.py FOLDER [--sets bibtex,delicious] [--run-files tree,best]

``FOLDER`` holds ``NAME.train.txt.gz`` and ``NAME.test.txt.gz``. Each run file is trained in one
process with one thread and every choice of ``training.class_weight``, with the propensity constants
of the set's card; nothing is chosen by the scores. Writes ``results/weights.json`` and
``results/weights.md`` after every set.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import argparse
import time
from pathlib import Path
from typing import Any

from daskxml.config import load_run_config
from daskxml.core.arrays import Partition
from daskxml.data.rows import concatenate
from daskxml.local import read_rows
from daskxml.local.run import InProcessRun
from machine import RESULTS, machine, write_result

SETS, RUN_FILES = "bibtex,delicious,stackex4-2k,citeuliket-8k", "tree,best"
CHOICES = ("none", "propensity", "balanced")
METRICS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5")
Row = dict[str, Any]


def measured(folder: Path, name: str, run_file: str, choice: str) -> Row:
    """Train by a run file with a choice of weights; return the scores on the test rows."""
    files = {f"data.{part}": [str(folder / f"{name}.{part}.txt.gz")] for part in ("train", "test")}
    values = {"data.card": name, "training.class_weight": choice, "cluster.threads": 1}
    config = load_run_config(run_file, {**values, "evaluation.every": 10**6, **files})
    rows = read_rows(config, 1)
    begun_s = time.process_time()
    model, _ = InProcessRun(config, rows, lambda event: None).run()
    cpu_s = time.process_time() - begun_s
    test: Partition = concatenate(rows.test)
    scores = model.evaluate(test)
    told = {metric: round(100 * scores[metric], 2) for metric in METRICS}
    return {
        "data": name,
        "run file": run_file,
        "class_weight": choice,
        **told,
        "CPU s": round(cpu_s),
    }


def page(rows: list[Row]) -> str:
    """Return the rows as Markdown."""
    found, names = machine(), list(rows[0])
    lines = [
        "# Weights of labels",
        "",
        f"Written by `benchmarks/weights.py` at commit {found['commit']} on {found['cpu']}:",
        "percent on the test rows; one run each, one thread, processor time of the training.",
        "",
        f"| {' | '.join(names)} |",
        f"|{'---|' * len(names)}",
        *(f"| {' | '.join(str(row[name]) for name in names)} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and write the results after every set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--run-files", default=RUN_FILES)
    options = parser.parse_args()
    rows: list[Row] = []
    for run_file in options.run_files.split(","):
        for name in options.sets.split(","):
            rows += [measured(options.folder, name, run_file, choice) for choice in CHOICES]
            write_result("weights", rows)
            (RESULTS / "weights.md").write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
