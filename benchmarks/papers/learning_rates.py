"""One grid of learning rates for all algorithms; the best on held-out rows is chosen.

    python benchmarks/papers/learning_rates.py --data FOLDER [--sets bibtex,...] [--algorithms ..]

Every algorithm gets the same simulated time on every set (`DataSet.tuning_s`) and the same grid;
what counts is the best P@1 within it on an eighth of the training rows, which those runs do not
train on. The test rows have no part in it. All scores go to results/figures/learning_rates.csv.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterable
from pathlib import Path

from curves import best
from output import arguments, write_csv
from simulations import run_all
from study import ALGORITHMS, DATA, RESULTS, Job

TABLE = RESULTS / "learning_rates.csv"
EVALUATIONS = 8  # of a run that a learning rate is chosen by
Row = dict[str, str | float]


def tuning_jobs(sets: Iterable[str], algorithms: Iterable[str]) -> list[Job]:
    """Return the runs, set by set, algorithm by algorithm."""
    return [
        Job(
            data=data, algorithm=name, lr=lr, validates=True, train_s=DATA[data].tuning_s,
            every=evaluation_gap(data, name),
        )
        for data in sets for name in algorithms
        for lr in ALGORITHMS[name].learning_rates or DATA[data].learning_rates
    ]  # fmt: skip


def evaluation_gap(data: str, algorithm: str) -> int:
    """Return the mega-batches between two evaluations."""
    if algorithm in ("mirrored", "central", "static-step", "adasum-gradients"):
        return 1  # they make few
    megabatch_s = 0.0302 * DATA[data].megabatch_batches
    return max(1, round(DATA[data].tuning_s / megabatch_s / EVALUATIONS))


def read_table() -> list[Row]:
    """Return the scores that are known."""
    if not TABLE.exists():
        return []
    with TABLE.open(newline="", encoding="utf-8") as file:
        return [
            {**row, "lr": float(row["lr"]), "P@1": float(row["P@1"])}
            for row in csv.DictReader(file)
        ]


def tune(sets: Iterable[str], algorithms: Iterable[str], folder: Path) -> None:
    """Simulate, and write the table with the rows that are new."""
    histories = run_all(tuning_jobs(sets, algorithms), folder)
    table = {(row["data"], row["algorithm"], row["lr"]): row["P@1"] for row in read_table()}
    for job, history in histories.items():
        table[job.data, job.algorithm, job.lr] = best(history)
    sets_, names = list(DATA), list(ALGORITHMS)
    ordered = sorted(table, key=lambda key: (sets_.index(key[0]), names.index(key[1]), key[2]))
    write_csv(TABLE, [
        {"data": data, "algorithm": name, "lr": lr, "P@1": round(table[data, name, lr], 5)}
        for data, name, lr in ordered
    ])  # fmt: skip
    chosen.cache_clear()


@functools.cache
def chosen() -> dict[tuple[str, str], float]:
    """Return the best learning rate of every set and algorithm; of equal ones the lower."""
    top: dict[tuple[str, str], tuple[float, float]] = {}
    for row in read_table():
        key = str(row["data"]), str(row["algorithm"])
        top[key] = max(top.get(key, (-1.0, 0.0)), (float(row["P@1"]), -float(row["lr"])))
    return {key: -negative for key, (_, negative) in top.items()}


def chosen_lr(data: str, algorithm: str) -> float:
    """Return the learning rate of an algorithm on a set."""
    try:
        return chosen()[data, algorithm]
    except KeyError:
        raise SystemExit(
            f"no learning rate of {algorithm} on {data}: run learning_rates.py --sets {data} first"
        ) from None


def chosen_on(data: str, algorithm: str) -> str:
    """Return the set whose held-out rows chose the rate: the set itself, or a smaller one.

    Where an algorithm was not tuned on a set, it gets the rate of the largest set before it on
    which it was.
    """
    names = list(DATA)
    before = names[names.index(data) :: -1]
    return next((name for name in before if (name, algorithm) in chosen()), data)


if __name__ == "__main__":
    options = arguments(__doc__)
    tune(options.sets, options.algorithms or ALGORITHMS, options.data)
