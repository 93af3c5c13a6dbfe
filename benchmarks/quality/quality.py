"""Quality: what run files reach on the test rows of real sets, beside the bars and other tools.

    python benchmarks/quality/quality.py FOLDER [--sets bibtex,delicious] [--workers 2]
        [--run-files network,best]

For each set, in a folder with ``NAME.train.txt.gz`` and ``NAME.test.txt.gz``, the installed command
trains on local workers of one thread each; then `daskxml evaluate --json` must give the metrics of
the last line of the history, and P@k is counted once more from `daskxml predict`'s matrix and the
text of the test file, by code that shares nothing with daskxml.

`BARS` are what `network` is to reach. `TOOLS` are measured figures of other tools on the same rows:
two cores, default parameters, one run each. Writes ``results/quality.json`` (`network`) and
``results/quickstart.json``; rows of other sets are kept if the run file and the number of workers
are the same.
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import RESULTS, write_result

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
BARS: dict[str, dict[str, float]] = {
    "bibtex": {"P@1": 0.636, "P@3": 0.394, "P@5": 0.291},
    "delicious": {"P@1": 0.675, "P@3": 0.609, "P@5": 0.564},
    "stackex4-2k": {"P@1": 0.65},
    "nvd-product": {"P@1": 0.75},
}
# P@1, P@3, P@5 in percent and the seconds of training
TOOLS: dict[str, dict[str, tuple[float, float, float, float]]] = {
    "omikuji 0.5.2 (Parabel)": {
        "bibtex": (63.5, 38.7, 28.1, 0.8),
        "delicious": (66.9, 60.2, 55.7, 5),
        "stackex4-2k": (66.2, 43.9, 32.0, 5),
        "citeuliket-8k": (62.3, 47.0, 38.3, 7),
        "nvd-product": (77.0, 38.6, 26.4, 8),
    },
    "PECOS 1.2.8 (XR-Linear)": {
        "bibtex": (52.5, 31.3, 22.8, 0.4),
        "delicious": (58.4, 54.4, 50.5, 6),
        "stackex4-2k": (65.7, 43.2, 31.4, 2),
        "citeuliket-8k": (62.3, 46.4, 37.5, 3),
        "nvd-product": (78.3, 38.9, 26.5, 4),
    },
    "napkinXC 0.7.2 (PLT)": {
        "bibtex": (63.3, 39.2, 28.7, 0.6),
        "delicious": (66.8, 60.1, 55.5, 5),
        "stackex4-2k": (63.6, 42.4, 31.1, 4),
        "citeuliket-8k": (61.1, 45.2, 36.8, 7),
        "nvd-product": (72.5, 37.3, 25.7, 9),
    },
    "PyTorch MLP, 512 hidden units": {  # nvd-product: 256 of them, softmax
        "bibtex": (63.6, 39.4, 29.1, 4),
        "delicious": (67.5, 60.9, 56.4, 37),
        "stackex4-2k": (64.6, 42.5, 31.0, 47),
        "citeuliket-8k": (58.6, 42.7, 34.0, 54),
        "nvd-product": (72.8, 36.3, 25.0, 182),
    },
}


def missed_bars(name: str, found: Mapping[str, Any]) -> list[str]:
    """Return the bars of a set that were not reached.

    Examples
    --------
    >>> missed_bars("bibtex", {"P@1": 0.64, "P@3": 0.39, "P@5": 0.3})
    ['P@3 0.3900 < 0.394']
    """
    bars = BARS.get(name, {})
    return [f"{key} {found[key]:.4f} < {bar}" for key, bar in bars.items() if found[key] < bar]


def other_tools(name: str) -> dict[str, dict[str, float]]:
    """Return the figures of other tools on a set, in the units of our own.

    Examples
    --------
    >>> other_tools("bibtex")["napkinXC 0.7.2 (PLT)"]
    {'P@1': 0.633, 'P@3': 0.392, 'P@5': 0.287, 'train_s': 0.6}
    """
    keys = ("P@1", "P@3", "P@5")
    table = {}
    for tool, sets in TOOLS.items():
        if name in sets:
            *precision, train_s = sets[name]
            shares = {key: round(p / 100, 3) for key, p in zip(keys, precision, strict=True)}
            table[tool] = {**shares, "train_s": train_s}
    return table


def with_bars(row: dict[str, Any]) -> dict[str, Any]:
    """Return a measured row with the bars and the best of the other tools."""
    name = row["data"]
    best = max((tool["P@1"] for tool in other_tools(name).values()), default=None)
    missed = missed_bars(name, row)
    return {**row, "bar P@1": BARS.get(name, {}).get("P@1"), "best other P@1": best,
            "missed": "; ".join(missed) or "none"}  # fmt: skip


def kept_rows(name: str, setting: Mapping[str, str], names: list[str]) -> list[dict[str, Any]]:
    """Return earlier rows of the same setting, except of the sets that are measured now."""
    path = RESULTS / f"{name}.json"
    earlier = json.loads(path.read_text()) if path.exists() else {}
    if any(earlier.get(key) != value for key, value in setting.items()):
        return []
    return [row for row in earlier["rows"] if row["data"] not in names]


def main() -> None:
    """Measure every set with every run file, and write a table of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--workers", default="2")
    parser.add_argument("--run-files", default=",".join(RESULT_OF))
    options = parser.parse_args()
    names = options.sets.split(",")
    for run_file in options.run_files.split(","):
        digest = hashlib.sha256((PIPELINES / f"{run_file}.toml").read_bytes()).hexdigest()
        setting = {"run_file": f"{run_file}.toml", "sha256": digest, "workers": options.workers}
        result = RESULT_OF.get(run_file, run_file)
        rows = kept_rows(result, setting, names)
        for name in names:  # written after each set: the last takes minutes
            rows.append(with_bars(measure(name, options.folder, run_file, options.workers)))
            tools = {row["data"]: other_tools(row["data"]) for row in rows}
            write_result(result, rows, **setting, bars=BARS, other_tools=tools)


if __name__ == "__main__":
    main()
