"""A network's P@k against processor time: all labels, a sample by chance, and one of label trees.

    python benchmarks/shortlists.py FOLDER [--sets stackex4-2k,nvd-product]

The run file ``best`` with fewer epochs, on one thread, without a tenth of the training rows, on
which everything was chosen; then on the test rows. The trees of ``[sampling] method = "tree"`` are
those of the run file ``tree``, trained before on the same rows, whose seconds are told. Writes
``results/shortlists.json`` and ``results/shortlists.md`` after every run. Runs that are there are
not measured again; each has its commit.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from daskxml.config import RunConfig, load_run_config
from daskxml.core.arrays import Partition
from daskxml.data.rows import concatenate
from daskxml.local import Rows, read_rows
from daskxml.local.run import InProcessRun
from daskxml.models.trained import Model
from machine import RESULTS, machine, write_result
from trees import read

HELD, KS = 0.1, (1, 3, 5)
WIDE = {"strategy.batch_max": 256, "strategy.lr": 0.014}
Settings = dict[str, Any]
Start = Callable[[RunConfig, Rows], Model]


def sampled(method: str, active: int, sets: str = "batch", chance: float = 0.5) -> Settings:
    """Return the settings of a sample."""
    values = {"method": method, "active": active, "sets": sets, "random": chance}
    return {f"sampling.{name}": value for name, value in values.items()}


CASES: dict[str, tuple[Settings, ...]] = {
    "stackex4-2k": (
        {"training.epochs": 4},
        {"training.epochs": 4, **sampled("random", 400)},
        {"training.epochs": 4, **sampled("tree", 400)},
    ),
    "nvd-product": (
        {"training.epochs": 16},
        {"training.epochs": 4, **WIDE, **sampled("random", 1000)},
        {"training.epochs": 8, **sampled("random", 1000)},
        {"training.epochs": 8, **sampled("tree", 1000)},
        {"training.epochs": 8, **sampled("tree", 100, "row", 0.8)},
    ),
}
SHOWN = ("epochs", "batch_max", "method", "sets", "active", "random")


def train(
    run_file: str, path: Path, values: Settings, start: Start | None = None
) -> tuple[Any, Settings]:
    """Train without the rows that are held out; return the model, and what it took and reached.

    ``start`` makes the model to start from; its time counts.
    """
    given = {"cluster.threads": 1, "data.train": [str(path)], "data.validation": HELD}
    given |= {"evaluation.every": 10**6, "training.keep_best": False}
    config = load_run_config(run_file, given | values)
    rows = read_rows(config, 1)
    begun_s = _cpu_s()
    begin = start(config, rows) if start else None
    model, _ = InProcessRun(config, replace(rows, test=()), lambda event: None, begin).run()
    took_s = _cpu_s() - begun_s
    result = model.evaluate(concatenate(rows.test))
    held = {f"held P@{k}": round(result[f"P@{k}"], 4) for k in KS}
    return model, {"train_cpu_s": round(took_s, 1), **held}


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system


def measure(name: str, path: Path, test: Partition, values: Settings, tree: str) -> Settings:
    """Train one network and score it."""
    uses_tree = values.get("sampling.method") == "tree"
    model, found = train("best", path, values | ({"sampling.model": tree} if uses_tree else {}))
    result = model.evaluate(test)
    shown = {key.rpartition(".")[2]: value for key, value in values.items()}
    return {
        "data": name, **{key: shown.get(key) for key in SHOWN}, **found,
        **{f"P@{k}": round(result[f"P@{k}"], 4) for k in KS},
        "commit": machine()["commit"], "load": os.getloadavg()[0],
    }  # fmt: skip


def write(rows: list[Settings]) -> None:
    """Write both results."""
    write_result("shortlists", rows)
    lines = [
        "# A network's negatives: all labels, by chance, by label trees",
        "",
        "Written by `python benchmarks/shortlists.py`: the run file `best` with fewer epochs, one",
        "thread, without a tenth of the training rows. Commits and loads in `shortlists.json`.",
        "",
        "| data | epochs | rows a batch | method | sets | active | P@1 held out | P@1 | P@3 | P@5 "
        "| training, CPU s |",
        "|---|---:|---:|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {r['data']} | {r['epochs']} | {r['batch_max'] or 128} | {r['method'] or 'all labels'} "
        f"| {r['sets'] or ''} | {r['active'] or ''} | {r['held P@1']:.4f} | {r['P@1']:.4f} "
        f"| {r['P@3']:.4f} | {r['P@5']:.4f} | {r['train_cpu_s']:.1f} |"
        for r in rows
    ]
    (RESULTS / "shortlists.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=",".join(CASES))
    options = parser.parse_args()
    path = RESULTS / "shortlists.json"
    rows: list[Settings] = json.loads(path.read_text())["rows"] if path.exists() else []
    for name in options.sets.split(","):
        train_path = options.folder / f"{name}.train.txt.gz"
        test = concatenate(read(options.folder, name).test)
        with tempfile.TemporaryDirectory() as tree:
            train("tree", train_path, {})[0].save(tree, overwrite=True)
            for values in CASES[name]:
                shown = {key.rpartition(".")[2]: value for key, value in values.items()}
                if not any(_is_of(row, name, shown) for row in rows):
                    rows.append(measure(name, train_path, test, values, tree))
                    write(rows)


def _is_of(row: Settings, name: str, shown: Settings) -> bool:
    return row["data"] == name and all(row[key] == shown.get(key) for key in SHOWN)


if __name__ == "__main__":
    main()
