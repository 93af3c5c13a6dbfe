"""Label trees beside omikuji and PECOS: accuracy on the test rows, and processor seconds.

Each tool trains in this process with one thread; what counts is the processor time from rows in
memory to the model, so that what else the machine does matters little. `CHOSEN` was chosen on
held-out training rows; all else has its default.

    pip install omikuji libpecos
    python benchmarks/trees.py FOLDER [--sets bibtex,delicious] [--tools "daskxml, tree;PECOS"]

The folder has ``NAME.train.txt.gz`` and ``NAME.test.txt.gz``. Writes ``results/trees.json`` and
``results/trees.md``.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import argparse
import gzip
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from daskxml.config import load_run_config
from daskxml.data.rows import to_scipy
from daskxml.in_process.rows import Rows, read_rows
from daskxml.in_process.run import InProcessRun
from daskxml.metrics import metric_sums
from daskxml.model.tree.clustering import find_label_orders
from daskxml.model.tree.spec import TreeSpec
from machine import RESULTS, write_result

SETS = "bibtex,delicious,stackex4-2k,citeuliket-8k,nvd-product"
CHOSEN: dict[str, list[str]] = {"nvd-product": ["model.lr=1.0", "model.passes=8"]}
KS = (1, 3, 5)
Found = dict[str, Any]


def precision(ids: Any, rows: Rows) -> Found:
    """Return P@k of ranked labels, ``(rows, 5)``; -1 where there are fewer."""
    (test,) = rows.test
    counts = np.ones(test.labels.columns)
    result = metric_sums(np.ascontiguousarray(ids, np.int32), test.labels, counts, KS).result()
    return {f"P@{k}": result[f"P@{k}"] for k in KS}


def ours(run_file: str) -> Callable[[str, Path, Rows], Found]:
    """Return what measures one of our run files."""

    def measure(name: str, folder: Path, rows: Rows) -> Found:
        values = [*CHOSEN.get(name, []), "cluster.threads=1"]
        config = load_run_config(run_file, values)
        spec = config.model_spec(rows.facts.features, rows.facts.labels)
        assert isinstance(spec, TreeSpec)
        begun_s = time.process_time()
        trees, seed = int(config.training.epochs), config.run.seed
        orders = find_label_orders(rows.train, spec, trees, seed)
        given = replace(rows, test=(), label_orders=orders)
        model, _ = InProcessRun(config, given, lambda event: None).run()
        train_s = time.process_time() - begun_s
        model.threads = 1
        (test,) = rows.test
        model.predict_top_k(to_scipy(test.features)[:50], k=5)
        begun_s = time.process_time()
        ids, _ = model.predict_top_k(to_scipy(test.features), k=5)
        rank_s = time.process_time() - begun_s
        nbytes = sum(array.nbytes for array in model.parameters.values())
        found = {"train_cpu_s": train_s, "rows_per_s": test.rows / rank_s, "mb": nbytes / 1e6}
        return precision(ids, rows) | found

    return measure


def omikuji(name: str, folder: Path, rows: Rows) -> Found:
    """Train Parabel's trees, three of them by default."""
    import omikuji

    (test,) = rows.test
    with tempfile.TemporaryDirectory() as place:
        text = Path(place) / "train.txt"
        with gzip.open(folder / f"{name}.train.txt.gz") as packed, text.open("wb") as file:
            shutil.copyfileobj(packed, file)
        begun_s = time.process_time()
        parameters = omikuji.Model.default_hyper_param()
        model = omikuji.Model.train_on_data(str(text), parameters, n_threads=1)
        train_s = time.process_time() - begun_s
    features = to_scipy(test.features)
    lines = [
        list(zip(row.indices.tolist(), row.data.tolist(), strict=True)) for row in _each(features)
    ]
    begun_s = time.process_time()
    ranked = [model.predict(line, top_k=5) for line in lines]
    rank_s = time.process_time() - begun_s
    ids = np.full((test.rows, 5), -1, np.int32)
    for place_, labels in enumerate(ranked):
        for rank, (label, _) in enumerate(labels[:5]):
            ids[place_, rank] = label
    return precision(ids, rows) | {"train_cpu_s": train_s, "rows_per_s": test.rows / rank_s}


def _each(matrix: Any) -> Iterator[Any]:
    for row in range(matrix.shape[0]):
        yield matrix[row]


def pecos(name: str, folder: Path, rows: Rows) -> Found:
    """Train XR-Linear with its defaults."""
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel

    (train,), (test,) = rows.train, rows.test
    X, Y, T = to_scipy(train.features), to_scipy(train.labels), to_scipy(test.features)
    begun_s = time.process_time()
    vectors = LabelEmbeddingFactory.create(Y, X, method="pifa", threads=1)
    chain = Indexer.gen(vectors, indexer_type="hierarchicalkmeans", threads=1)
    model = XLinearModel.train(X, Y, C=chain, threads=1)
    train_s = time.process_time() - begun_s
    begun_s = time.process_time()
    scores = model.predict(T, only_topk=5, threads=1).tocsr()
    rank_s = time.process_time() - begun_s
    ids = np.full((test.rows, 5), -1, np.int32)
    for place, row in enumerate(_each(scores)):
        best = row.indices[np.argsort(-row.data, kind="stable")][:5]
        ids[place, : best.shape[0]] = best
    return precision(ids, rows) | {"train_cpu_s": train_s, "rows_per_s": test.rows / rank_s}


TOOLS: dict[str, Callable[[str, Path, Rows], Found]] = {
    "daskxml, tree": ours("tree"),
    "daskxml, trees": ours("trees"),
    "omikuji": omikuji,
    "PECOS": pecos,
}


def main() -> None:
    """Measure every tool on every set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--tools", default=";".join(TOOLS))
    options = parser.parse_args()
    results: list[Found] = []
    ours("tree")("", options.folder, _read(options.folder, "bibtex"))  # compiles the kernels
    for name in options.sets.split(","):
        rows = _read(options.folder, name)
        for tool in options.tools.split(";"):
            try:
                found = TOOLS[tool](name, options.folder, rows)
            except ImportError as error:
                print(f"{tool} is left out: {error}")
                continue
            results.append({"data": name, "tool": tool, **found})
            print(json.dumps(results[-1]), flush=True)
    write_result("trees", [_row(found) for found in results], chosen=CHOSEN)
    _write_table(results)


def _read(folder: Path, name: str) -> Rows:
    paths = {part: str(folder / f"{name}.{part}.txt.gz") for part in ("train", "test")}
    values = {"data": paths, "training": {"epochs": 1}}
    values["data"] = {part: [path] for part, path in paths.items()}
    return read_rows(load_run_config(values), 1)


def _row(found: Found) -> Found:
    keys = ("data", "tool", "P@1", "P@3", "P@5", "train_cpu_s", "rows_per_s", "mb")
    return {key: found.get(key) for key in keys}


def _write_table(results: list[Found]) -> None:
    lines = [
        "# Label trees beside omikuji and PECOS",
        "",
        "Written by `python benchmarks/trees.py`: processor seconds of one thread, from",
        "rows in memory to the model; machine, commit and packages in `trees.json`. Peers",
        "have default parameters.",
        "",
        "| data | tool | P@1 | P@3 | P@5 | training, CPU s | rows/s ranked |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {r['data']} | {r['tool']} | {r['P@1']:.4f} | {r['P@3']:.4f} | {r['P@5']:.4f} "
        f"| {r['train_cpu_s']:.1f} | {r['rows_per_s']:,.0f} |"
        for r in results
    ]
    (RESULTS / "trees.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
