"""Figure 12 of Adaptive SGD: batch sizes, and how many merges are perturbed, over mega-batches.

    python benchmarks/papers/fig12.py --data FOLDER

Once with the rules as printed, once with the default rule; the runs are those
of the table of algorithms.
"""

import itertools
from typing import Any

from output import arguments, panels, save, table_lines, write_csv, write_measured
from simulations import History, run_all
from study import ALGORITHMS, DATA, RESULTS, SPEEDS, Job
from variants import base_job

SETS = ("bibtex", "delicious", "stackex4-2k")
RULES = ("adaptive-paper", "adaptive-sgd")
COLORS = ("tab:red", "tab:orange", "tab:green", "tab:blue")


def rows_of(job: Job, history: History) -> list[dict[str, Any]]:
    """Return the batch sizes of every mega-batch."""
    return [
        {
            "data": job.data, "rules": job.algorithm, "megabatch": row["megabatch"],
            **{f"batch_rows_{n}": worker["batch_rows"] for n, worker in row["workers"].items()},
            **{f"updates_{n}": worker["updates"] for n, worker in row["workers"].items()},
            "perturbed": int(row["perturbed"]),
        }
        for row in history
    ]  # fmt: skip


def summary(job: Job, history: History) -> dict[str, Any]:
    """Return how sizes and updates stand at the end, and how often they were equal."""
    updates = [[w["updates"] for w in row["workers"].values()] for row in history]
    sizes = [[w["batch_rows"] for w in row["workers"].values()] for row in history]
    changed = [n for n, (a, b) in enumerate(itertools.pairwise(sizes), 2) if a != b]
    return {
        "set": DATA[job.data].title,
        "rules": "as printed" if job.algorithm == "adaptive-paper" else "by speed",
        "merges": len(history),
        "sizes at the end": ", ".join(map(str, sizes[-1])),
        "updates of the last whole one": ", ".join(f"{count:.4g}" for count in updates[-2]),
        "last change of a size": changed[-1] if changed else 1,
        "updates within one": sum(max(counts) - min(counts) < 1.0 for counts in updates),
        "perturbed": sum(row["perturbed"] for row in history),
    }


def draw_sizes(axis: Any, job: Job, rows: list[dict[str, Any]]) -> None:
    """Draw the batch size of every worker."""
    for number, (speed, color) in enumerate(zip(SPEEDS, COLORS, strict=True)):
        sizes = [row[f"batch_rows_{number}"] for row in rows]
        axis.plot(range(1, len(rows) + 1), sizes, color=color, label=f"speed {speed:g}")
    words = "as printed" if job.algorithm == "adaptive-paper" else "by speed"
    axis.set_title(f"{DATA[job.data].title}: {words}", fontsize=9)
    axis.set_ylim(0, DATA[job.data].batch_max * 1.08)


def main() -> None:
    """Simulate and draw."""
    options = arguments(__doc__, SETS)
    jobs = [base_job(data, rules) for data in options.sets for rules in RULES]
    histories = run_all(jobs, options.data)
    rows = {job: rows_of(job, histories[job]) for job in jobs}
    write_csv(RESULTS / "fig12.csv", list(itertools.chain(*rows.values())))
    write_measured("fig12", table_lines([summary(job, histories[job]) for job in jobs]))
    figure, axes = panels(len(options.sets), 3)
    for job in jobs:
        row = axes[options.sets.index(job.data)]
        draw_sizes(row[RULES.index(job.algorithm)], job, rows[job])
        perturbed = list(itertools.accumulate(found["perturbed"] for found in rows[job]))
        style = ALGORITHMS[job.algorithm]
        words = "as printed" if job.algorithm == "adaptive-paper" else "by speed"
        row[2].plot(range(1, len(perturbed) + 1), perturbed, color=style.color, label=words)
    for data, row in zip(options.sets, axes, strict=True):
        row[2].set_title(f"{DATA[data].title}: perturbed merges", fontsize=9)
        row[2].legend(loc="upper left")
        row[0].set_ylabel("rows in a batch")
        for axis in row:
            axis.set_xlabel("mega-batches")
    save(figure, "fig12", figure.axes[0])


if __name__ == "__main__":
    main()
