# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""The accuracy lost by the rounding of a GPU's output layer, reproduced on a CPU.

The output layer's products with the rounding that a GPU gives them, on real sets (``FOLDER`` has
``NAME.train.txt.gz`` and ``NAME.test.txt.gz``): float32, TF32 (operands of 10 bits behind the
point), and ``output_dtype = "float16"`` (operands, logits and scaled gradients of float16, which
has as many). Hidden 128, Adam, softmax, batches of 256; the same rows and first models for all.

    python benchmarks/narrow.py FOLDER [--sets delicious stackex4-2k] [--seeds 3] [--epochs 10]

Ranks are those of float32 products, as on a GPU with ``exact``. Speed is not measured.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

from daskxml.config import load_run_config
from daskxml.core.arrays import Array, Csr, Partition, Segment
from daskxml.data.rows import concatenate
from daskxml.kernels.cpu.gemm import gemm
from daskxml.kernels.cpu.kernels import CpuKernels
from daskxml.local import read_rows
from daskxml.models.network.spec import ModelSpec, initial_parameters
from daskxml.optim import OptimizerConfig
from daskxml.worker.replica import Replica
from machine import write_result

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from harness.naive_kernels import NaiveKernels

BATCH_ROWS, LR = 256, 0.002
WAYS = ("float32", "tf32", "float16")


def tf32(x: Array) -> Array:
    """Round to 10 bits behind the point, ties away from zero, as GPUs do."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


class RoundingKernels(CpuKernels):
    """A CPU's kernels, with the output layer's products of another type.

    Parameters
    ----------
    labels
        Of the output layer: products that have none of it are float32.
    way
        One of `WAYS`.
    """

    has_fused_softmax = True

    def __init__(self, labels: int, way: str) -> None:
        super().__init__(1)
        self._labels, self._way = labels, way
        self._naive = NaiveKernels()
        self._lost = np.zeros(labels, np.float32)
        self.is_exact = False

    def block_labels(self, rows: int, labels: int) -> int:
        return labels

    def gemm(self, out: Array, a: Array, b: Array, alpha: float = 1.0, beta: float = 0.0) -> None:
        rounds = tf32 if self._way == "tf32" and self._labels in (*a.shape, *b.shape) else None
        if self.is_exact or (rounds is None and a.dtype == np.float32):
            gemm(out, a, b, alpha, beta)
        elif a.dtype == np.float32:
            gemm(out, rounds(a), rounds(b), alpha, beta)
        elif out.dtype == np.float32:
            gemm(out, a.astype(np.float32), b.astype(np.float32), alpha, beta)
        else:
            held = np.empty(out.shape, np.float32)
            gemm(held, a.astype(np.float32), b.astype(np.float32), alpha)
            out[...] = held

    def softmax_sums(self, logits: Array, bias: Array, peak: Array, total: Array) -> None:
        self._naive.softmax_sums(logits.astype(np.float32), bias, peak, total)

    def softmax_shift(self, out: Array, peak: Array, total: Array, weight: Array) -> None:
        self._naive.softmax_shift(out, peak, total, weight)

    def softmax_gradient(self, logits: Array, bias: Array, shift: Array, row_sums: Array) -> None:
        held = logits.astype(np.float32)
        self._naive.softmax_gradient(held, bias, shift, row_sums)
        logits[...] = held

    def target_logits(
        self, out: Array, logits: Array, bias: Array, y: Csr, rows: Array,
        first_row: int, first_label: int,
    ) -> None:  # fmt: skip
        at, labels = _targets(y, rows, first_row)
        np.add.at(out, at, logits[labels, at].astype(np.float32) + bias[labels])

    def subtract_targets_deferred(
        self, delta: Array, weights: Array, y: Csr, rows: Array, first_row: int,
        first_label: int, scale: float = 1.0,
    ) -> None:  # fmt: skip
        at, labels = _targets(y, rows, first_row)
        delta[labels, at] = delta[labels, at].astype(np.float32) - weights[at]
        np.add.at(self._lost, labels, weights[at] / np.float32(scale))

    def apply_deferred_sums(self, row_sums: Array, first_label: int = 0) -> None:
        lost = self._lost[first_label : first_label + row_sums.shape[0]]
        row_sums -= lost
        lost[:] = 0.0


def _targets(y: Csr, rows: Array, first_row: int) -> tuple[Array, Array]:
    """Return rows in the batch, and labels, of all targets."""
    lengths = y.indptr[rows + 1] - y.indptr[rows]
    labels = [y.indices[y.indptr[row] : y.indptr[row + 1]] for row in rows]
    return first_row + np.repeat(np.arange(len(rows)), lengths), np.concatenate(labels)


def read(folder: Path, name: str) -> tuple[Partition, Partition]:
    """Read the training and the test rows as a run does."""
    paths = {part: str(folder / f"{name}.{part}.txt.gz") for part in ("train", "test")}
    rows = read_rows(load_run_config({"data": paths, "training": {"epochs": 1}}), 1)
    return concatenate(rows.train), concatenate(rows.test)


def train(part: Partition, way: str, epochs: int, seed: int) -> tuple[Replica, float]:
    """Return a model, and the mean loss of its last epoch."""
    kernels = RoundingKernels(part.labels.columns, way)
    spec = ModelSpec(features=part.features.columns, labels=part.labels.columns)
    replica = Replica(
        spec, OptimizerConfig(name="adam"), kernels, max_batch_rows=BATCH_ROWS,
        output_dtype="float16" if way == "float16" else "float32",
    )  # fmt: skip
    kernels.copy(replica.flat, initial_parameters(spec, seed))
    for epoch in range(epochs):
        order = np.random.default_rng([seed, epoch]).permutation(part.rows)
        steps = -(-part.rows // BATCH_ROWS)
        lr = LR * (1 - epoch / epochs)
        results = [replica.step([Segment(part, chosen)], lr, key=0)
                   for chosen in np.array_split(order, steps)]  # fmt: skip
    return replica, sum(result.loss_sum for result in results) / part.rows


def precisions(replica: Replica, test: Partition) -> dict[str, float]:
    """Return P@1, P@3 and P@5 in per cent."""
    ids, _ = replica.top_k([Segment(test, np.arange(test.rows))], 5)
    y = test.labels
    hits = np.array([np.isin(ids[r], y.indices[y.indptr[r] : y.indptr[r + 1]])
                     for r in range(test.rows)])  # fmt: skip
    return {f"P@{k}": 100 * float(hits[:, :k].mean()) for k in (1, 3, 5)}


def measure(folder: Path, name: str, seeds: int, epochs: int) -> list[dict[str, Any]]:
    """Return a row for each way: medians over seeds, and their range."""
    part, test = read(folder, name)
    rows = []
    for way in WAYS:
        runs = [train(part, way, epochs, seed) for seed in range(seeds)]
        found = [{**precisions(replica, test), "loss": loss} for replica, loss in runs]
        row: dict[str, Any] = {"set": name, "output": way}
        for key in found[0]:
            values = [each[key] for each in found]
            row |= {key: statistics.median(values), f"{key} range": max(values) - min(values)}
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="+", default=["delicious", "stackex4-2k"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    rows = [row for name in options.sets
            for row in measure(options.folder, name, options.seeds, options.epochs)]  # fmt: skip
    write_result("narrow", rows, seeds=options.seeds, epochs=options.epochs)


if __name__ == "__main__":
    main()
