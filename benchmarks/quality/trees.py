"""Label trees beside other tools: accuracy on the test rows, and processor seconds.

Each tool trains with one thread; what counts is the processor time from rows in memory (omikuji:
from text) to the model, so that what else the machine does matters little. All have their default
settings. Peers are left out unless ``--peers`` names the Python of an environment that has them:

    python -m venv PLACE && PLACE/bin/pip install omikuji libpecos napkinxc libmultilabel
    python benchmarks/quality/trees.py FOLDER --peers PLACE/bin/python [--sets bibtex,delicious]
        [--generated 200000] [--name trees]

``--generated`` adds sets of so many labels, of Amazon-670k's shape otherwise, and of 50,000 rows:
they tell times, and no accuracy that says anything about real rows. The folder has
``NAME.train.txt.gz`` and ``NAME.test.txt.gz``. Writes ``results/trees.json``, ``trees.md`` and
``trees.png``, or files of another ``--name``, after every row. What is there is not measured again,
but for ours of other commits.
"""

from __future__ import annotations

import os
import sys

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import argparse
import gzip
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from daskxml.config import load_run_config
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, write_xml
from daskxml.local.fit_run import LocalFitRun
from daskxml.local.rows import read_rows
from daskxml.metrics import metric_sums
from daskxml.session.row_loading import Rows, Shards
from tree_peers import TOOLS as PEERS
from tree_peers import K, row_times

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import RESULTS, machine, write_result

SETS = "bibtex,delicious,stackex4-2k,citeuliket-8k,nvd-product"
OURS = {  # run files, and a number of trees
    "daskxml, tree": ("tree", 1), "daskxml, two trees": ("best", 2), "daskxml, trees": ("best", 4)
}  # fmt: skip
KS = (1, 3, K)
Found = dict[str, Any]


def ours(run_file: str, rows: Rows, trees: int = 0) -> tuple[Any, Found]:
    """Train by one of our run files; return the labels ranked and what it took.

    ``trees`` is their number, by default the run file's.
    """
    number = [f"training.trees={trees}"] if trees else []
    config = load_run_config(run_file, ["cluster.threads=1", *number])
    begun_s = time.process_time()
    model, _ = LocalFitRun(config, replace(rows, test=Shards([], ())), lambda event: None).run()
    train_s = time.process_time() - begun_s
    model.threads = 1
    (test,) = rows.test.parts
    features = to_scipy(test.features)
    singles = [features[i] for i in range(min(500, test.rows))]
    each = row_times(lambda i: model.predict_top_k(singles[i], k=K), len(singles))
    begun_s = time.process_time()
    ids, _ = model.predict_top_k(features, k=K)
    rank_s = time.process_time() - begun_s
    nbytes = sum(array.nbytes for array in model.parameters.values())
    return ids, {"train_cpu_s": train_s, "rank_cpu_s": rank_s, **each, "mb": nbytes / 1e6}


def peer(tool: str, python: str, text: Path, rows: Rows) -> tuple[Any, Found]:
    """Train a peer in its own environment; return the labels ranked and what it took."""
    (train,), (test,) = rows.train.parts, rows.test.parts
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for matrix, csr in (("X", train.features), ("Y", train.labels), ("T", test.features)):
            scipy.sparse.save_npz(folder / f"{matrix}.npz", to_scipy(csr), compressed=False)
        with gzip.open(text) as packed, (folder / "train.txt").open("wb") as file:
            shutil.copyfileobj(packed, file)
        script = Path(__file__).with_name("tree_peers.py")
        environment = {key: v for key, v in os.environ.items() if key != "PYTHONPATH"}
        command = [python, str(script), tool, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise SystemExit(f"{tool} on {text.name}: {done.stderr[-2000:]}")
        return np.load(folder / "ids.npy"), json.loads((folder / "found.json").read_text())


def precision(ids: Any, rows: Rows) -> Found:
    """Return P@k of ranked labels, ``(rows, 5)``; -1 where there are fewer."""
    (test,) = rows.test.parts
    counts = np.ones(test.labels.columns)
    result = metric_sums(np.ascontiguousarray(ids, np.int32), test.labels, counts, KS).result()
    return {f"P@{k}": result[f"P@{k}"] for k in KS}


def main() -> None:
    """Measure every tool on every set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--tools", default=";".join([*OURS, *PEERS]))
    parser.add_argument("--generated", default="", help="numbers of labels")
    parser.add_argument("--peers", help="the Python that has the other tools")
    parser.add_argument("--name", default="trees", help="of the files of results")
    options = parser.parse_args()
    tools = [tool for tool in options.tools.split(";") if options.peers or tool not in PEERS]
    results, is_warm = _rows_of_before(options.name), False
    sizes = {f"generated-{count}": int(count) for count in options.generated.split(",") if count}
    with tempfile.TemporaryDirectory() as made:
        for name in [*filter(None, options.sets.split(",")), *sizes]:
            missing = [tool for tool in tools if (name, tool) not in results]
            if not missing:
                continue
            folder = Path(made) if name in sizes else options.folder
            if name in sizes:
                write_generated(folder, name, sizes[name])
            rows = read(folder, name)
            for tool in missing:
                if tool in OURS:
                    if not is_warm:  # compiles the kernels
                        is_warm = bool(ours("tree", read(options.folder, "bibtex")))
                    ids, found = ours(OURS[tool][0], rows, OURS[tool][1])
                else:
                    text = folder / f"{name}.train.txt.gz"
                    ids, found = peer(tool, options.peers, text, rows)
                results[name, tool] = _row(name, tool, precision(ids, rows) | found, rows)
                _write(options.name, results)


def write_generated(folder: Path, name: str, labels: int) -> None:
    """Write training and test rows of so many labels."""
    for part in ("train", "test"):
        write_xml(folder / f"{name}.{part}.txt.gz", shape(labels), part)


def shape(labels: int, rows: int = 50_000) -> SyntheticSpec:
    """Return rows of Amazon-670k's shape, which has 490,449 training rows and 670,091 labels."""
    return SyntheticSpec(
        rows=rows, test_rows=2000, features=135_909, labels=labels,
        features_per_row=76, labels_per_row=5.5, flatness=50,
    )  # fmt: skip


def read(folder: Path, name: str) -> Rows:
    paths = {part: [str(folder / f"{name}.{part}.txt.gz")] for part in ("train", "test")}
    return read_rows(load_run_config({"data": paths, "training": {"epochs": 1}}), 1)


def _row(name: str, tool: str, found: Found, rows: Rows) -> Found:
    per_s = sum(part.rows for part in rows.test.parts) / found["rank_cpu_s"]
    keys = ("P@1", "P@3", "P@5", "train_cpu_s")
    return {
        "data": name, "tool": tool, "version": found.get("version"),
        **{key: found[key] for key in keys}, "rows_per_s": per_s,
        "row_ms": found["row_ms"], "row_p99_ms": found["row_p99_ms"], "mb": found.get("mb"),
        "load": os.getloadavg()[0],
    }  # fmt: skip


def _rows_of_before(name: str) -> dict[tuple[str, str], Found]:
    """Return the rows of the result file that hold: of the same machine, ours of this commit."""
    try:
        before = json.loads((RESULTS / f"{name}.json").read_text())
    except (OSError, ValueError):
        return {}
    here, there = machine(), before["machine"]
    tools = {*PEERS, *(OURS if here["commit"] == there["commit"] else ())}
    rows = before["rows"] if here["cpu"] == there["cpu"] else []
    return {(row["data"], row["tool"]): row for row in rows if row["tool"] in tools}


def _write(file: str, results: dict[tuple[str, str], Found]) -> None:
    names, tools = SETS.split(","), [*OURS, *PEERS]

    def place(row: Found) -> tuple[int, str, int]:
        name = names.index(row["data"]) if row["data"] in names else len(names)
        return name, row["data"], tools.index(row["tool"])

    rows = sorted(results.values(), key=place)
    write_result(file, rows)
    lines = [
        "# Label trees beside omikuji, PECOS, napkinXC and LibMultiLabel",
        "",
        "Written by `python benchmarks/quality/trees.py`: processor seconds of one thread, from",
        "rows in memory to the model; milliseconds of one row alone by the clock, median and 99th",
        f"of 500; default settings. Machine, commit, and the machine's load in `{file}.json`.",
        "",
        "| data | tool | P@1 | P@3 | P@5 | training, CPU s | rows/s ranked | ms a row | p99 |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {r['data']} | {r['tool']} | {r['P@1']:.4f} | {r['P@3']:.4f} | {r['P@5']:.4f} "
        f"| {r['train_cpu_s']:.1f} | {r['rows_per_s']:,.0f} | {r['row_ms']:.2f} "
        f"| {r['row_p99_ms']:.2f} |"
        for r in rows
    ]
    (RESULTS / f"{file}.md").write_text("\n".join([*lines, ""]), encoding="utf-8")
    draw(file, [row for row in rows if not row["data"].startswith("generated")])


def draw(file: str, rows: list[Found]) -> None:
    """Draw P@1, P@3 and P@5 of each tool against the processor seconds of its training."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    measured = {row["tool"] for row in rows}
    markers = dict(zip([*OURS, *PEERS], "os^v<DPX", strict=True))
    markers = {tool: marker for tool, marker in markers.items() if tool in measured}
    figure = Figure((max(7.2, 2.4 * len(names)), 6.5), layout="constrained")
    panels = figure.subplots(len(KS), len(names), sharex="col", squeeze=False)
    for (k, line), (column, name) in itertools.product(enumerate(KS), enumerate(names)):
        panel = panels[k, column]
        for tool, marker in markers.items():
            found = [row for row in rows if row["data"] == name and row["tool"] == tool]
            color = "tab:blue" if tool in OURS else "tab:gray"
            panel.scatter([row["train_cpu_s"] for row in found],
                          [row[f"P@{line}"] for row in found],
                          marker=marker, color=color, label=tool)  # fmt: skip
        panel.set(xscale="log", title="" if k else name, ylabel="" if column else f"P@{line}")
        panel.tick_params(labelsize=7)
        panel.xaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), major_formatter="{x:g}")
        panel.xaxis.set(minor_locator=NullLocator())
    figure.supxlabel("processor seconds of training, one thread")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    figure.savefig(RESULTS / f"{file}.png", dpi=110)


if __name__ == "__main__":
    main()
