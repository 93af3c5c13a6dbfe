"""A sampled output layer beside the one of all labels: speed, and P@1 after the same time and rows.

For nvd-product (21,764 labels; ``FOLDER`` has ``nvd-product.train.txt.gz`` and ``.test.txt.gz``)
and for made-up rows with 200,000 labels: hidden 128, Adam, softmax, batches of 256, two threads,
the same first model, rows and learning rate for all. ``random`` is the control of ``simhash`` and
``dwta``: as many labels, drawn evenly. ``exact`` takes those whose softmax over all labels, summed
over the batch, is largest, in the place of those that hash tables name: what tables could reach.

    python benchmarks/quality/slide.py FOLDER [--seconds 25] [--rounds 5] [--threads 2] [--sets row]

``sets`` says whether the labels are those of a batch, or each row has its own as in SLIDE; for
``exact`` these are the labels with the largest logits of the row. ``chance`` is the least share of
the labels that is drawn evenly: with 0 a set has all that the tables name. ``--sets`` measures the
one or the other and keeps what ``slide.json`` has of the rest, whose commit ``measured`` tells.

Speeds are medians over rounds in which all methods step in turns; ``times_full`` is the median of
the rounds' ratios. P@1 is on test rows, whose scoring is not counted in the time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daskxml.config import load_run_config
from daskxml.core.arrays import Array, Partition, Segment
from daskxml.data.rows import concatenate, unit_rows
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.kernels import Lookup, get_kernels
from daskxml.local import read_rows
from daskxml.models.network.sampling import LabelTables, SamplingConfig, label_source
from daskxml.models.network.spec import ModelSpec, initial_parameters
from daskxml.optim import OptimizerConfig
from daskxml.worker.replica import Replica

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import RESULTS, machine, write_result

BATCH_ROWS, SEED = 256, 1


@dataclass(frozen=True, kw_only=True)
class Case:
    """A data set and its measurements."""

    name: str
    train: Partition
    test: Partition
    active: float  # of a batch
    row_active: tuple[float, ...]  # of each row
    lr: float
    epochs: float  # of the comparison at equal rows


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to choose the labels of a step."""

    method: str
    sets: str = "batch"
    active: float = 1.0
    chance: float = 0.5

    def columns(self) -> dict[str, Any]:
        """Return its columns of a table."""
        is_off = self.method == "none"
        return {
            "method": self.method,
            "sets": self.sets,
            "active": self.active,
            "chance": 0.0 if is_off else 1.0 if self.method == "random" else self.chance,
        }


FULL = Variant(method="none")


def batch_variants(case: Case) -> list[Variant]:
    methods = ("random", "simhash", "dwta")
    return [FULL, *(Variant(method=method, active=case.active) for method in methods)]


def row_variants(case: Case, exact: bool = False) -> list[Variant]:
    """Return variants with labels for each row, and as many drawn for the batch."""
    found = []
    for active in case.row_active:
        found.append(Variant(method="random", active=active))
        kinds = [("random", 0.5), ("simhash", 0.5), ("dwta", 0.5)]
        if active == min(case.row_active):  # tables name fewer labels than larger sets have
            kinds += [("exact", 0.5)] if exact else []
            kinds += [("simhash", 0.0), ("dwta", 0.0)]
        found += [Variant(method=m, sets="row", active=active, chance=c) for m, c in kinds]
    return found


class ExactTables(LabelTables):
    """Chooses labels by all their logits: no hash tables, and no gain in speed."""

    def refresh(self, kernels: Any, weight: Array, bias: Array, rows: int) -> None:
        """Keep the current parameters."""
        self._weight, self._bias = weight, bias

    def vote(self, kernels: Any, hidden: Array, batch: Any, votes: Array) -> None:
        """Give every label its share of the rows' losses."""
        logits = hidden @ self._weight.T + self._bias
        logits -= logits.max(axis=1, keepdims=True)
        np.exp(logits, out=logits)
        logits /= logits.sum(axis=1, keepdims=True)
        votes[0] = np.minimum(1e4 * logits.sum(axis=0), 1e6)

    def lookup(self, kernels: Any, hidden: Array, batch: Any) -> Lookup:
        """Give each row a bucket of its best labels."""
        most, rows = self.config.labels_of(self.labels), len(hidden)
        logits = hidden @ self._weight.T + self._bias
        best = np.argpartition(-logits, most, axis=1)[:, :most].astype(np.int32)
        starts = most * np.arange(rows + 1, dtype=np.int32).reshape(1, -1)
        return Lookup(np.arange(rows, dtype=np.int32).reshape(1, -1), starts, best.reshape(1, -1))


def nvd_product(folder: Path) -> Case:
    """Read the data set as a run does."""
    data = {
        "card": "nvd-product",
        "train": str(folder / "nvd-product.train.txt.gz"),
        "test": str(folder / "nvd-product.test.txt.gz"),
    }
    rows = read_rows(load_run_config({"data": data, "training": {"epochs": 1}}), 1)
    train, test = concatenate(rows.train), concatenate(rows.test)
    return Case(
        name="nvd-product", train=train, test=test, active=0.05, row_active=(0.05, 0.005),
        lr=0.002, epochs=3,
    )  # fmt: skip


def synthetic() -> Case:
    """Generate a data set."""
    train, test = generate(
        SyntheticSpec(
            rows=200_000, test_rows=2000, features=100_000, labels=200_000,
            features_per_row=40, labels_per_row=3, flatness=50,
        )
    )  # fmt: skip
    for part in (train, test):
        unit_rows(part.features)
    return Case(
        name="synthetic", train=train, test=test, active=0.01, row_active=(0.005,),
        lr=0.002, epochs=1,
    )  # fmt: skip


def make_replica(case: Case, variant: Variant, threads: int) -> Replica:
    spec = ModelSpec(features=case.train.features.columns, labels=case.train.labels.columns)
    is_exact = variant.method == "exact"
    config = SamplingConfig(
        method="simhash" if is_exact else variant.method, sets=variant.sets,
        active=variant.active, random=variant.chance,
    )  # fmt: skip
    kernels = get_kernels("cpu", threads)
    source = label_source(config, spec, SEED, kernels)
    if is_exact:
        source = ExactTables(config, spec.labels, spec.hidden[-1], SEED)
    replica = Replica(
        spec, OptimizerConfig(name="adam"), kernels,
        max_batch_rows=BATCH_ROWS, sampling=config, source=source,
    )  # fmt: skip
    replica.kernels.copy(replica.flat, initial_parameters(spec, SEED))
    return replica


def batches(case: Case) -> Iterator[list[Segment]]:
    """Yield batches of shuffled rows without end, the same for every method."""
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


def speeds(
    case: Case, variants: list[Variant], threads: int, rounds: int, steps: int = 4
) -> list[dict[str, Any]]:
    """Return the rows per second of every variant, measured in turns with the full layer."""
    replicas = {v: make_replica(case, v, threads) for v in (FULL, *variants)}
    sources = {variant: batches(case) for variant in replicas}
    spent: dict[Variant, list[float]] = {variant: [] for variant in replicas}
    for turn in range(rounds + 1):  # the first one compiles and builds tables
        for variant, replica in replicas.items():
            begun_s = time.perf_counter()
            for step in range(steps):
                replica.step(next(sources[variant]), case.lr, turn * steps + step)
            spent[variant].append((time.perf_counter() - begun_s) / steps)
    for replica in replicas.values():
        replica.kernels.close()
    return [
        {
            "set": case.name,
            **variant.columns(),
            "rows_s": round(BATCH_ROWS / statistics.median(spent[variant][1:])),
            "times_full": round(
                statistics.median(
                    full / own
                    for full, own in zip(spent[FULL][1:], spent[variant][1:], strict=True)
                ), 1
            ),
        }
        for variant in variants
    ]  # fmt: skip


def train(
    case: Case, variant: Variant, threads: int, *, seconds: float = 0.0, epochs: float = 0.0
) -> dict[str, Any]:
    """Train for some seconds or epochs, and score; rebuilding tables is part of the time."""
    replica, source = make_replica(case, variant, threads), batches(case)
    most = int(epochs * case.train.rows) if epochs else 1 << 62
    rows, seen, begun_s = 0, 0, time.perf_counter()
    while rows < most and (epochs or time.perf_counter() - begun_s < seconds):
        result = replica.step(next(source), case.lr, rows)
        rows, seen = rows + result.rows, seen + result.labels_scored
    took_s = time.perf_counter() - begun_s
    found = {
        "set": case.name,
        "until": "equal rows" if epochs else "equal time",
        **variant.columns(),
        "active": round(seen / rows / case.train.labels.columns, 4),
        "seconds": round(took_s, 1),
        "epochs": round(rows / case.train.rows, 2),
        "P@1": precision_at_1(replica, case.test),
        "tables_built": replica.source.built if isinstance(replica.source, LabelTables) else 0,
    }
    replica.kernels.close()
    print(found, flush=True)
    return found


def of_batches(case: Case, options: argparse.Namespace) -> tuple[list[Any], list[Any]]:
    """Return speeds, and P@1 after equal times and equal rows, of labels for a batch."""
    variants, threads = batch_variants(case), options.threads
    speed = speeds(case, variants, threads, options.rounds)
    quality = [train(case, v, threads, seconds=options.seconds) for v in variants]
    if case.name == "nvd-product":
        variants.append(Variant(method="exact", active=case.active))
    return speed, quality + [train(case, v, threads, epochs=case.epochs) for v in variants[1:]]


def of_rows(case: Case, options: argparse.Namespace) -> tuple[list[Any], list[Any]]:
    """Return speeds, and P@1 after equal rows, of labels for each row."""
    speed = speeds(case, row_variants(case), options.threads, options.rounds, steps=2)
    variants = row_variants(case, exact=case.name == "nvd-product")
    return speed, [train(case, v, options.threads, epochs=case.epochs) for v in variants]


PARTS = {"batch": of_batches, "row": of_rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sets", choices=[*PARTS], help="measure only these")
    options = parser.parse_args()
    path = RESULTS / "slide.json"
    found = json.loads(path.read_text()) if options.sets else {}
    found = {
        key: [row for row in found.get(key, []) if row["part"] != options.sets]
        for key in ("rows", "quality")
    } | {"measured": found.get("measured", {})}
    for case in (nvd_product(options.folder), synthetic()):
        for part, measure in PARTS.items():
            if options.sets in (None, part):
                for key, rows in zip(("rows", "quality"), measure(case, options), strict=True):
                    found[key] += [{"part": part, **row} for row in rows]
                found["measured"][part] = {key: machine()[key] for key in ("commit", "date")}
        write_result("slide", batch_rows=BATCH_ROWS, threads=options.threads, **found)


if __name__ == "__main__":
    main()
