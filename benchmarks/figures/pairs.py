"""Adaptive and Elastic SGD in pairs that merge alike, on several seeds.

    python benchmarks/figures/pairs.py --data FOLDER

What Adaptive SGD does about unequal workers is compared where all else is equal: with momentum 0.9,
as in the paper, without momentum, and with an outer Nesterov optimizer. The target of a
pair and seed is 95 % of the lower of its two best P@1 on the test rows, so that both reach it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from curves import NEAR_BEST, best, time_to
from learning_rates import chosen_lr
from output import arguments, table_lines, write_csv, write_measured
from simulations import History, run_all
from study import RESULTS, Job, with_changes

SETS = ("bibtex", "delicious")
SEEDS = (0, 1, 2)
PAIRS = {
    "momentum 0.9": ("adaptive-sgd", "elastic"),
    "no momentum": ("adaptive-plain", "elastic-mean"),
    "outer Nesterov": ("adaptive-outer", "elastic-outer"),
}


def job_of(data: str, algorithm: str, seed: int) -> Job:
    """Return a run of the study with a seed: other rows at a time, other first weights."""
    job = Job(data=data, algorithm=algorithm, lr=chosen_lr(data, algorithm))
    return with_changes(job, overrides=[("run.seed", seed)]) if seed else job


def row_of(data: str, merging: str, histories: Mapping[Job, History]) -> dict[str, Any]:
    """Return the means over the seeds, and every ratio of times."""
    adaptive, elastic = (
        [histories[job_of(data, name, seed)] for seed in SEEDS] for name in PAIRS[merging]
    )
    times = []
    for ours, theirs in zip(adaptive, elastic, strict=True):
        target = NEAR_BEST * min(best(ours), best(theirs))
        times.append((time_to(ours, target) or 0.0, time_to(theirs, target) or 0.0))
    ratios = [ours_s / theirs_s for ours_s, theirs_s in times]
    return {
        "data": data,
        "merging": merging,
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
    names = dict.fromkeys(name for pair in PAIRS.values() for name in pair)
    jobs = [job_of(data, name, seed) for data in options.sets for name in names for seed in SEEDS]
    histories = run_all(jobs, options.data)
    table = [row_of(data, merging, histories) for data in options.sets for merging in PAIRS]
    write_csv(RESULTS / "pairs.csv", table)
    write_measured("pairs", table_lines(table))


if __name__ == "__main__":
    main()
