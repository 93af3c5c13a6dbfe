"""The runs that figures 6, 7 and 8 share: four algorithms on one, two and four workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from curves import points
from learning_rates import chosen_lr
from output import draw_tree, panels
from simulations import History, run_all
from study import ALGORITHMS, DATA, Job

SETS = ("delicious", "stackex4-2k", "nvd-product", "amazon-like")
COMPARED = ("adaptive-sgd", "elastic", "crossbow", "mirrored")
COUNTS = (1, 2, 4)


def overall_jobs(
    sets: Sequence[str], algorithms: Sequence[str] = COMPARED, counts: Sequence[int] = COUNTS
) -> list[Job]:
    """Return the runs; the learning rate is that chosen at four workers."""
    return [
        Job(data=data, algorithm=name, lr=chosen_lr(data, name), workers=count)
        for data in sets for name in algorithms for count in counts
    ]  # fmt: skip


def simulate_overall(sets: Sequence[str], folder: Path) -> dict[Job, History]:
    """Return the histories of all runs."""
    return run_all(overall_jobs(sets), folder)


def table(histories: dict[Job, History]) -> list[dict[str, Any]]:
    """Return every point of every curve as a row."""
    return [
        {
            "data": job.data, "algorithm": job.algorithm, "workers": job.workers, "lr": job.lr,
            **point,
        }
        for job, history in histories.items() for point in points(history)
    ]  # fmt: skip


def draw_by_workers(histories: dict[Job, History], sets: Sequence[str], x: str, label: str) -> Any:
    """Draw a row of panels for each set: accuracy on one, two and four workers."""
    figure, axes = panels(len(sets), len(COUNTS), sharey="row")
    for job, history in histories.items():
        axis = axes[sets.index(job.data)][COUNTS.index(job.workers)]
        style = ALGORITHMS[job.algorithm]
        found = points(history)
        axis.plot(
            [point[x] for point in found], [point["P@1"] for point in found],
            label=style.title, color=style.color,
            marker="." if len(found) < 25 else None, markersize=4,
        )  # fmt: skip
    for row, data in zip(axes, sets, strict=True):
        for axis, count in zip(row, COUNTS, strict=True):
            axis.set_title(f"{DATA[data].title}, {count} worker{'s' * (count > 1)}", fontsize=9)
            axis.set_xlabel(label)
            axis.set_ylim(bottom=0.0)
            draw_tree(axis, data)
        row[0].set_ylabel("P@1, test rows")
    return figure
