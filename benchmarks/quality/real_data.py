"""Real data: what a run file reaches on the test rows, and whether every way to count agrees.

For each set, in a folder with ``NAME.train.txt.gz`` and ``NAME.test.txt.gz``, the installed command
trains on local workers; then `daskxml evaluate --json` must give the metrics of the last line of
the history, and P@k is counted once more from `daskxml predict`'s matrix and the text of the test
file, by code that shares nothing with daskxml.

    python benchmarks/quality/real_data.py FOLDER [--sets bibtex,delicious] [--workers 2]
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import write_result

PIPELINES = Path(__file__).parents[2] / "pipelines"


def command(*arguments: object) -> str:
    """Run daskxml and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "daskxml", *map(str, arguments)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def counted_precision(scores: scipy.sparse.csr_matrix, path: Path, k: int) -> float:
    """Count P@k from the matrix and the text."""
    hits = 0
    with gzip.open(path, "rt") as text:
        next(text)
        for row, line in enumerate(text):
            labels = set(line.split(" ", 1)[0].split(","))
            entry = slice(scores.indptr[row], scores.indptr[row + 1])
            best = np.argsort(-scores.data[entry], kind="stable")[:k]
            hits += len(labels.intersection(map(str, scores.indices[entry][best])))
    return hits / (k * scores.shape[0])


def measure(name: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Train, evaluate and predict on one set."""
    train, test = (folder / f"{name}.{part}.txt.gz" for part in ("train", "test"))
    with tempfile.TemporaryDirectory() as place:
        out, matrix = Path(place) / "run", Path(place) / "top.npz"
        begun_s = time.perf_counter()
        command("train", options.run_file, "--train", train, "--test", test, "--out", out,
                "--workers", options.workers, *options.set)  # fmt: skip
        total_s = time.perf_counter() - begun_s
        history = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
        evaluated = json.loads(command("evaluate", out, test, "--json"))
        command("predict", out, test, "--top-k", 5, "--out", matrix)
        scores = scipy.sparse.load_npz(matrix)
    last = history[-1]
    counted = {f"P@{k}": counted_precision(scores, test, k) for k in (1, 3, 5)}
    agree = evaluated == last["metrics"] and all(
        abs(counted[key] - evaluated[key]) < 1e-12 for key in counted
    )
    keys = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@5")
    return {
        "data": name,
        **{key: last["metrics"][key] for key in keys},
        "epochs": last["epoch"],
        "train_s": sum(row["train_s"] + row["merge_s"] for row in history),
        "total_s": total_s,
        "all_counts_agree": agree,
    }


def main() -> None:
    """Measure every set and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default="bibtex,delicious,nvd-product")
    parser.add_argument("--run-file", default=PIPELINES / "adaptive-sgd.toml")
    parser.add_argument("--workers", default="2")
    parser.add_argument("--set", action="extend", nargs=1, default=[])
    options = parser.parse_args()
    options.set = [word for value in options.set for word in ("--set", value)]
    rows = [measure(name, options.folder, options) for name in options.sets.split(",")]
    write_result("real_data", rows, run_file=Path(options.run_file).name, workers=options.workers)


if __name__ == "__main__":
    main()
