"""Train one peer of `benchmarks/quality/trees.py` on one thread, in an environment of its own.

    python benchmarks/quality/tree_peers.py TOOL FOLDER [TREES]

The folder has ``X.npz``, ``Y.npz`` and ``T.npz``, features and labels of the training rows and
features of the test rows, and ``train.txt``, the former two as text. Writes ``ids.npy`` ``(rows,
5)``, -1 where there are fewer, and ``found.json``. Imports nothing of daskxml: PECOS needs an older
NumPy.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

K = 5
SINGLE_ROWS = 500  # that are timed one by one
CANDIDATES = 20  # of each of several trees


def omikuji(folder: Path, T: Any, trees: int) -> tuple[Any, dict[str, float]]:
    """Train Parabel's trees, three of them by default; the time has that of reading the text."""
    import omikuji as package

    begun_s = time.process_time()
    parameters = package.Model.default_hyper_param()
    parameters.n_trees = trees or parameters.n_trees
    model = package.Model.train_on_data(str(folder / "train.txt"), parameters, n_threads=1)
    train_s = time.process_time() - begun_s
    rows = [
        list(zip(row.indices.tolist(), row.data.tolist(), strict=True))
        for row in (T[i] for i in range(T.shape[0]))
    ]
    begun_s = time.process_time()
    ranked = [model.predict(row, top_k=K) for row in rows]
    rank_s = time.process_time() - begun_s
    ids = np.full((T.shape[0], K), -1, np.int32)
    for row, labels in enumerate(ranked):
        ids[row, : len(labels[:K])] = [label for label, _ in labels[:K]]
    each = row_times(lambda i: model.predict(rows[i], top_k=K), T.shape[0])
    return ids, {"train_cpu_s": train_s, "rank_cpu_s": rank_s, **each}


def pecos(folder: Path, T: Any, trees: int) -> tuple[Any, dict[str, float]]:
    """Train XR-Linear with its defaults, one tree; of several, with seeds, scores are added up."""
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel

    X, Y = (scipy.sparse.load_npz(folder / f"{name}.npz") for name in "XY")
    begun_s = time.process_time()
    features = LabelEmbeddingFactory.create(Y, X, method="pifa")
    for tree in range(max(1, trees)):
        chain = Indexer.gen(features, indexer_type="hierarchicalkmeans", threads=1, seed=tree)
        XLinearModel.train(X, Y, C=chain, threads=1).save(folder / f"model{tree}")
    train_s = time.process_time() - begun_s
    models = [
        XLinearModel.load(folder / f"model{tree}", is_predict_only=True)
        for tree in range(max(1, trees))
    ]
    count = K if len(models) == 1 else CANDIDATES

    def predict(rows: Any) -> Any:
        return sum(model.predict(rows, only_topk=count, threads=1) for model in models)

    begun_s = time.process_time()
    scores = predict(T).tocsr()
    rank_s = time.process_time() - begun_s
    ids = np.full((T.shape[0], K), -1, np.int32)
    for row in range(T.shape[0]):
        span = slice(scores.indptr[row], scores.indptr[row + 1])
        best = np.argsort(-scores.data[span], kind="stable")[:K]
        ids[row, : best.shape[0]] = scores.indices[span][best]
    rows = [T[i] for i in range(min(T.shape[0], SINGLE_ROWS))]
    each = row_times(lambda i: predict(rows[i]), T.shape[0])
    return ids, {"train_cpu_s": train_s, "rank_cpu_s": rank_s, **each}


def napkinxc(folder: Path, T: Any, trees: int) -> tuple[Any, dict[str, float]]:
    """Train a probabilistic label tree with its defaults; several are an ensemble."""
    from napkinxc.models import PLT

    X, Y = (scipy.sparse.load_npz(folder / f"{name}.npz") for name in "XY")
    begun_s = time.process_time()
    model = PLT(str(folder / "napkinxc"), threads=1, ensemble=trees if trees > 1 else 0)
    model.fit(X, Y)
    train_s = time.process_time() - begun_s
    model.load()
    begun_s = time.process_time()
    ranked = model.predict(T, top_k=K)
    rank_s = time.process_time() - begun_s
    ids = np.full((T.shape[0], K), -1, np.int32)
    for row, labels in enumerate(ranked):
        ids[row, : len(labels)] = labels
    rows = [T[i] for i in range(min(T.shape[0], SINGLE_ROWS))]
    each = row_times(lambda i: model.predict(rows[i], top_k=K), T.shape[0])
    return ids, {"train_cpu_s": train_s, "rank_cpu_s": rank_s, **each}


def row_times(predict: Callable[[int], object], rows: int) -> dict[str, float]:
    """Return the median and the 99th percentile of the times of single rows, by the clock."""
    times = []
    for row in range(min(rows, SINGLE_ROWS)):
        begun_s = time.perf_counter()
        predict(row)
        times.append(time.perf_counter() - begun_s)
    median, slow = np.quantile(times, [0.5, 0.99])
    return {"row_ms": 1e3 * float(median), "row_p99_ms": 1e3 * float(slow)}


TOOLS = {
    "omikuji": (omikuji, "omikuji"),
    "PECOS": (pecos, "libpecos"),
    "napkinXC": (napkinxc, "napkinxc"),
}


def main() -> None:
    """Measure the tool that the command line names."""
    tool, folder = sys.argv[1], Path(sys.argv[2])
    measure, package = TOOLS[tool]
    trees = int(sys.argv[3]) if len(sys.argv) > 3 else 0  # as many as is the tool's default
    ids, found = measure(folder, scipy.sparse.load_npz(folder / "T.npz"), trees)
    np.save(folder / "ids.npy", ids)
    (folder / "found.json").write_text(json.dumps({**found, "version": version(package)}))


if __name__ == "__main__":
    main()
