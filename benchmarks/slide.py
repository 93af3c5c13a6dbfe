"""A sampled output layer beside the one of all labels: speed, and P@1 after the same time and rows.

For nvd-product (21,764 labels; ``FOLDER`` has ``nvd-product.train.txt.gz`` and ``.test.txt.gz``)
and for made-up rows with 200,000 labels: hidden 128, Adam, softmax, batches of 256, two threads,
the same first model, rows and learning rate for all. ``random`` is the control of ``simhash`` and
``dwta``: as many labels, drawn evenly. ``exact`` takes those whose softmax over all labels, summed
over the batch, is largest, in the place of those that hash tables name: what tables could reach.

    python benchmarks/slide.py FOLDER [--seconds 25] [--rounds 5] [--threads 2]

Speeds are medians over rounds in which all methods step in turns; ``times_full`` is the median of
the rounds' ratios. P@1 is on test rows, whose scoring is not counted in the time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from machine import write_result

from daskxml.config import load_run_config
from daskxml.data.rows import concatenate, unit_rows
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.model.parameters import initial_parameters
from daskxml.model.sampling import LabelTables, SamplingConfig, label_tables
from daskxml.model.spec import ModelSpec
from daskxml.ops import get_kernels
from daskxml.optim import OptimizerConfig
from daskxml.simulator import read_rows
from daskxml.training.replica import Replica
from daskxml.types import Array, Partition, Segment

BATCH_ROWS, SEED = 256, 1
METHODS = ("none", "random", "simhash", "dwta")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A data set, and what is measured on it."""

    name: str
    train: Partition
    test: Partition
    active: float
    lr: float
    epochs: float  # of the comparison at equal rows


class ExactTables(LabelTables):
    """Votes by the softmax over all labels: no hash tables, and no gain of time."""

    def refresh(self, kernels: Any, weight: Array, bias: Array, rows: int) -> None:
        """Look at the parameters as they are."""
        self._weight, self._bias = weight, bias

    def vote(self, kernels: Any, hidden: Array, votes: Array) -> None:
        """Give every label its part in the rows' losses."""
        logits = hidden @ self._weight.T + self._bias
        logits -= logits.max(axis=1, keepdims=True)
        np.exp(logits, out=logits)
        logits /= logits.sum(axis=1, keepdims=True)
        votes[0] = np.minimum(1e4 * logits.sum(axis=0), 1e6)


def nvd_product(folder: Path) -> Case:
    """Read it as a run does."""
    data = {
        "card": "nvd-product",
        "train": str(folder / "nvd-product.train.txt.gz"),
        "test": str(folder / "nvd-product.test.txt.gz"),
    }
    rows = read_rows(load_run_config({"data": data, "training": {"epochs": 1}}), 1)
    train, test = concatenate(rows.train), concatenate(rows.test)
    return Case(name="nvd-product", train=train, test=test, active=0.05, lr=0.002, epochs=3)


def synthetic() -> Case:
    """Make rows up."""
    train, test = generate(
        SyntheticSpec(
            rows=200_000, test_rows=2000, features=100_000, labels=200_000,
            features_per_row=40, labels_per_row=3, flatness=50,
        )
    )  # fmt: skip
    for part in (train, test):
        unit_rows(part.features)
    return Case(name="synthetic", train=train, test=test, active=0.01, lr=0.002, epochs=1)


def make_replica(case: Case, method: str, threads: int) -> Replica:
    spec = ModelSpec(features=case.train.features.columns, labels=case.train.labels.columns)
    is_exact = method == "exact"
    config = SamplingConfig(method="simhash" if is_exact else method, active=case.active)
    tables = label_tables(config, spec, SEED)
    if is_exact:
        tables = ExactTables(config, spec.labels, spec.hidden[-1], SEED)
    replica = Replica(
        spec, OptimizerConfig(name="adam"), get_kernels("cpu", threads),
        max_batch_rows=BATCH_ROWS, sampling=config, tables=tables,
    )  # fmt: skip
    replica.kernels.copy(replica.flat, initial_parameters(spec, SEED))
    return replica


def batches(case: Case) -> Iterator[list[Segment]]:
    """Batches of shuffled rows, for ever, the same for every method."""
    rng = np.random.default_rng(SEED)
    while True:
        order = rng.permutation(case.train.rows)
        for start in range(0, len(order) - BATCH_ROWS + 1, BATCH_ROWS):
            yield [Segment(case.train, order[start : start + BATCH_ROWS])]


def precision_at_1(replica: Replica, test: Partition, most: int = 4000) -> float:
    rows, y = np.arange(min(test.rows, most)), test.labels
    ids, _ = replica.top_k([Segment(test, rows)], 1)
    hits = (ids[row, 0] in y.indices[y.indptr[row] : y.indptr[row + 1]] for row in rows)
    return round(float(np.mean(list(hits))), 4)


def speeds(case: Case, threads: int, rounds: int, steps: int = 4) -> list[dict[str, Any]]:
    """Rows a second of every method, in turns."""
    replicas = {method: make_replica(case, method, threads) for method in METHODS}
    sources = {method: batches(case) for method in METHODS}
    spent: dict[str, list[float]] = {method: [] for method in METHODS}
    for turn in range(rounds + 1):  # the first one compiles and builds tables
        for method, replica in replicas.items():
            begun_s = time.perf_counter()
            for step in range(steps):
                replica.step(next(sources[method]), case.lr, turn * steps + step)
            spent[method].append((time.perf_counter() - begun_s) / steps)
    for replica in replicas.values():
        replica.kernels.close()
    return [
        {
            "set": case.name,
            "method": method,
            "active": 1.0 if method == "none" else case.active,
            "rows_s": round(BATCH_ROWS / statistics.median(spent[method][1:])),
            "times_full": round(
                statistics.median(
                    full / own
                    for full, own in zip(spent["none"][1:], spent[method][1:], strict=True)
                ), 1
            ),
        }
        for method in METHODS
    ]  # fmt: skip


def train(
    case: Case, method: str, threads: int, *, seconds: float = 0.0, epochs: float = 0.0
) -> dict[str, Any]:
    """Train for so long, or so far, and score; rebuilding tables is part of the time."""
    replica, source = make_replica(case, method, threads), batches(case)
    most = int(epochs * case.train.rows) if epochs else 1 << 62
    rows, seen, begun_s = 0, 0, time.perf_counter()
    while rows < most and (epochs or time.perf_counter() - begun_s < seconds):
        result = replica.step(next(source), case.lr, rows)
        rows, seen = rows + result.rows, seen + result.seen
    took_s = time.perf_counter() - begun_s
    found = {
        "set": case.name,
        "until": "equal rows" if epochs else "equal time",
        "method": method,
        "active": round(seen / rows / case.train.labels.columns, 4),
        "seconds": round(took_s, 1),
        "epochs": round(rows / case.train.rows, 2),
        "P@1": precision_at_1(replica, case.test),
        "tables_built": replica.tables.built if replica.tables else 0,
    }
    replica.kernels.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    speed, quality = [], []
    for case in (nvd_product(options.folder), synthetic()):
        speed += speeds(case, options.threads, options.rounds)
        quality += [train(case, m, options.threads, seconds=options.seconds) for m in METHODS]
        methods = (*METHODS[1:], "exact") if case.name == "nvd-product" else METHODS[1:]
        quality += [train(case, m, options.threads, epochs=case.epochs) for m in methods]
        for row in quality:
            print(row, flush=True)
    write_result("slide", speed, quality=quality, batch_rows=BATCH_ROWS, threads=options.threads)


if __name__ == "__main__":
    main()
