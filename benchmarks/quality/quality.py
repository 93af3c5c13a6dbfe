"""Quality: what run files reach on the test rows of real sets (`trees.py` has other tools beside).

    python benchmarks/quality/quality.py FOLDER [--sets bibtex,delicious] [--workers 2]
        [--run-files network,best]

For each set, in a folder with ``NAME.train.txt.gz`` and ``NAME.test.txt.gz``, the installed command
trains on local workers of one thread each; then `daskxml evaluate --json` must give the metrics of
the last line of the history, and P@k is counted once more from `daskxml predict`'s matrix and the
text of the test file, by code that shares nothing with daskxml.

Writes ``results/quality.json`` (`network`) and ``results/quickstart.json``.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
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


def measure(name: str, folder: Path, run_file: str, workers: str) -> dict[str, Any]:
    """Train, evaluate and predict on one set."""
    train, test = (folder / f"{name}.{part}.txt.gz" for part in ("train", "test"))
    with tempfile.TemporaryDirectory() as place:
        out, matrix = Path(place) / "run", Path(place) / "top.npz"
        begun_s = time.perf_counter()
        command("train", run_file, "--train", train, "--test", test, "--out", out,
                "--workers", workers, "--set", "cluster.threads=1")  # fmt: skip
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


RESULT_OF = {"network": "quality", "best": "quickstart"}  # run file to result
SETS = "bibtex,delicious,stackex4-2k,citeuliket-8k,nvd-product"


def main() -> None:
    """Measure every set with every run file, and write a table of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--workers", default="2")
    parser.add_argument("--run-files", default=",".join(RESULT_OF))
    options = parser.parse_args()
    for run_file in options.run_files.split(","):
        digest = hashlib.sha256((PIPELINES / f"{run_file}.toml").read_bytes()).hexdigest()
        setting = {"run_file": f"{run_file}.toml", "sha256": digest, "workers": options.workers}
        rows = []
        for name in options.sets.split(","):  # written after each set: the last takes minutes
            rows.append(measure(name, options.folder, run_file, options.workers))
            write_result(RESULT_OF.get(run_file, run_file), rows, **setting)


if __name__ == "__main__":
    main()
