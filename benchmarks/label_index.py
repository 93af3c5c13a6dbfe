"""Indexes of labels beside exact ranking in 32 and in 8 bits: labels found, P@5, and time.

    python benchmarks/label_index.py DATA MODELS [--sets stackex4-2k,nvd-product] \\
        [--generated 200000] [--random 670000] [--recall 0.99]

``DATA`` holds ``NAME.train.txt.gz`` and ``NAME.test.txt.gz``; of every set a network is trained
(the run file ``best``, 128 hidden units, 8 epochs). ``--generated`` trains networks of so many
labels on 300,000 generated rows, with the softmax loss on a sample of 3,000 labels a batch, for 2
epochs: an output layer that has learned something. Both are kept in ``MODELS`` for the next time.
One half of the test rows chooses what is looked into, 1,000 of the other, spread over all, are
asked for. Sizes and sets that are not asked for keep their rows in the result files.

``--random`` is of time alone: random weights have no clusters. It looks into as many groups and
clusters as the index of the last trained network, and its labels lie in any order.

Everything is on one thread and timed by the processor's clock: of one row alone, the median over
rows of the best of five, with the ways in turns; of a batch of 256 rows, the best of three.
"""

from __future__ import annotations

import os

os.environ |= {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "NUMBA")}

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from compressed import trained
from daskxml import Matrices, Model, compress, index
from daskxml.api.model_rows import read_rows
from daskxml.api.train_here import train_here
from daskxml.core.arrays import Partition
from daskxml.data.rows import concatenate, to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.kernels.label_index import LabelIndex
from daskxml.kernels.quantised import quantise
from daskxml.models.network.indexing import recall_of
from daskxml.models.network.label_index import index_arrays, index_of, node_bounds
from daskxml.models.network.spec import Layout, ModelSpec
from daskxml.models.store import ModelHeader, holds_model
from machine import RESULTS, write_result

K, ASKED, TIMED, BATCH = 5, 1000, 100, 256
GENERATED = {
    "rows": 300_000, "test_rows": 3000, "features": 135_909, "features_per_row": 76.0,
    "labels_per_row": 5.0, "label_exponent": 0.5, "feature_exponent": 0.6, "noise": 0.3, "seed": 1,
}  # fmt: skip
TRAINING = (
    "training.epochs=2", "model.hidden=[128]", "model.loss='softmax'", "model.dropout=0.0",
    "model.feature_dropout=0.0", "model.output_bias=0.0", "model.init_scale=1.0",
    "sampling.method='random'", "sampling.active=3000", "strategy.batch_max=256",
    "strategy.lr=0.01", "evaluation.every=1000000", "checkpoint.every=1000000",
    "training.keep_best=false", "cluster.threads=1",
)  # fmt: skip
Row = dict[str, Any]


def of_a_set(data: Path, models: Path, name: str) -> tuple[Model, Any, Any]:
    """Return a set's network, and features and labels of its test rows."""
    if not holds_model(models / name):
        trained(data, name, "network")[0].save(models / name)
    model = Model.load(models / name, threads=1)
    test = concatenate(list(read_rows(model, [str(data / f"{name}.test.txt.gz")])))
    return model, *of_partition(test)


def generated(models: Path, labels: int) -> tuple[Model, Any, Any]:
    """Return a network of so many labels, and generated test rows."""
    folder = models / f"generated-{labels}"
    spec = SyntheticSpec(labels=labels, **GENERATED)
    held = folder / "test.npz", folder / "truth.npz"
    if not holds_model(folder):
        train, test = generate(spec)
        rows = Matrices(*of_partition(train))
        train_here("best", train=rows, overrides=TRAINING).model.save(folder)
        for file, matrix in zip(held, of_partition(test), strict=True):
            scipy.sparse.save_npz(file, matrix)
    features, truth = map(scipy.sparse.load_npz, held)
    return Model.load(folder, threads=1), features, truth


def of_partition(part: Partition) -> tuple[Any, Any]:
    """Return features and labels as SciPy's."""
    return to_scipy(part.features), to_scipy(part.labels)


def with_random_index(labels: int, groups: int, clusters: int) -> Model:
    """Return a network of random weights whose index looks into so many."""
    rng = np.random.default_rng(0)
    spec = ModelSpec(features=GENERATED["features"], labels=labels)
    slots = Layout(spec).slots.items()
    arrays: dict[str, Any] = {
        name: 0.1 * rng.standard_normal(slot.shape, np.float32) for name, slot in slots
    }
    bounds = node_bounds(labels)
    nodes = [
        (
            quantise(rng.standard_normal((cut.size - 1, 128), np.float32), 8),
            np.zeros(cut.size - 1, np.float32),
            np.ones(cut.size - 1, np.float32),
        )
        for cut in bounds
    ]
    order = rng.permutation(labels).astype(np.int32)
    found = LabelIndex(order, bounds[1], *nodes[0], *nodes[1], groups, clusters, K)
    header, counts = ModelHeader(spec=spec, training_rows=1), np.ones(labels, np.int64)
    return Model(header, arrays | index_arrays(found), counts, threads=1)


def ways_of(model: Model) -> dict[str, Model]:
    """Return an indexed model's ways to rank."""
    return {
        "all, 32 bits": model.exact,
        "all, 8 bits": compress(model.exact, bits=8),
        "index, 32 bits": model,
        "index, 8 bits": compress(model, bits=8),
    }


def best_ms(work: Callable[[], object], times: int) -> float:
    """Return the least processor time of some calls."""
    took = []
    for _ in range(times):
        begun = time.thread_time()
        work()
        took.append(time.thread_time() - begun)
    return 1e3 * min(took)


def timed(ways: dict[str, Model], rows: Any) -> dict[str, Row]:
    """Return the times of single rows and of a batch, by way."""
    each = [rows[i] for i in range(min(TIMED, rows.shape[0]))]
    for model in ways.values():
        model.warm_up()
    singles = [
        [best_ms(lambda m=model, r=row: m.predict_top_k(r, K), 5) for model in ways.values()]
        for row in each
    ]
    medians, slow = np.median(singles, axis=0), np.quantile(singles, 0.99, axis=0)
    return {
        name: {
            "row_ms": float(medians[place]),
            "row_p99_ms": float(slow[place]),
            "rows_per_cpu_s": 1e3 * min(BATCH, rows.shape[0])
            / best_ms(lambda m=model: m.predict_top_k(rows[:BATCH], K), 3),
        }
        for place, (name, model) in enumerate(ways.items())
    }  # fmt: skip


def measured(name: str, plain: Model, features: Any, truth: Any, recall: float) -> Iterator[Row]:
    """Make an index of one model, and yield a row for each way to rank."""
    begun = time.process_time()
    model = index(plain, features[::2], recall=recall, k=K)
    made_s = time.process_time() - begun
    others = np.arange(1, features.shape[0], 2)
    asked = others[:: max(1, len(others) // ASKED)][:ASKED]  # some sets are in the order of time
    features, truth = features[asked], truth[asked]
    ways, wanted = ways_of(model), plain.predict_top_k(features, K)[0]
    times, found = timed(ways, features), index_of(model.parameters)
    assert found is not None
    for way, each in ways.items():
        ids = np.concatenate([each.predict_top_k(row, K)[0] for row in features])
        hits = truth[np.arange(len(ids))[:, None], ids]
        looked = [found.probed_groups, found.probed_clusters] if "index" in way else [None] * 2
        yield {
            "data": name, "labels": plain.spec.labels, "way": way,
            "recall": recall_of(ids, wanted), "P@5": float((hits != 0).mean()),
            "groups": len(found.groups), "clusters": len(found.clusters),
            "probed_groups": looked[0], "probed_clusters": looked[1], **times[way],
            "index_mb": sum(a.nbytes for n, a in model.parameters.items() if "index." in n) / 1e6,
            "made_cpu_s": made_s if "index" in way else None,
        }  # fmt: skip


def only_timed(labels: int, probes: tuple[int, int]) -> Iterator[Row]:
    """Yield the times of random weights."""
    model, rng = with_random_index(labels, *probes), np.random.default_rng(1)
    rows = scipy.sparse.random(
        BATCH, model.spec.features, 76 / model.spec.features, "csr", np.float32, rng
    )
    found = index_of(model.parameters)
    assert found is not None
    for way, times in timed(ways_of(model), rows).items():
        looked = probes if "index" in way else (None, None)
        yield {
            "data": "random weights", "labels": labels, "way": way, "recall": None, "P@5": None,
            "groups": len(found.groups), "clusters": len(found.clusters),
            "probed_groups": looked[0], "probed_clusters": looked[1], **times,
            "index_mb": sum(a.nbytes for n, a in model.parameters.items() if "index." in n) / 1e6,
            "made_cpu_s": None,
        }  # fmt: skip


def write(measured_now: list[Row], recall: float) -> None:
    """Write both files; rows of other data and sizes that are there stay."""
    try:
        before = json.loads((RESULTS / "label_index.json").read_text())["rows"]
    except (OSError, ValueError):
        before = []
    new = {_case(row): row for row in measured_now}
    rows = sorted(({_case(row): row for row in before} | new).values(), key=_size)
    write_result("label_index", rows, recall=recall, load=os.getloadavg()[0])
    lines = [
        "# Indexes of labels",
        "",
        "Written by `python benchmarks/label_index.py`, whose head says what is measured: of the",
        f"exact best 5, how many are found (asked for: {recall:g}); P@5 on test rows; processor",
        "milliseconds of one row alone, median and 99th; rows of a batch of 256 in a processor",
        "second. One thread. Machine, commit, load and what was looked into: `label_index.json`.",
        "",
        "| data | labels | way | recall | P@5 | ms a row | p99 | rows/s |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        shares = ["-" if row[key] is None else f"{row[key]:.4f}" for key in ("recall", "P@5")]
        cells = [row["data"], f"{row['labels']:,}", row["way"], *shares]
        cells += [f"{row[key]:.3f}" for key in ("row_ms", "row_p99_ms")]
        lines.append(f"| {' | '.join(cells)} | {row['rows_per_cpu_s']:,.0f} |")
    (RESULTS / "label_index.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


def _case(row: Row) -> tuple[str, int, str]:
    return row["data"], row["labels"], row["way"]


def _size(row: Row) -> int:
    return int(row["labels"])


def main() -> None:
    """Measure everything, and write what is there after each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("--sets", default="stackex4-2k,nvd-product")
    parser.add_argument("--generated", default="200000")
    parser.add_argument("--random", default="670000")
    parser.add_argument("--recall", type=float, default=0.99)
    options = parser.parse_args()
    sets, *sizes = (
        [part for part in text.split(",") if part]
        for text in (options.sets, options.generated, options.random)
    )
    rows: list[Row] = []
    for name in sets:
        rows += measured(name, *of_a_set(options.data, options.models, name), options.recall)
        write(rows, options.recall)
    for labels in map(int, sizes[0]):
        rows += measured("generated", *generated(options.models, labels), options.recall)
        write(rows, options.recall)
    last = rows[-1]
    for labels in map(int, sizes[1]):
        rows += only_timed(labels, (last["probed_groups"], last["probed_clusters"]))
        write(rows, options.recall)


if __name__ == "__main__":
    main()
