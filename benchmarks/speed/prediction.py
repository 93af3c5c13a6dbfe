"""How fast a network answers on one thread, beside the same by NumPy: one row, batches, threads.

    python benchmarks/speed/prediction.py [--labels 21764 200000 670000] [--bits 32 8] [--rows 300]

The weights are generated, since times do not depend on them: 128 hidden units, 135,909 features
(Amazon-670k's), rows of 76 features. The models are in a temporary folder, of up to 0.5 GiB; each
is measured in a process of its own, with weights in 32 bits and compressed to 8. NumPy, in 32 bits,
and daskxml take turns, row by row. Times of label trees, beside PECOS and omikuji, are in trees.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import RESULTS, anonymous_mib, with_earlier, write_result

FEATURES, HIDDEN, ROW_FEATURES, K, BATCH = 135_909, 128, 76, 5, 256


def main() -> None:
    """Measure every size, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--labels", type=int, nargs="+", default=[21_764, 200_000, 670_000])
    parser.add_argument("--bits", type=int, nargs="+", choices=(32, 16, 8), default=[32, 8])
    parser.add_argument("--rows", type=int, default=300, help="rows that are asked for one by one")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, *options.bits, options.rows)))
        return
    rows = []
    one_thread = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "NUMBA")}
    for labels, bits in itertools.product(options.labels, options.bits):
        with tempfile.TemporaryDirectory() as folder:
            generate(Path(folder), labels, bits)
            command = [sys.executable, __file__, "--measure", folder, "--rows", str(options.rows)]
            command += ["--bits", str(bits)]
            done = subprocess.run(
                command, check=True, text=True, stdout=subprocess.PIPE, env=os.environ | one_thread
            )
        rows.append(json.loads(done.stdout))
    rows = [{"bits": 32, **row} for row in with_earlier("serving", rows)]
    rows.sort(key=lambda row: (row["labels"], -row["bits"], row["measured"]))
    write_result("serving", rows)
    about = (
        "One thread, times in ms, measured at several times, since memory is faster on some days; "
        "machine, commit and load are in serving.json, what is measured at the head of "
        "[prediction.py](../speed/prediction.py)."
    )
    table = "\n".join([about, "", *markdown(rows)])
    (RESULTS / "serving.md").write_text(f"# Answers of a network\n\n{table}\n")


def generate(folder: Path, labels: int, bits: int = 32) -> None:
    """Write a model of random weights, compressed if ``bits`` is 16 or 8."""
    from daskxml.models.network.spec import Layout, ModelSpec
    from daskxml.models.store import ModelHeader
    from daskxml.models.trained import Model

    rng = np.random.default_rng(0)
    spec = ModelSpec(features=FEATURES, labels=labels, hidden=(HIDDEN,))
    slots = Layout(spec).slots.items()
    held = {n: 0.1 * rng.standard_normal(slot.shape, np.float32) for n, slot in slots}
    header = ModelHeader(spec=spec, training_rows=1)
    model = Model(header, held, np.ones(labels, np.int64))
    (model if bits == 32 else model.compress(bits=bits)).save(folder)


def measure(folder: Path, bits: int, count: int) -> dict[str, Any]:
    """Return a row of the table."""
    from daskxml.models.trained import Model

    before = anonymous_mib()
    load_ms, model = timed(lambda: Model.load(folder, threads=1, verify=False))
    warm_ms, _ = timed(model.warm_up)
    rng = np.random.default_rng(1)
    columns = rng.integers(0, FEATURES, (count, ROW_FEATURES))
    values = rng.random((count, ROW_FEATURES), np.float32)
    lengths = np.arange(0, columns.size + 1, ROW_FEATURES)
    rows = scipy.sparse.csr_matrix((values.ravel(), columns.ravel(), lengths), (count, FEATURES))
    each = [rows[i] for i in range(count)]
    first_ms, _ = timed(lambda: model.predict_top_k(each[0], K))
    model.predict_top_k(rows[:BATCH], K)
    own_mib = anonymous_mib() - before
    own_ms, plain_ms = [], []
    for row in each:
        took, (ids, _) = timed(lambda row=row: model.predict_top_k(row, K))
        own_ms.append(took)
        if bits == 32:
            took, expected = timed(lambda row=row: numpy_top_k(model, row))
            plain_ms.append(took)
            assert len(np.intersect1d(ids[0], expected)) >= K - 1  # but for ties by rounding
    batch_ms = min(timed(lambda: model.predict_top_k(rows[:BATCH], K))[0] for _ in range(5))
    turns = each[: max(8, count // 4)]
    one_s = threads_s(model, turns, 1)
    four_s = threads_s(model, turns, 4)
    found = {
        "model_mib": sum(array.nbytes for array in model.parameters.values()) / 2**20,
        "load_ms": load_ms,
        "warm_up_ms": warm_ms,
        "first_ms": first_ms,
        "median_ms": np.median(own_ms),
        "p99_ms": np.quantile(own_ms, 0.99),
        "numpy_median_ms": np.median(plain_ms) if plain_ms else None,
        "numpy_p99_ms": np.quantile(plain_ms, 0.99) if plain_ms else None,
        "weights_gb_s": bits / 8 * model.spec.labels * HIDDEN / np.median(own_ms) / 1e6,
        "batch_rows_s": min(BATCH, count) / batch_ms * 1e3,
        "four_threads": one_s / four_s,
        "buffers_mib": own_mib,
    }
    rounded = {
        name: None if value is None else float(f"{value:.4g}") for name, value in found.items()
    }
    return {"labels": model.spec.labels, "bits": bits, **rounded}


def numpy_top_k(model: Any, row: scipy.sparse.csr_matrix) -> Any:
    """Return the ids of the best labels as NumPy users would compute them."""
    held = model.parameters
    values = row.data / np.sqrt((row.data * row.data).sum())
    hidden = np.maximum(values @ held["hidden0.weight"][row.indices] + held["hidden0.bias"], 0)
    logits = held["output.weight"] @ hidden + held["output.bias"]
    best = np.argpartition(-logits, K)[:K]
    return best[np.argsort(-logits[best])]


def threads_s(model: Any, rows: list[Any], threads: int) -> float:
    """Return how long so many callers at a time take for the rows."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda row: model.predict_top_k(row, K), rows))
        begun = time.perf_counter()
        list(pool.map(lambda row: model.predict_top_k(row, K), rows))
        return time.perf_counter() - begun


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the milliseconds that a call takes, and its result."""
    begun = time.perf_counter()
    found = work()
    return (time.perf_counter() - begun) * 1e3, found


def markdown(rows: list[dict[str, Any]]) -> list[str]:
    """Return a table with a row for each size, number of bits, and time."""
    names = [name for name in rows[0] if name not in ("labels", "bits", "measured", "load")]
    lines = [
        f"| labels | bits | measured | {' | '.join(names)} |",
        f"|{'---:|' * (len(names) + 3)}",
    ]
    for row in rows:
        cells = [f"{row['labels']:,}", str(row["bits"]), row["measured"]]
        cells += ["-" if row[name] is None else f"{row[name]:,g}" for name in names]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
