"""Figures 1 and 6 to 12 of Adaptive SGD, a table of all algorithms, and their learning rates.

Ma, Rusu, Wu and Sim, "Adaptive Elastic Training for Sparse Deep Learning on Heterogeneous Multi-GPU
Servers", 2021; the settings are those of `study`. Each function of `KINDS` makes the figures whose
TOML file names it:

``slide-speed``  Rows that SLIDE trains in a second of a processor core, at the shape of
    Amazon-670k with the share of the labels that it has on each set; 16 cores are taken to do 16
    times that, and the V100 of the cost model has speed 1. With all labels the output layer is not
    sampled, which is faster. Processor time, so that other programs on the machine do not count.
    The first mega-batch builds hash tables and compiles, and is left out.
``learning-rates``  Every algorithm gets the same simulated time on every set (`DataSet.tuning_s`)
    and the same grid, which goes on by factors of 10 and 3 in turn until the best rate is none of
    its ends; the best P@1 within that time on an eighth of the training rows counts, which those
    runs do not train on. The test rows have no part in it.
``by-workers``  Accuracy on one, two and four workers (figures 6 and 7), or Adaptive SGD's alone,
    over time and mega-batches (figure 8). SLIDE has a worker of its own, a CPU, and is drawn beside
    each number of the others. Learning rates are those chosen at four workers. The target is 90 %
    of the best mean on the set; others stand beside Elastic SGD on as many workers.
``variants``  Adaptive SGD with one setting varied (figures 9 to 11). The target is 95 % of the best
    mean of the panel; others stand beside its first.
``batch-times``  How long unequal workers take for identical batches (figure 1): one epoch, in the
    order of the files' shuffled rows. The spread of the paper's four V100, 32 %, is put in; what is
    measured is the other source of unequal times: batches of equally many rows differ in non-zeros.
``batch-sizes``  Batch sizes, and how many merges are perturbed (figure 12). The CSV file has all
    that decided weights and sizes, so that both can be computed again from it.
``algorithms``  All algorithms at equal simulated time on four unequal workers, beside Elastic SGD;
    the target is 95 % of the best mean on the set. In ``pairs`` both have one rate, the lower of
    theirs.

Curves and numbers of these three are means over seeds, "+-" half the 95 % interval of the mean
(Student's t). P@1 and P@5 are of the evaluation with the best P@1 within the time; seconds and
mega-batches to the target are of the seeds that reach it (``reached by``). Seeds are paired: see
`compare`.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

import daskxml
from daskxml.api.in_process import train_here
from daskxml.config import load_run_config
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.local import read_rows, v100_cost
from daskxml.local.cost import jitter_factor
from drawing import (
    NEAR_BEST,
    RESULTS,
    Figure,
    at_best,
    best,
    draw,
    idle_share,
    points,
    reaching,
    spread,
    table_lines,
    write_csv,
)
from study import (
    ALGORITHMS,
    AMAZON_670K,
    AMAZON_BATCH_ROWS,
    AMAZON_ROW_NONZEROS,
    DATA,
    SPEEDS,
    History,
    Job,
    cost_of,
    read_csv,
    resolve,
    run_all,
    with_changes,
)

CORES = 16  # of the paper's server


def slide_speed(figure: Figure) -> None:
    """Measure how fast SLIDE is, in place of a V100."""
    cost = v100_cost(AMAZON_670K)
    batch = AMAZON_BATCH_ROWS, AMAZON_BATCH_ROWS * AMAZON_ROW_NONZEROS
    gpu_rows_s = AMAZON_BATCH_ROWS / cost.batch_s(*batch)
    spec = SyntheticSpec(
        rows=2048, features=AMAZON_670K.features, labels=AMAZON_670K.labels, labels_per_row=5.0,
        features_per_row=AMAZON_ROW_NONZEROS, flatness=10.0, noise=0.6,
    )  # fmt: skip
    part = generate(spec)[0]
    given = daskxml.Matrices(to_scipy(part.features), to_scipy(part.labels))
    active = load_run_config("slide").sampling.active
    rows = []
    for data, labels in figure.given["labels"].items():
        share = min(1.0, active / labels)
        settings = {
            "sampling.active": round(share * AMAZON_670K.labels), "cluster.threads": 1,
            "sampling.method": "simhash" if share < 1.0 else "none",
            "strategy.megabatch_batches": 2, "training.megabatches": figure.given["megabatches"],
        }  # fmt: skip
        clock: list[float] = []
        train_here(
            "slide", train=given, overrides=settings,
            on_megabatch=lambda row, clock=clock: clock.append(time.process_time()),
        )  # fmt: skip
        trained = 2 * 256 * (len(clock) - 1)
        core_rows_s = trained / (clock[-1] - clock[0])
        rows.append({
            "data": data, "labels": labels, "share of the labels": round(share, 4),
            "rows a second of a core": round(core_rows_s, 1),
            "rows a second of the V100": round(gpu_rows_s),
            "speed": round(CORES * core_rows_s / gpu_rows_s, 4),
        })  # fmt: skip
    figure.write(rows, table_lines(rows))


TABLE = RESULTS / "learning_rates.csv"
EVALUATIONS = 8  # of a run that a learning rate is chosen by


def tuning_job(data: str, algorithm: str, lr: float) -> Job:
    """Return the run that scores a rate."""
    return Job(
        data=data, algorithm=algorithm, lr=lr, validates=True, train_s=DATA[data].tuning_s,
        every=evaluation_gap(data, algorithm),
    )  # fmt: skip


def missing_rates(scores: Mapping[float, float], grid: Sequence[float]) -> list[float]:
    """Return the rates to try next: the grid, then what lies beyond an end that is the best.

    >>> missing_rates({}, [1.0, 3.0]), missing_rates({1.0: 0.4, 3.0: 0.5}, [1.0, 3.0])
    ([1.0, 3.0], [10.0])
    >>> missing_rates({1.0: 0.5, 3.0: 0.4}, [1.0, 3.0])
    [0.3]
    >>> missing_rates({0.3: 0.4, 1.0: 0.5, 3.0: 0.5}, [1.0, 3.0])
    []
    """
    if not scores:
        return list(grid)
    top = min(scores, key=lambda lr: (-scores[lr], lr))
    ladder = [float(f"{digit}e{power}") for power in range(-6, 5) for digit in (1, 3)]
    place = ladder.index(top)
    return [lr for lr in ladder[place - 1 : place + 2] if lr not in scores]


def evaluation_gap(data: str, algorithm: str) -> int:
    """Return the mega-batches between two evaluations."""
    if algorithm in ("mirrored", "central", "static-step", "adasum-gradients", "slide"):
        return 1  # they make few
    megabatch_s = 0.0302 * DATA[data].megabatch_batches
    return max(1, round(DATA[data].tuning_s / megabatch_s / EVALUATIONS))


def learning_rates(figure: Figure) -> None:
    """Simulate until every best rate is within its grid, and write the table."""
    found: dict[tuple[str, str], dict[float, float]] = {
        (data, name): {} for data in figure.sets for name in figure.algorithms or ALGORITHMS
    }
    while jobs := [
        tuning_job(*key, lr)
        for key, scores in found.items()
        for lr in missing_rates(scores, ALGORITHMS[key[1]].learning_rates)
    ]:
        for job, history in run_all(jobs, figure.folder).items():
            found[job.data, job.algorithm][job.lr] = best(history)
        write_rates(found)
    chosen.cache_clear()


def write_rates(found: Mapping[tuple[str, str], Mapping[float, float]]) -> None:
    """Replace the scores of these sets and algorithms in the table."""
    kept = [row for row in read_csv(TABLE) if (row["data"], row["algorithm"]) not in found]
    kept += [
        {"data": data, "algorithm": name, "lr": lr, "P@1": round(score, 5)}
        for (data, name), scores in found.items() for lr, score in scores.items()
    ]  # fmt: skip
    sets, names = list(DATA), list(ALGORITHMS)
    write_csv(TABLE, sorted(
        kept, key=lambda r: (sets.index(r["data"]), names.index(r["algorithm"]), r["lr"])
    ))  # fmt: skip


@functools.cache
def chosen() -> dict[tuple[str, str], float]:
    """Return the best learning rate of every set and algorithm; of equal ones the lower."""
    rows = sorted(read_csv(TABLE), key=lambda row: (row["P@1"], -row["lr"]))
    return {(row["data"], row["algorithm"]): row["lr"] for row in rows}  # the last one counts


def chosen_lr(data: str, algorithm: str) -> float:
    """Return the learning rate of an algorithm on a set."""
    try:
        return chosen()[data, algorithm]
    except KeyError:
        raise SystemExit(
            f"no learning rate of {algorithm} on {data}: run learning_rates first"
        ) from None


COUNTS = (1, 2, 4)
NEAR = 0.9
Runs = Mapping[Job, Sequence[History]]  # of every seed, by the job with seed 0


def simulated(jobs: Sequence[Job], figure: Figure) -> Runs:
    """Simulate every job with each seed of the figure."""
    seeds = {
        job: [replace(job, seed=seed) for seed in range(figure.given["seeds"])] for job in jobs
    }
    found = run_all(list(itertools.chain(*seeds.values())), figure.folder)
    return {job: [found[each] for each in own] for job, own in seeds.items()}


def mean_points(runs: Sequence[History]) -> list[dict[str, float]]:
    """Return the means over the seeds of `drawing.points`, as far as all of them go."""
    return [
        {key: round(fmean(point[key] for point in found), 5) for key in found[0]}
        for found in zip(*map(points, runs), strict=False)
    ]


def compare(
    runs: Runs, beside: Mapping[Job, Job], near: float = NEAR_BEST
) -> dict[Job, dict[str, Any]]:
    """Return the numbers of each job of one set; the target is a share of the best mean.

    ``beside`` names the job that another stands beside, if there is one: ``above`` is the mean
    of the seeds' differences of P@1 to it, ``times`` of the ratios of their times to the target.
    """
    target = near * max(fmean(map(best, own)) for own in runs.values())
    reached = {job: [reaching(history, target) for history in own] for job, own in runs.items()}
    table = {}
    for job, own in runs.items():
        other = beside.get(job)
        found = [point for point in reached[job] if point]
        above = [best(a) - best(b) for a, b in zip(own, runs.get(other, ()), strict=False)]
        both = zip(reached[job], reached.get(other, ()), strict=False)
        times = [a["time_s"] / b["time_s"] for a, b in both if a and b]
        row = {"lr": job.lr, "seeds": len(own), "target": round(target, 4)}
        row |= spread("P@1", [best(history) for history in own], 4)
        row |= spread("above", above, 4)
        row |= {"P@5": round(fmean(at_best(history)["P@5"] for history in own), 4)}
        row |= {"reached by": len(found)}
        row |= spread("seconds", [point["time_s"] for point in found], 2)
        row |= spread("mega-batches", [point["megabatch"] for point in found], 1)
        row |= {"pairs": len(times), **spread("times", times, 4)}
        row |= {"idle": round(fmean(map(idle_share, own)), 4)}
        perturbed = (fmean(row["perturbed"] for row in history) for history in own)
        row |= {"perturbed": round(fmean(perturbed), 4)}
        table[job] = row
    return table


def by_set(runs: Runs) -> dict[str, Runs]:
    """Return the jobs of each set."""
    return {
        data: {job: own for job, own in runs.items() if job.data == data}
        for data in dict.fromkeys(job.data for job in runs)
    }


def overall_jobs(sets: Sequence[str], algorithms: Sequence[str]) -> list[Job]:
    """Return the runs, where rates are chosen; they are those chosen at four workers."""
    return [
        Job(data=data, algorithm=name, lr=chosen_lr(data, name), workers=count)
        for data in sets for name in algorithms if (data, name) in chosen()
        for count in (COUNTS if name != "slide" else (1,))
    ]  # fmt: skip


def curve_rows(runs: Runs) -> list[dict[str, Any]]:
    """Return every point of every curve as a row."""
    return [
        {
            "data": job.data, "algorithm": job.algorithm, "workers": job.workers, "lr": job.lr,
            **point,
        }
        for job, own in runs.items() for point in mean_points(own)
    ]  # fmt: skip


def by_workers(figure: Figure) -> None:
    """Make figure 6 or 7, or figure 8 (``x`` has both axes)."""
    sets, axes_of = figure.sets, figure.given["x"]
    runs = simulated(overall_jobs(sets, figure.given["algorithms"]), figure)
    numbers = []
    for data, own in by_set(runs).items():
        elastic = {job.workers: job for job in own if job.algorithm == "elastic"}
        beside = {job: elastic[job.workers] for job in own.keys() - elastic.values() if elastic}
        for job, row in compare(own, beside, NEAR).items():
            title = ALGORITHMS[job.algorithm].title
            numbers.append({"data": data, "workers": job.workers, "algorithm": title, **row})
    rows = curve_rows(runs)
    figure.write(rows, table_lines(sorted(numbers, key=lambda row: (row["data"], row["workers"]))))
    axes = [(x, "P@1") for x in axes_of]
    if len(axes) == 1:  # SLIDE beside each number of workers
        rows += [{**r, "workers": n} for r in rows if r["algorithm"] == "slide" for n in (2, 4)]
        draw(figure.name, rows, axes, line="algorithm", across="workers", down="data")
    else:
        rows = [{**r, "workers": "SLIDE" if r["algorithm"] == "slide" else r["workers"]}
                for r in rows]  # fmt: skip
        draw(figure.name, rows, axes, line="workers", across="data")


Panels = dict[str, dict[str, dict[str, Job]]]  # by title, set and label


def base_job(data: str, algorithm: str = "adaptive-sgd") -> Job:
    """Return the run of the study that a variant differs from in one setting."""
    return Job(data=data, algorithm=algorithm, lr=chosen_lr(data, algorithm))


def panels_of(figure: Figure) -> Panels:
    """Return the panels of a file.

    A variant's ``set`` are settings, ``of_b_max`` settings as shares of the largest batch; its
    label may name both, as ``{batch_initial}``.
    """
    return {
        given["title"]: {
            data: dict(_variant(data, given.get("set", {}), v) for v in given["variants"])
            for data in figure.sets
        }
        for given in figure.given["panel"]
    }


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
    return given["label"].format(b_max=most, **{**settings, **shown}), job


def variants(figure: Figure) -> None:
    """Simulate, and write a CSV file and a drawing with panels by title and ``x``."""
    panels = panels_of(figure)
    jobs = [job for sets in panels.values() for runs in sets.values() for job in runs.values()]
    runs = simulated(jobs, figure)
    rows = _table(panels, runs)
    numbers = []
    for title, sets in panels.items():
        for data, own in sets.items():
            first, *others = own.values()
            beside = dict.fromkeys(others, first)
            found = compare({job: runs[job] for job in own.values()}, beside)
            numbers += [
                {"panel": title, "data": data, "variant": label, **found[job]}
                for label, job in own.items()
            ]
    figure.write(rows, table_lines(numbers))
    axes = [(x, "P@1") for x in figure.given.get("x", ["time_s"])]
    draw(figure.name, rows, axes, line="variant", across="data", down="panel")


def _table(panels: Panels, runs: Runs) -> list[dict[str, Any]]:
    """Return every point of every curve."""
    return [
        {"data": data, "panel": title, "variant": label, "lr": job.lr, **point}
        for title, sets in panels.items() for data, jobs in sets.items()
        for label, job in jobs.items() for point in mean_points(runs[job])
    ]  # fmt: skip


EDGES = (5, 25, 50, 75, 95)


def batch_times(data: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return seconds ``(workers, batches)``, and the non-zeros of each batch."""
    job = Job(data=data, algorithm="elastic", lr=1.0)
    rows = read_rows(resolve(job, folder), len(SPEEDS))
    lengths = np.concatenate([np.diff(part.features.indptr) for part in rows.train.parts])
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


def batch_times_figure(figure: Figure) -> None:
    """Make figure 1."""
    table = [
        row for data in figure.sets for row in times_of(data, *batch_times(data, figure.folder))
    ]
    figure.write(table, table_lines(table))
    shown = [
        {**row, "percentile": edge, "seconds of a batch": row[f"batch_s_p{edge}"]}
        for row in table for edge in EDGES
    ]  # fmt: skip
    axes = [("speed", "seconds of a batch"), ("speed", "epoch_s")]
    draw(figure.name, shown, axes, line="percentile", across="data", marker="o")


RULES = ("adaptive-paper", "adaptive-sgd")
DECIDED = ("batch_rows", "batch_size", "updates", "counted", "norm", "weight")


def sizes_of(job: Job, history: History) -> list[dict[str, Any]]:
    """Return what decided weights and sizes in every mega-batch."""
    return [
        {
            "data": job.data, "rules": job.algorithm, "megabatch": row["megabatch"],
            **{
                f"{key}_{n}": worker[key] for key in DECIDED for n, worker in row["workers"].items()
            },
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


def batch_sizes(figure: Figure) -> None:
    """Make figure 12."""
    jobs = [base_job(data, rules) for data in figure.sets for rules in RULES]
    histories = run_all(jobs, figure.folder)
    rows = {job: sizes_of(job, histories[job]) for job in jobs}
    summary = [sizes_summary(job, histories[job]) for job in jobs]
    figure.write(list(itertools.chain(*rows.values())), table_lines(summary))
    shown = [
        {**row, "worker": f"speed {speed:g}", "rows in a batch": row[f"batch_rows_{n}"]}
        for mine in rows.values() for row in mine for n, speed in enumerate(SPEEDS)
    ]  # fmt: skip
    axes = [("megabatch", "rows in a batch")]
    draw(figure.name, shown, axes, line="worker", across="rules", down="data")


def algorithms(figure: Figure) -> None:
    """Make the table of all algorithms."""
    names = figure.algorithms or figure.given.get("algorithms") or list(ALGORITHMS)
    rates = {(data, name): chosen()[data, name]
             for data in figure.sets for name in names if (data, name) in chosen()}  # fmt: skip
    if figure.given.get("rate") == "lowest":  # one for all on a set
        rates = {key: min(lr for (data, _), lr in rates.items() if data == key[0]) for key in rates}
    jobs = [Job(data=data, algorithm=name, lr=lr) for (data, name), lr in rates.items()]
    table: list[dict[str, Any]] = []
    lines: list[str] = []
    for data, runs in by_set(simulated(jobs, figure)).items():
        elastic = [job for job in runs if job.algorithm == "elastic"]
        found = compare(runs, {job: other for other in elastic for job in runs if job != other})
        mine = [{"algorithm": job.algorithm, **row} for job, row in found.items()]
        lines += [f"### {data}: {DATA[data].train_s:g} simulated seconds", ""]
        lines += [*table_lines(mine), ""]
        table += [{"data": data, **row} for row in mine]
    figure.write(table, lines[:-1])


KINDS = {
    "learning-rates": learning_rates, "by-workers": by_workers, "variants": variants,
    "slide-speed": slide_speed, "batch-times": batch_times_figure, "batch-sizes": batch_sizes,
    "algorithms": algorithms,
}  # fmt: skip
