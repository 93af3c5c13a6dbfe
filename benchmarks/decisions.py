"""What weights of labels, calibration and thresholds bring on the test rows of real sets.

    python benchmarks/decisions.py FOLDER [--sets tree:bibtex,best:bibtex] [--seeds 3] [--add]

``FOLDER`` holds ``NAME.train.txt.gz`` and ``NAME.test.txt.gz``. Each run file is trained in one
process with one thread on 85 % of the training rows, with every choice of
``training.class_weight``. The model is calibrated on the other 15 %, on which everything is chosen
that is chosen; every number of the table is of the test rows, the mean over the seeds and their
standard deviation. Writes ``results/decisions.json`` and ``results/decisions.md`` after every one;
``--add`` keeps the rows that are there.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from daskxml.config import load_run_config
from daskxml.core.arrays import Partition
from daskxml.data.rows import concatenate
from daskxml.local import read_rows
from daskxml.local.run import InProcessRun
from daskxml.metrics.decisions import calibration_error, f1_scores, find_hits
from daskxml.models.calibration import calibrate
from daskxml.models.rows import read_rows as read_test_rows
from daskxml.models.trained import Model
from machine import RESULTS, machine, write_result

SETS = "tree:bibtex,tree:delicious,tree:stackex4-2k,tree:nvd-product,best:bibtex,best:delicious"
CHOICES = ("none", "balanced", "propensity")
RANKED = ("P@1", "P@5", "PSP@1", "PSP@5")
HELD_OUT, CALIBRATED_K = 0.15, 5
Row = dict[str, Any]


def trained(folder: Path, name: str, run_file: str, choice: str, seed: int) -> tuple[Model, Any]:
    """Train by a run file with a choice of weights; return the model and the held-out rows."""
    values = {"data.card": name, "training.class_weight": choice, "cluster.threads": 1}
    values |= {"data.train": [str(folder / f"{name}.train.txt.gz")], "data.validation": HELD_OUT}
    config = load_run_config(run_file, {**values, "evaluation.every": 10**6, "run.seed": seed})
    rows = read_rows(config, 1)
    model, _ = InProcessRun(config, rows, lambda event: None).run()
    return model, concatenate(rows.test)


def decided(model: Model, test: Partition) -> dict[str, float]:
    """Return the calibration error of the best five labels, and F1, in percent."""
    ids, scores = model.predict_top_k(test, CALIBRATED_K)
    is_there, hits = ids >= 0, find_hits(ids, test.labels)
    found = f1_scores(model.choose(test)[0], test.labels)
    error = calibration_error(scores[is_there], hits[is_there])
    return {f"ECE@{CALIBRATED_K}": 100 * error, **{n: 100 * f1 for n, f1 in found.items()}}


def measured(folder: Path, name: str, run_file: str, choice: str, seed: int) -> Row:
    """Train, calibrate, and score both models on the test rows."""
    begun_s = time.process_time()
    model, held_out = trained(folder, name, run_file, choice, seed)
    trained_s = time.process_time()
    models = {
        "before": model,
        "macro": calibrate(model, held_out),
        "micro": calibrate(model, held_out, f1="micro"),
    }
    calibrated_s = time.process_time()
    test: Partition = concatenate(list(read_test_rows(model, [f"{folder}/{name}.test.txt.gz"])))
    ranking = model.evaluate(test)
    found = {which: decided(each, test) for which, each in models.items()}
    return {
        **{metric: 100 * ranking[metric] for metric in RANKED},
        "ECE@5": found["before"]["ECE@5"],
        "calibrated": found["macro"]["ECE@5"],
        "macro F1": found["before"]["macro-F1"],
        "by label": found["macro"]["macro-F1"],
        "micro F1": found["before"]["micro-F1"],
        "by all": found["micro"]["micro-F1"],
        "train s": trained_s - begun_s,
        "calibrate s": (calibrated_s - trained_s) / 2,
    }


def spread(runs: list[Row]) -> Row:
    """Return each number's mean and standard deviation over the seeds."""
    values = {name: [run[name] for run in runs] for name in runs[0]}
    return {
        name: [round(statistics.fmean(each), 2), round(statistics.pstdev(each), 2)]
        for name, each in values.items()
    }


def page(rows: list[Row]) -> str:
    """Return the rows as Markdown."""
    found, names = machine(), list(rows[0])
    lines = [
        "# Weights, calibration and thresholds",
        "",
        f"Written by `benchmarks/decisions.py` at commit {found['commit']} on {found['cpu']}:",
        "percent on the test rows, the mean of the seeds and their standard deviation, one",
        "thread, processor time. *calibrated*: ECE@5, the expected calibration error of the best",
        "five labels of each row, after calibration on held-out training rows; *by label*: macro",
        "F1 with thresholds of labels; *by all*: micro F1 with one threshold, from the same rows.",
        "",
        f"| {' | '.join(names)} |",
        f"|{'---|' * len(names)}",
        *(f"| {' | '.join(map(spelled, row.values()))} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def spelled(value: Any) -> str:
    """Return a cell: a name, or a mean and its deviation."""
    if not isinstance(value, list):
        return str(value)
    return f"{value[0]:.2f} ± {value[1]:.2f}" if value[1] else f"{value[0]:.2f}"


def main() -> None:
    """Measure, and write the results after every set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=SETS, help="RUN_FILE:NAME,...")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--add", action="store_true", help="keep the rows that are there")
    options = parser.parse_args()
    before = (RESULTS / "decisions.json").read_text() if options.add else '{"rows": []}'
    rows: list[Row] = json.loads(before)["rows"]
    for pair in options.sets.split(","):
        run_file, name = pair.split(":")
        for choice in CHOICES:
            seeds = range(options.seeds)
            runs = [measured(options.folder, name, run_file, choice, seed) for seed in seeds]
            named = {"data": name, "run file": run_file, "class_weight": choice}
            rows.append({**named, "seeds": options.seeds} | spread(runs))
            write_result("decisions", rows, held_out=HELD_OUT)
            (RESULTS / "decisions.md").write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
