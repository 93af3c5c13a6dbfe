"""The runs that figures 6, 7 and 8 share: four algorithms on one, two and four workers, and SLIDE.

SLIDE has a worker of its own, a CPU, and is drawn beside each number of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from curves import best, points, reaching
from learning_rates import chosen_lr
from output import draw_tree, panels
from simulations import History, run_all
from study import ALGORITHMS, DATA, Job

SETS = ("bibtex", "delicious", "stackex4-2k")
COMPARED = ("adaptive-sgd", "elastic", "crossbow", "mirrored", "slide")
COUNTS = (1, 2, 4)
NEAR = 0.9


def overall_jobs(
    sets: Sequence[str], algorithms: Sequence[str] = COMPARED, counts: Sequence[int] = COUNTS
) -> list[Job]:
    """Return the runs; the learning rate is that chosen at four workers."""
    return [
        Job(data=data, algorithm=name, lr=chosen_lr(data, name), workers=count)
        for data in sets for name in algorithms for count in (counts if name != "slide" else (1,))
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


def reached(histories: dict[Job, History], what: str) -> list[dict[str, Any]]:
    """Return a row for each set and number of workers: best P@1, and what 90 % of the set's took.

    Parameters
    ----------
    what
        A key of `curves.points`: of time, or of mega-batches.
    """
    tops = {job.data: max(best(histories[j]) for j in histories if j.data == job.data)
            for job in histories}  # fmt: skip
    names = [name for name in COMPARED if any(job.algorithm == name for job in histories)]
    rows = []
    for data, top in tops.items():
        for count in COUNTS:
            row = {"set": DATA[data].title, "target": NEAR * top, "workers": count}
            for job in sorted(histories, key=lambda job: names.index(job.algorithm)):
                if job.data == data and job.workers == count:
                    point = reaching(histories[job], NEAR * top)
                    spent = f"{point[what]:.{0 if what == 'megabatch' else 1}f}" if point else "-"
                    title = ALGORITHMS[job.algorithm].title
                    row[title] = f"{best(histories[job]):.3f}, {spent}"
            rows.append(
                {**row, **{ALGORITHMS[n].title: row.get(ALGORITHMS[n].title) for n in names}}
            )
    return rows


def draw_by_workers(histories: dict[Job, History], sets: Sequence[str], x: str, label: str) -> Any:
    """Draw a row of panels for each set: accuracy on one, two and four workers."""
    figure, axes = panels(len(sets), len(COUNTS), sharey="row")
    for job, history in histories.items():
        style, found, row = ALGORITHMS[job.algorithm], points(history), axes[sets.index(job.data)]
        shown = row if job.algorithm == "slide" else [row[COUNTS.index(job.workers)]]
        for axis in shown:
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
