"""Figure 1 of Adaptive SGD: how long unequal workers take for identical batches.

    python benchmarks/papers/fig01.py --data FOLDER

Every worker goes through the same batches, one epoch of them in the order of the files' shuffled
rows. Times are those of the study's cost model; what the paper measured on four V100, 32 % between
the fastest and the slowest, went into its speeds. What is found here is the other source of
heterogeneity that its section 1 names: batches of equally many rows differ in their non-zeros.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from daskxml.local import read_rows
from daskxml.local.cost import jitter_factor
from output import arguments, panels, save, table_lines, write_csv, write_measured
from study import DATA, RESULTS, SPEEDS, Job, cost_of, resolve

SETS = ("delicious", "stackex4-2k", "nvd-product", "amazon-like")
EDGES = (5, 25, 50, 75, 95)


def batch_times(data: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return seconds ``(workers, batches)``, and the non-zeros of each batch."""
    job = Job(data=data, algorithm="elastic", lr=1.0)
    rows = read_rows(resolve(job, folder), len(SPEEDS))
    lengths = np.concatenate([np.diff(part.features.indptr) for part in rows.train])
    size = DATA[data].batch_max
    nonzeros = lengths[: lengths.size // size * size].reshape(-1, size).sum(axis=1)
    cost = cost_of(job, rows)
    times = [
        [
            cost.batch_s(size, int(count)) / speed * jitter_factor(cost.jitter, 0, str(n), batch)
            for batch, count in enumerate(nonzeros)
        ]
        for n, speed in enumerate(SPEEDS)
    ]
    return np.array(times), nonzeros


def rows_of(data: str, times: np.ndarray, nonzeros: np.ndarray) -> list[dict[str, Any]]:
    """Return a row for each worker: the epoch, and how its batches spread."""
    low, high = np.percentile(nonzeros, [5, 95]) / nonzeros.mean()
    return [
        {
            "data": data, "speed": speed, "batches": len(own), "epoch_s": round(own.sum(), 4),
            "longer_than_fastest": round(own.sum() / times.sum(axis=1).min() - 1.0, 4),
            **{f"batch_s_p{edge}": round(float(np.percentile(own, edge)), 5) for edge in EDGES},
            "nonzeros_p5": round(low, 4), "nonzeros_p95": round(high, 4),
        }
        for speed, own in zip(SPEEDS, times, strict=True)
    ]  # fmt: skip


def summary(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each set: both sources of unequal times."""
    return [
        {
            "set": DATA[row["data"]].title, "rows in a batch": DATA[row["data"]].batch_max,
            "epoch of the slowest, longer by": max(
                r["longer_than_fastest"] for r in table if r["data"] == row["data"]
            ),
            "non-zeros of a batch over their mean, p5": row["nonzeros_p5"],
            "p95": row["nonzeros_p95"],
            "a batch at speed 1 in ms, p5": 1e3 * row["batch_s_p5"],
            "p95 in ms": 1e3 * row["batch_s_p95"],
        }
        for row in table if row["speed"] == SPEEDS[0]
    ]  # fmt: skip


def main() -> None:
    """Compute and draw."""
    options = arguments(__doc__, SETS)
    figure, axes = panels(2, len(options.sets))
    table: list[dict[str, Any]] = []
    for data, (upper, lower) in zip(options.sets, axes.T, strict=True):
        times, nonzeros = batch_times(data, options.data)
        table += rows_of(data, times, nonzeros)
        names = [f"{speed:g}" for speed in SPEEDS]
        upper.bar(names, times.sum(axis=1), color="tab:blue", width=0.6)
        upper.set_title(DATA[data].title, fontsize=9)
        lower.boxplot(1e3 * times.T, tick_labels=names, whis=(5, 95), showfliers=False)
        lower.set_xlabel("worker's speed")
    axes[0][0].set_ylabel("an epoch, simulated seconds")
    axes[1][0].set_ylabel("a batch, milliseconds")
    write_csv(RESULTS / "fig01.csv", table)
    write_measured("fig01", table_lines(summary(table)))
    save(figure, "fig01")


if __name__ == "__main__":
    main()
