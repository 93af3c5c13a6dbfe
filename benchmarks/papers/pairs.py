"""Adaptive and Elastic SGD in pairs that merge alike, on several seeds.

    python benchmarks/papers/pairs.py --data FOLDER

What Adaptive SGD does about unequal workers is compared where all else is equal: with momentum 0.9,
as in the paper, without momentum, and with an outer Nesterov optimizer. Both algorithms of a pair
have the same learning rate, that with the highest sum of their P@1 on held-out rows. The target of
a pair and seed is 95 % of the lower of its two best P@1 on the test rows, so that both reach it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from curves import NEAR_BEST, best, time_to
from learning_rates import read_table
from output import arguments, table_lines, write_csv, write_measured
from simulations import History, run_all
from study import RESULTS, Job, with_changes

SETS = ("bibtex", "delicious", "stackex4-2k")
SEEDS = (0, 1, 2)
PAIRS = {
    "momentum 0.9": ("adaptive-sgd", "elastic"),
    "no momentum": ("adaptive-plain", "elastic-mean"),
    "outer Nesterov": ("adaptive-outer", "elastic-outer"),
}


def common_lr(data: str, pair: tuple[str, str]) -> float:
    """Return the rate of a pair, from the scores that each algorithm's own was chosen by."""
    scores: dict[float, list[float]] = {}
    for row in read_table():
        if row["data"] == data and row["algorithm"] in pair:
            scores.setdefault(float(row["lr"]), []).append(float(row["P@1"]))
    whole = {lr: sum(found) for lr, found in scores.items() if len(found) == len(pair)}
    if not whole:
        raise SystemExit(f"no learning rates of {data}: run learning_rates.py --sets {data} first")
    return max(whole, key=whole.__getitem__)


def jobs_of(data: str, merging: str) -> list[list[Job]]:
    """Return the runs of both algorithms, with every seed: other rows, other first weights."""
    pair = PAIRS[merging]
    jobs = [Job(data=data, algorithm=name, lr=common_lr(data, pair)) for name in pair]
    return [
        [with_changes(job, overrides=[("run.seed", seed)]) if seed else job for seed in SEEDS]
        for job in jobs
    ]


def row_of(data: str, merging: str, histories: Mapping[Job, History]) -> dict[str, Any]:
    """Return the means over the seeds, and every ratio of times."""
    jobs = jobs_of(data, merging)
    adaptive, elastic = ([histories[job] for job in runs] for runs in jobs)
    times = []
    for ours, theirs in zip(adaptive, elastic, strict=True):
        target = NEAR_BEST * min(best(ours), best(theirs))
        times.append((time_to(ours, target) or 0.0, time_to(theirs, target) or 0.0))
    ratios = [ours_s / theirs_s for ours_s, theirs_s in times]
    return {
        "data": data,
        "merging": merging,
        "lr": jobs[0][0].lr,
        "adaptive_P@1": round(statistics.mean(map(best, adaptive)), 4),
        "elastic_P@1": round(statistics.mean(map(best, elastic)), 4),
        "adaptive_s": round(statistics.mean(ours_s for ours_s, _ in times), 2),
        "elastic_s": round(statistics.mean(theirs_s for _, theirs_s in times), 2),
        "median_ratio": round(statistics.median(ratios), 3),
        **{f"ratio_{seed}": round(ratio, 3) for seed, ratio in zip(SEEDS, ratios, strict=True)},
    }


def main() -> None:
    """Simulate, and write the table."""
    options = arguments(__doc__, SETS)
    jobs = [
        job
        for data in options.sets for merging in PAIRS
        for runs in jobs_of(data, merging) for job in runs
    ]  # fmt: skip
    histories = run_all(jobs, options.data)
    table = [row_of(data, merging, histories) for data in options.sets for merging in PAIRS]
    write_csv(RESULTS / "pairs.csv", table)
    write_measured("pairs", table_lines(table))


if __name__ == "__main__":
    main()
