"""Figures 1 and 6 to 12 of Adaptive SGD, a table of all algorithms, and their learning rates.

Ma, Rusu, Wu and Sim, "Adaptive Elastic Training for Sparse Deep Learning on Heterogeneous Multi-GPU
Servers", 2021; the settings are those of `study`. Each function of `KINDS` makes the figures whose
TOML file names it:

``learning-rates``  Every algorithm gets the same simulated time on every set (`DataSet.tuning_s`)
    and the same grid; the best P@1 within that time on an eighth of the training rows counts, which
    those runs do not train on. The test rows have no part in it.
``by-workers``  Accuracy on one, two and four workers (figures 6 and 7), or Adaptive SGD's alone,
    over time and mega-batches (figure 8). SLIDE has a worker of its own, a CPU, and is drawn beside
    each number of the others. Learning rates are those chosen at four workers.
``variants``  Adaptive SGD with one setting varied (figures 9 to 11).
``batch-times``  How long unequal workers take for identical batches (figure 1): one epoch, in the
    order of the files' shuffled rows. The spread of the paper's four V100, 32 %, is put in; what is
    measured is the other source of unequal times: batches of equally many rows differ in non-zeros.
``batch-sizes``  Batch sizes, and how many merges are perturbed (figure 12).
``algorithms``  All algorithms at equal simulated time on four unequal workers. A learning rate with
    a star was chosen on the set before, since the algorithm was not tuned on this one. P@1 and P@5
    are of the evaluation with the best P@1 within the time; the time is that to 95 % of the best
    P@1 of all algorithms on the set.
"""

from __future__ import annotations

import csv
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daskxml.local import read_rows
from daskxml.local.cost import jitter_factor
from drawing import (
    NEAR_BEST,
    RESULTS,
    Figure,
    at_best,
    best,
    draw_tree,
    idle_share,
    panels,
    points,
    reaching,
    save,
    table_lines,
    time_to,
    write_csv,
)
from study import ALGORITHMS, DATA, SPEEDS, History, Job, cost_of, resolve, run_all, with_changes

COLORS = ("tab:green", "tab:blue", "tab:red", "tab:purple", "tab:brown")


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


def learning_rates(figure: Figure) -> None:
    """Simulate, and write the table with the rows that are new."""
    algorithms = figure.algorithms or ALGORITHMS
    histories = run_all(tuning_jobs(figure.sets, algorithms), figure.folder)
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
            f"no learning rate of {algorithm} on {data}: run learning_rates first"
        ) from None


def chosen_on(data: str, algorithm: str) -> str:
    """Return the set whose held-out rows chose the rate: the set itself, or a smaller one.

    Where an algorithm was not tuned on a set, it gets the rate of the largest set before it on
    which it was.
    """
    names = list(DATA)
    before = names[names.index(data) :: -1]
    return next((name for name in before if (name, algorithm) in chosen()), data)


COMPARED = ("adaptive-sgd", "elastic", "crossbow", "mirrored", "slide")
COUNTS = (1, 2, 4)
NEAR = 0.9
LABELS = {"time_s": "simulated seconds", "megabatch": "mega-batches"}


def overall_jobs(sets: Sequence[str], algorithms: Sequence[str]) -> list[Job]:
    """Return the runs; the learning rate is that chosen at four workers."""
    return [
        Job(data=data, algorithm=name, lr=chosen_lr(data, name), workers=count)
        for data in sets for name in algorithms for count in (COUNTS if name != "slide" else (1,))
    ]  # fmt: skip


def curve_rows(histories: Mapping[Job, History]) -> list[dict[str, Any]]:
    """Return every point of every curve as a row."""
    return [
        {
            "data": job.data, "algorithm": job.algorithm, "workers": job.workers, "lr": job.lr,
            **point,
        }
        for job, history in histories.items() for point in points(history)
    ]  # fmt: skip


def reached(histories: Mapping[Job, History], what: str) -> list[dict[str, Any]]:
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


def draw_by_workers(
    histories: Mapping[Job, History], sets: Sequence[str], x: str, label: str
) -> Any:
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
            axis.set_xlabel(LABELS[x])
            axis.set_ylim(bottom=0.0)
            draw_tree(axis, data)
        row[0].set_ylabel("P@1, test rows")
    return figure


SLIDE = ALGORITHMS["slide"].title
BY_COUNT = {1: "tab:green", 2: "tab:blue", 4: "tab:red"}


def by_workers(figure: Figure) -> None:
    """Make figure 6 or 7, or figure 8 (``x`` has both axes)."""
    sets, axes_of = figure.sets, figure.given["x"]
    histories = run_all(overall_jobs(sets, figure.given["algorithms"]), figure.folder)
    lines: list[str] = []
    for x in axes_of:
        if len(axes_of) > 1:
            lines += [f"P@1, and {LABELS[x]} to the target:", ""]
        lines += [*table_lines(reached(histories, x)), ""]
    figure.write(curve_rows(histories), lines[:-1])
    if len(axes_of) > 1:
        drawing = draw_by_count(histories, sets)
    else:
        drawing = draw_by_workers(histories, sets, axes_of[0])
    save(drawing, figure.name, drawing.axes[0])


def draw_by_count(histories: Mapping[Job, History], sets: Sequence[str]) -> Any:
    """Draw Adaptive SGD by the number of workers, over time and over mega-batches."""
    figure, axes = panels(2, len(sets), sharey="col")
    for job in sorted(histories, key=lambda job: COUNTS.index(job.workers)):
        found, is_slide = points(histories[job]), job.algorithm == "slide"
        column = sets.index(job.data)
        for axis, x in zip(axes[:, column], ("time_s", "megabatch"), strict=True):
            axis.plot(
                [point[x] for point in found], [point["P@1"] for point in found],
                color="black" if is_slide else BY_COUNT[job.workers],
                linestyle=":" if is_slide else "-",
                label=SLIDE if is_slide else f"{job.workers} worker{'s' * (job.workers > 1)}",
            )  # fmt: skip
    for column, data in zip(axes.T, sets, strict=True):
        column[0].set_title(DATA[data].title, fontsize=9)
        for axis, label in zip(column, LABELS.values(), strict=True):
            axis.set_xlabel(label)
            axis.set_ylim(bottom=0.0)
            draw_tree(axis, data)
    for axis in axes[:, 0]:
        axis.set_ylabel("P@1, test rows")
    return figure


@dataclass(frozen=True, kw_only=True)
class Panel:
    """What one row of panels varies.

    Attributes
    ----------
    title
        Above it.
    jobs
        For each set, label to job.
    x
        What is along the axis: a key of `points`.
    """

    title: str
    jobs: Mapping[str, Mapping[str, Job]]
    x: str = "time_s"


def base_job(data: str, algorithm: str = "adaptive-sgd") -> Job:
    """Return the run of the study that a variant differs from in one setting."""
    return Job(data=data, algorithm=algorithm, lr=chosen_lr(data, algorithm))


def panels_of(figure: Figure) -> list[Panel]:
    """Return the panels of a file.

    A variant's ``set`` are settings, ``of_b_max`` settings as shares of the largest batch; its
    label may name both, as ``{batch_initial}``.
    """
    return [
        Panel(
            title=given["title"],
            x=given.get("x", "time_s"),
            jobs={
                data: dict(_variant(data, given.get("set", {}), v) for v in given["variants"])
                for data in figure.sets
            },
        )
        for given in figure.given["panel"]
    ]


def _variant(data: str, common: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, Job]:
    most = DATA[data].batch_max
    sizes = {name: most * share for name, share in given.get("of_b_max", {}).items()}
    sizes |= {name: int(size) for name, size in sizes.items() if name.startswith("batch_")}
    shown = {name: most * share for name, share in given.get("shown", {}).items()}
    settings = {**common, **given.get("set", {}), **sizes}
    job = with_changes(
        base_job(data), every=given.get("every", 1),
        overrides=[(f"strategy.{name}", value) for name, value in settings.items()],
    )  # fmt: skip
    label = given["label"].format(b_max=most, **{**settings, **shown})
    return label, job


def variants(figure: Figure) -> None:
    """Simulate, and write a CSV file and a drawing with a row for each panel."""
    shown, sets = panels_of(figure), figure.sets
    jobs = [job for panel in shown for data in sets for job in panel.jobs[data].values()]
    histories = run_all(jobs, figure.folder)
    figure.write(_table(shown, sets, histories), table_lines(_summary(shown, sets, histories)))
    drawing, axes = panels(len(shown), len(sets), sharey="col")
    for row, panel in zip(axes, shown, strict=True):
        for axis, data in zip(row, sets, strict=True):
            for color, (label, job) in zip(COLORS, panel.jobs[data].items(), strict=False):
                found = points(histories[job])
                axis.plot(
                    [p[panel.x] for p in found], [p["P@1"] for p in found], color=color, label=label
                )
            axis.set_title(f"{DATA[data].title}: {panel.title}", fontsize=9)
            axis.set_xlabel("epochs" if panel.x == "epoch" else "simulated seconds")
            axis.set_ylim(bottom=0.0)
            axis.legend(loc="lower right", fontsize=7)
            draw_tree(axis, data)
        row[0].set_ylabel("P@1, test rows")
    save(drawing, figure.name)


def _distinct(shown: Sequence[Panel]) -> list[Panel]:
    """Return one panel of those that draw the same runs."""
    return [panel for n, panel in enumerate(shown) if all(panel.jobs != p.jobs for p in shown[:n])]


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
    """Return every point of every curve; panels that draw the same runs appear once."""
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


def times_of(data: str, times: np.ndarray, nonzeros: np.ndarray) -> list[dict[str, Any]]:
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


def times_summary(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
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


def batch_times_figure(figure: Figure) -> None:
    """Make figure 1."""
    drawing, axes = panels(2, len(figure.sets))
    table: list[dict[str, Any]] = []
    for data, (upper, lower) in zip(figure.sets, axes.T, strict=True):
        times, nonzeros = batch_times(data, figure.folder)
        table += times_of(data, times, nonzeros)
        names = [f"{speed:g}" for speed in SPEEDS]
        upper.bar(names, times.sum(axis=1), color="tab:blue", width=0.6)
        upper.set_title(DATA[data].title, fontsize=9)
        lower.boxplot(1e3 * times.T, tick_labels=names, whis=(5, 95), showfliers=False)
        lower.set_xlabel("worker's speed")
    axes[0][0].set_ylabel("an epoch, simulated seconds")
    axes[1][0].set_ylabel("a batch, milliseconds")
    figure.write(table, table_lines(times_summary(table)))
    save(drawing, figure.name)


RULES = ("adaptive-paper", "adaptive-sgd")
WORKER_COLORS = ("tab:red", "tab:orange", "tab:green", "tab:blue")


def sizes_of(job: Job, history: History) -> list[dict[str, Any]]:
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


def sizes_summary(job: Job, history: History) -> dict[str, Any]:
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
    for number, (speed, color) in enumerate(zip(SPEEDS, WORKER_COLORS, strict=True)):
        sizes = [row[f"batch_rows_{number}"] for row in rows]
        axis.plot(range(1, len(rows) + 1), sizes, color=color, label=f"speed {speed:g}")
    words = "as printed" if job.algorithm == "adaptive-paper" else "by speed"
    axis.set_title(f"{DATA[job.data].title}: {words}", fontsize=9)
    axis.set_ylim(0, DATA[job.data].batch_max * 1.08)


def batch_sizes(figure: Figure) -> None:
    """Make figure 12."""
    jobs = [base_job(data, rules) for data in figure.sets for rules in RULES]
    histories = run_all(jobs, figure.folder)
    rows = {job: sizes_of(job, histories[job]) for job in jobs}
    summary = [sizes_summary(job, histories[job]) for job in jobs]
    figure.write(list(itertools.chain(*rows.values())), table_lines(summary))
    drawing, axes = panels(len(figure.sets), 3)
    for job in jobs:
        row = axes[figure.sets.index(job.data)]
        draw_sizes(row[RULES.index(job.algorithm)], job, rows[job])
        perturbed = list(itertools.accumulate(found["perturbed"] for found in rows[job]))
        style = ALGORITHMS[job.algorithm]
        words = "as printed" if job.algorithm == "adaptive-paper" else "by speed"
        row[2].plot(range(1, len(perturbed) + 1), perturbed, color=style.color, label=words)
    for data, row in zip(figure.sets, axes, strict=True):
        row[2].set_title(f"{DATA[data].title}: perturbed merges", fontsize=9)
        row[2].legend(loc="upper left")
        row[0].set_ylabel("rows in a batch")
        for axis in row:
            axis.set_xlabel("mega-batches")
    save(drawing, figure.name, drawing.axes[0])


def row_of(job: Job, history: History, target: float) -> dict[str, Any]:
    """Return a row of the table."""
    metrics = at_best(history)
    return {
        "data": job.data,
        "algorithm": job.algorithm,
        "lr": job.lr,
        "lr_chosen_on": chosen_on(job.data, job.algorithm),
        "P@1": round(metrics["P@1"], 4),
        "P@5": round(metrics["P@5"], 4),
        "seconds_to_95": time_to(history, target),
        "rows": history[-1]["rows"] if history else 0,
        "megabatches": len(history),
        "idle_share": round(idle_share(history), 4),
    }


def make_table(histories: Mapping[Job, History]) -> list[dict[str, Any]]:
    """Return a row for each run; targets are of its set's best."""
    tops: dict[str, float] = {}
    for job, history in histories.items():
        tops[job.data] = max(tops.get(job.data, 0.0), best(history))
    return [row_of(job, history, NEAR_BEST * tops[job.data]) for job, history in histories.items()]


def markdown(table: Sequence[Mapping[str, Any]], sets: Sequence[str]) -> str:
    """Return the table as Markdown, one part for each set, best times in bold."""
    return "\n".join(line for data in sets for line in _part(table, data))


def _part(table: Sequence[Mapping[str, Any]], data: str) -> list[str]:
    rows = [row for row in table if row["data"] == data]
    times = [row["seconds_to_95"] for row in rows if row["seconds_to_95"] is not None]
    target = NEAR_BEST * max(row["P@1"] for row in rows)
    lines = [
        f"### {data}: {DATA[data].train_s:g} simulated seconds, target P@1 {target:.3f}", "",
        "| algorithm | lr | P@1 | P@5 | seconds to target | rows | workers idle |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    for row in rows:
        time_s = row["seconds_to_95"]
        spelled = "-" if time_s is None else f"{time_s:.1f}"
        spelled = f"**{spelled}**" if times and time_s == min(times) else spelled
        rate = f"{row['lr']:g}{'' if row['lr_chosen_on'] == data else ' *'}"
        cells = [
            ALGORITHMS[row["algorithm"]].title, rate, f"{row['P@1']:.3f}",
            f"{row['P@5']:.3f}", spelled, f"{row['rows']:,}", f"{row['idle_share']:.1%}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def algorithms(figure: Figure) -> None:
    """Make the table of all algorithms."""
    jobs = [
        Job(data=data, algorithm=name, lr=chosen_lr(chosen_on(data, name), name))
        for data in figure.sets
        for name in figure.algorithms or ALGORITHMS
    ]
    histories = run_all(jobs, figure.folder)
    table = make_table({job: histories[job] for job in jobs})
    figure.write(table, markdown(table, figure.sets).split("\n"))


KINDS = {
    "learning-rates": learning_rates, "by-workers": by_workers, "variants": variants,
    "batch-times": batch_times_figure, "batch-sizes": batch_sizes, "algorithms": algorithms,
}  # fmt: skip
