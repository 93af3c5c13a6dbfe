"""What merges that overlap with training bring on a slow network, and what they cost in accuracy.

    python benchmarks/papers/overlap.py --data FOLDER

The study's workers, costs and learning rates, on a network with a twentieth of its bandwidth: 1.25
GB/s for a model of 415 MB, that of 10-gigabit Ethernet. A merge among four workers then takes 0.50
s (2 x 3/4 x 415 MB / 1.25 GB/s), a mega-batch 1.5 s on bibtex and 3.0 s on the other sets. Each
algorithm runs with and without ``combine.overlap`` on that network for the same simulated time.

``merge_every_s`` is the mean time from merge to merge; ``seconds_to_95`` that to 95 % of the lower
of the two best P@1 (where a model counts from the moment when it is on all workers);
``P@1_same_rows`` the best P@1 within as many mega-batches as the run without overlap made, which
leaves out what is gained by working on more rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from curves import NEAR_BEST, at_best, best, time_to
from learning_rates import chosen_lr, chosen_on
from output import arguments, write_csv, write_measured
from simulations import History, run_all
from study import ALGORITHMS, DATA, RESULTS, Job

SETS = ("bibtex", "delicious", "stackex4-2k")
NAMES = ("adaptive-sgd", "adaptive-plain", "adaptive-outer", "elastic", "elastic-outer")
SLOWDOWN = 20.0


def job_of(data: str, algorithm: str, overlap: bool) -> Job:
    """Return a run of the study on the slow network."""
    lr = chosen_lr(chosen_on(data, algorithm), algorithm)
    overrides = (("combine.overlap", True),) if overlap else ()
    return Job(data=data, algorithm=algorithm, lr=lr, slowdown=SLOWDOWN, overrides=overrides)


def merge_every_s(history: History) -> float:
    """Return the mean simulated seconds from one merge to the next; the last one is waited for."""
    return statistics.mean(row["train_s"] + row["merge_s"] for row in history[:-1])


def pair_of(data: str, algorithm: str, runs: Sequence[History]) -> list[dict[str, Any]]:
    """Return the rows of two runs, without overlap and with it."""
    target = NEAR_BEST * min(map(best, runs))
    merges = len(runs[0])
    return [
        {
            "data": data,
            "algorithm": algorithm,
            "overlap": overlap,
            "lr": job_of(data, algorithm, False).lr,
            "merge_every_s": round(merge_every_s(history), 4),
            "megabatches": len(history),
            "rows": history[-1]["rows"],
            "P@1": round(at_best(history)["P@1"], 4),
            "P@5": round(at_best(history)["P@5"], 4),
            "P@1_same_rows": round(at_best(history[:merges])["P@1"], 4),
            "seconds_to_95": time_to(history, target),
        }
        for overlap, history in zip((False, True), runs, strict=True)
    ]


def make_table(histories: Mapping[Job, History], sets: Sequence[str]) -> list[dict[str, Any]]:
    """Return two rows for each set and algorithm."""
    return [
        row
        for data in sets
        for name in NAMES
        for row in pair_of(data, name, [histories[job_of(data, name, on)] for on in (False, True)])
    ]


def markdown(table: Sequence[Mapping[str, Any]]) -> str:
    """Return the table as Markdown."""
    lines = [
        "| data | algorithm | overlap | seconds from merge to merge | rows | P@1 | P@5 | "
        "P@1 at equal rows | seconds to target |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in table:
        cells = [
            DATA[row["data"]].title, ALGORITHMS[row["algorithm"]].title,
            "on" if row["overlap"] else "off", f"{row['merge_every_s']:.2f}", f"{row['rows']:,}",
            f"{row['P@1']:.3f}", f"{row['P@5']:.3f}", f"{row['P@1_same_rows']:.3f}",
            f"{row['seconds_to_95']:.1f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Simulate, and write the table; what it means stands in ``results/figures/overlap.md``."""
    options = arguments(__doc__, SETS)
    jobs = [
        job_of(data, name, on) for data in options.sets for name in NAMES for on in (False, True)
    ]
    histories = run_all(jobs, options.data)
    table = make_table(histories, options.sets)
    write_csv(RESULTS / "overlap.csv", table)
    write_measured("overlap", markdown(table).split("\n"))


if __name__ == "__main__":
    main()
