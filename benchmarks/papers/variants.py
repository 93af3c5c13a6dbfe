"""Adaptive SGD with one setting varied: the runs and drawings of figures 9 to 11."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curves import NEAR_BEST, best, points, reaching
from learning_rates import chosen_lr
from output import draw_tree, panels, save, table_lines, write_csv, write_measured
from simulations import History, run_all
from study import DATA, RESULTS, Job, with_changes

SETS = ("bibtex", "delicious", "stackex4-2k")
COLORS = ("tab:green", "tab:blue", "tab:red", "tab:purple", "tab:brown")


@dataclass(frozen=True, kw_only=True)
class Panel:
    """What one row of panels varies.

    Attributes
    ----------
    title
        Above it.
    jobs
        For each set, label to job.
    x, x_label
        What is along the axis: a key of `curves.points`, and its words.
    """

    title: str
    jobs: Mapping[str, Mapping[str, Job]]
    x: str = "time_s"
    x_label: str = "simulated seconds"


def base_job(data: str, algorithm: str = "adaptive-sgd") -> Job:
    """Return the run of the study that a variant differs from in one setting."""
    return Job(data=data, algorithm=algorithm, lr=chosen_lr(data, algorithm))


def varied(job: Job, setting: str, value: Any) -> Job:
    """Return a job with another setting of its strategy."""
    return with_changes(job, overrides=[(f"strategy.{setting}", value)])


def draw_variants(name: str, shown: Sequence[Panel], sets: Sequence[str], folder: Path) -> None:
    """Simulate, and write a CSV file and a drawing with a row for each panel."""
    jobs = [job for panel in shown for data in sets for job in panel.jobs[data].values()]
    histories = run_all(jobs, folder)
    write_csv(RESULTS / f"{name}.csv", _table(shown, sets, histories))
    write_measured(name, table_lines(_summary(shown, sets, histories)))
    figure, axes = panels(len(shown), len(sets), sharey="col")
    for row, panel in zip(axes, shown, strict=True):
        for axis, data in zip(row, sets, strict=True):
            for color, (label, job) in zip(COLORS, panel.jobs[data].items(), strict=False):
                found = points(histories[job])
                axis.plot(
                    [p[panel.x] for p in found], [p["P@1"] for p in found], color=color, label=label
                )
            axis.set_title(f"{DATA[data].title}: {panel.title}", fontsize=9)
            axis.set_xlabel(panel.x_label)
            axis.set_ylim(bottom=0.0)
            axis.legend(loc="lower right", fontsize=7)
            draw_tree(axis, data)
        row[0].set_ylabel("P@1, test rows")
    save(figure, name)


def _distinct(shown: Sequence[Panel]) -> list[Panel]:
    """Return one panel of those that draw the same runs."""
    return list({id(panel.jobs): panel for panel in reversed(shown)}.values())[::-1]


def _summary(
    shown: Sequence[Panel], sets: Sequence[str], histories: Mapping[Job, History]
) -> list[dict[str, Any]]:
    """Return a row for each curve; the target is 95 % of the best of its panel."""
    rows = []
    for panel in _distinct(shown):
        for data in sets:
            runs = {label: histories[job] for label, job in panel.jobs[data].items()}
            target = NEAR_BEST * max(map(best, runs.values()))
            for label, history in runs.items():
                point = reaching(history, target) or {"time_s": None, "epoch": None}
                rows.append({
                    "set": DATA[data].title, "panel": panel.title, "variant": label,
                    "best P@1": best(history), "target": target,
                    "seconds to target": point["time_s"], "epochs to target": point["epoch"],
                    "rows": history[-1]["rows"], "merges": len(history),
                    "perturbed": sum(row["perturbed"] for row in history),
                })  # fmt: skip
    return rows


def _table(
    shown: Sequence[Panel], sets: Sequence[str], histories: Mapping[Job, History]
) -> list[dict[str, Any]]:
    """Return every point of every curve; panels that draw the same runs are told once."""
    return [
        row
        for panel in _distinct(shown) for data in sets
        for label, job in panel.jobs[data].items()
        for row in _rows(panel, label, job, histories[job])
    ]  # fmt: skip


def _rows(panel: Panel, label: str, job: Job, history: History) -> list[dict[str, Any]]:
    """Return the points of a curve, with the merges perturbed so far."""
    return [
        {
            "data": job.data, "panel": panel.title, "variant": label, "lr": job.lr, **point,
            "perturbed_merges": sum(row["perturbed"] for row in history[: point["megabatch"]]),
        }
        for point in points(history)
    ]  # fmt: skip
