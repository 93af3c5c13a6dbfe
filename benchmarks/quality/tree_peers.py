"""Train one peer of `benchmarks/quality/trees.py` on one thread, in an environment of its own.

    python benchmarks/quality/tree_peers.py TOOL FOLDER

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

K = 5
SINGLE_ROWS = 500  # that are timed one by one
Labels = list[Sequence[int]]  # of rows, best first


@dataclass(frozen=True)
class Trained:
    """A peer's model: what ranks rows, the only part that is timed, what comes before and after."""

    train_cpu_s: float
    rank: Callable[[Any], Any]
    prepare: Callable[[Any], Any] = lambda rows: rows
    read: Callable[[Any], Labels] = lambda ranked: ranked


def omikuji(folder: Path, **settings: Any) -> Trained:
    """Train Parabel's three trees, or others; the time has that of reading the text."""
    import omikuji as package

    begun_s = time.process_time()
    parameters = package.Model.default_hyper_param()
    for name, value in settings.items():
        setattr(parameters, name, value)
    model = package.Model.train_on_data(str(folder / "train.txt"), parameters, n_threads=1)
    train_s = time.process_time() - begun_s

    def prepare(T: Any) -> Any:
        rows = (T[i] for i in range(T.shape[0]))
        return [list(zip(row.indices.tolist(), row.data.tolist(), strict=True)) for row in rows]

    def rank(rows: Any) -> Any:
        return [model.predict(row, top_k=K) for row in rows]

    return Trained(train_s, rank, prepare, lambda ranked: [[i for i, _ in row] for row in ranked])


def pecos(folder: Path) -> Trained:
    """Train XR-Linear, one tree."""
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel

    X, Y = read_rows(folder)
    begun_s = time.process_time()
    features = LabelEmbeddingFactory.create(Y, X, method="pifa")
    chain = Indexer.gen(features, indexer_type="hierarchicalkmeans", threads=1)
    XLinearModel.train(X, Y, C=chain, threads=1).save(folder / "model")
    train_s = time.process_time() - begun_s
    model = XLinearModel.load(folder / "model", is_predict_only=True)

    def read(scores: Any) -> Labels:
        spans = map(slice, scores.indptr[:-1], scores.indptr[1:])
        return [scores.indices[s][np.argsort(-scores.data[s], kind="stable")] for s in spans]

    return Trained(train_s, rank=partial(model.predict, only_topk=K, threads=1), read=read)


def napkinxc(folder: Path) -> Trained:
    """Train a probabilistic label tree."""
    from napkinxc.models import PLT

    X, Y = read_rows(folder)
    begun_s = time.process_time()
    model = PLT(str(folder / "napkinxc"), threads=1)
    model.fit(X, Y)
    train_s = time.process_time() - begun_s
    model.load()
    return Trained(train_s, rank=partial(model.predict, top_k=K))


def libmultilabel(folder: Path) -> Trained:
    """Train a linear tree, which scores all labels of a row: few rows are ranked at a time."""
    from libmultilabel.linear import train_tree

    X, Y = read_rows(folder)
    begun_s = time.process_time()
    model = train_tree(Y, X, "-m 1", verbose=False)
    train_s = time.process_time() - begun_s

    def rank(T: Any) -> Any:
        blocks = (T[first : first + 256] for first in range(0, T.shape[0], 256))
        scores = map(model.predict_values, blocks)
        return np.concatenate([np.argsort(-each, kind="stable")[:, :K] for each in scores])

    return Trained(train_s, rank)


def read_rows(folder: Path) -> list[Any]:
    return [scipy.sparse.load_npz(folder / f"{name}.npz") for name in "XY"]


def row_times(predict: Callable[[int], object], rows: int) -> dict[str, float]:
    """Return the median and the 99th percentile of the times of single rows, by the clock."""
    times = []
    for row in range(min(rows, SINGLE_ROWS)):
        begun_s = time.perf_counter()
        predict(row)
        times.append(time.perf_counter() - begun_s)
    median, slow = np.quantile(times, [0.5, 0.99])
    return {"row_ms": 1e3 * float(median), "row_p99_ms": 1e3 * float(slow)}


BONSAI = {"cluster_balanced": False, "cluster_k": 100, "max_depth": 3}  # as omikuji's README has it
TOOLS = {
    "omikuji": (omikuji, "omikuji"),
    "omikuji, Bonsai": (partial(omikuji, **BONSAI), "omikuji"),
    "PECOS": (pecos, "libpecos"),
    "napkinXC": (napkinxc, "napkinxc"),
    "LibMultiLabel": (libmultilabel, "libmultilabel"),
}


def main() -> None:
    """Measure the tool that the command line names."""
    tool, folder = sys.argv[1], Path(sys.argv[2])
    train, package = TOOLS[tool]
    T = scipy.sparse.load_npz(folder / "T.npz")
    model = train(folder)
    rows = model.prepare(T)
    begun_s = time.process_time()
    ranked = model.rank(rows)
    rank_s = time.process_time() - begun_s
    ids = np.full((T.shape[0], K), -1, np.int32)
    for row, labels in zip(ids, model.read(ranked), strict=True):
        row[: len(labels[:K])] = labels[:K]
    singles = [model.prepare(T[i]) for i in range(min(T.shape[0], SINGLE_ROWS))]
    each = row_times(lambda i: model.rank(singles[i]), T.shape[0])
    np.save(folder / "ids.npy", ids)
    found = {"train_cpu_s": model.train_cpu_s, "rank_cpu_s": rank_s, **each}
    (folder / "found.json").write_text(json.dumps({**found, "version": version(package)}))


if __name__ == "__main__":
    main()
