"""What denormalized weights, perturbation and momentum each contribute: a factorial.

The runs are of Adaptive SGD with the rules as printed, on four workers, and differ in the weights
of the merge alone:

    shares   replicas weigh by their updates (u, Algorithm 2), their batch sizes (b), or alike;
    weights  neither    the shares as they are, which sum to 1;
             perturbed  with (1 + delta) for the replica with most updates and (1 - delta) for that
                        with the fewest, then divided by their sum S;
             sum        the shares, times that S;
             printed    perturbed, and not divided: their sum is S.

So ``perturbed`` less ``neither`` is the effect of perturbation alone, ``sum`` less ``neither`` that
of a sum that is not 1 alone, and ``printed`` less ``neither`` that of both. Replicas that weigh
alike have S = 1. Momentum is gamma = 0 or 0.9, the fastest worker is 1.32 or 4 times as fast as the
slowest, and seeds are paired: in each the runs have the same rows in the same order and the same
first model. The rate is that of ``adaptive-paper`` with momentum and of ``adaptive-plain`` without.
A run lasts as long as one that a rate is chosen by, and is scored after every fourth merge.

Where a merge's weights sum to S = 1 + e, a model of which nothing is learned grows by the factor
1 + e / (1 - gamma) a merge in the long run; ``growth`` is the geometric mean of a run's factors by
that formula, and ``grown`` how much larger the largest replica became a merge than in the run of
the same seed and shares with a sum of 1. The file is written after each seed of a set, and its rows
are taken for seeds that it has: first one of a seed's runs, another for each seed, is simulated
again, and where it is not the same, all of them are. Same are the merges, S, ``growth`` and six
digits of the first norm: rounding differs between kinds of processors, and training amplifies it.

``late`` asks by what workers should weigh where some are late: by updates (Algorithm 2), by rows,
or by rows times rows a step, as Decoupled DiLoCo weighs tokens (arXiv 2604.21428). Runs of
``adaptive-sgd`` on four workers, by a quorum of .75 and by the barrier, of equally many epochs, in
six scenes: speeds alike, 1.32 and 4 times apart, the second worker frozen for as long as twenty
mega-batches take, each once for 5 % of an undisturbed run's time, and the last one at a tenth of
the speed.

``lengths`` asks what longer mega-batches cost where momentum and rates follow from the length, as
with ``megabatch_batches = "auto"``, and where they stay as they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import study
from adaptive import chosen_lr
from daskxml.local import Freeze
from daskxml.strategies import STRATEGIES, AdaptiveSgd
from daskxml.strategies.adaptive_sgd import Config as Adaptive
from daskxml.strategies.adaptive_sgd import normalized_weights, perturb_weights
from daskxml.strategies.batches import rate_gain
from daskxml.strategies.protocol import Measured, Merge
from daskxml.strategies.state import MegabatchState, WorkerState
from drawing import RESULTS, Figure, best, interval, table_lines
from study import DATA, History, Job, read_csv

SHARES, WEIGHTS = ("u", "b", "alike"), ("neither", "perturbed", "sum", "printed")
LATE_SHARES = ("u", "rows", "rows a step")
FACTORS = ("data", "spread", "gamma", "shares")
SPREADS = {1.32: study.SPEEDS, 4.0: (1.0, 0.63, 0.397, 0.25)}
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Config(Adaptive):
    """Settings of Adaptive SGD, and the two factors of its weights; see this module's head."""

    shares: Literal["u", "b", "alike", "rows", "rows a step"] = "u"
    weights: Literal["neither", "perturbed", "sum", "printed"] = "printed"


class Weighted(AdaptiveSgd):
    """Adaptive SGD with other weights."""

    config: Config

    def merge(self, state: MegabatchState, measured: Measured) -> Merge:
        """Weigh the replicas as the factors say."""
        merge, workers = super().merge(state, measured), state.members
        updates = {name: worker.updates for name, worker in workers.items()}
        sizes = {name: worker.batch_size for name, worker in workers.items()}
        weights = normalized_weights(sizes, updates)
        if self.config.shares != "u":
            counts = counts_of(workers, self.config.shares)
            weights = {name: n / sum(counts.values()) for name, n in counts.items()}
        if merge.perturbed:
            printed = perturb_weights(weights, updates, self.config)
            total = sum(printed.values())
            if self.config.weights in ("perturbed", "printed"):
                weights = printed
            factor = {"perturbed": 1.0 / total, "sum": total}.get(self.config.weights, 1.0)
            weights = {name: weight * factor for name, weight in weights.items()}
        return replace(merge, weights=weights)


def counts_of(workers: Mapping[str, WorkerState], shares: str) -> dict[str, float]:
    """Return what replicas weigh by; rows of a late one are capped as its updates are."""
    if shares == "alike":
        return dict.fromkeys(workers, 1.0)
    if shares == "b":
        return {name: worker.batch_size for name, worker in workers.items()}
    most = max((w.rows for w in workers.values() if not w.age), default=0) or math.inf
    rows = {name: min(float(worker.rows), most) for name, worker in workers.items()}
    if shares == "rows":
        return rows
    return {name: n * workers[name].batch_size for name, n in rows.items()}


def jobs_of(sets: Iterable[str], seed: int) -> dict[tuple[Any, ...], Job]:
    """Return the runs of a seed by their factors."""
    return {
        (data, spread, gamma, shares, weights): Job(
            data=data, algorithm="adaptive-paper", seed=seed, train_s=DATA[data].tuning_s, every=4,
            lr=chosen_lr(data, "adaptive-paper" if gamma else "adaptive-plain"),
            speeds=SPREADS[spread],
            overrides=(
                ("strategy.name", "weighted"), ("strategy.shares", shares),
                ("strategy.weights", weights), ("strategy.momentum", gamma),
            ),
        )
        for data, spread, gamma, shares, weights in itertools.product(
            sets, SPREADS, (0.0, 0.9), SHARES, WEIGHTS
        )
        if shares != "alike" or weights in ("neither", "perturbed")  # S is 1
    }  # fmt: skip


def simulate_one(job: Job, folder: Path) -> dict[str, Any]:
    """Simulate a run in a process that knows `Weighted`."""
    STRATEGIES["weighted"] = Weighted
    return study._simulate(job, folder)


def row_of(factors: Sequence[Any], job: Job, history: History) -> Row:
    """Return a row of the CSV file."""
    gamma = factors[2]
    sums = [sum(worker["weight"] for worker in row["workers"].values()) for row in history]
    norms = [max(worker["norm"] for worker in row["workers"].values()) for row in history]
    logs = [math.log1p((total - 1.0) / (1.0 - gamma)) for total in sums[:-1]]
    return {
        **dict(zip((*FACTORS, "weights"), factors, strict=True)), "seed": job.seed, "lr": job.lr,
        "P@1": best(history), "merges": len(history), "S": round(sum(sums) / len(sums), 5),
        "growth": round(math.exp(sum(logs) / len(logs)), 5),
        "first norm": norms[0], "last norm": norms[-1],
    }  # fmt: skip


def effects(rows: Iterable[Row]) -> list[Row]:
    """Return a row for each set, spread, momentum and kind of shares, means over the seeds.

    Each of ``P@1`` is that of ``neither``; effects are paired differences with half their 95 %
    interval, in hundredths.
    """
    found = by_cell(rows, (*FACTORS, "weights"))
    table = []
    for factors in dict.fromkeys(cell[:-1] for cell in found):
        cell = {name: found[*factors, name] for name in WEIGHTS if (*factors, name) in found}
        base = cell["neither"]
        given: Row = dict(zip(FACTORS, factors, strict=True))
        given |= {"seeds": len(base), "P@1": interval([r["P@1"] for r in base.values()])[0]}
        alike = found[*factors[:3], "u", "neither"]
        given["shares - u"] = _difference(base, alike, "P@1") if base is not alike else "-"
        for name in WEIGHTS[1:]:
            given[name] = _difference(cell[name], base, "P@1") if name in cell else "-"
        printed, normal = cell.get("printed"), cell["perturbed"]
        if printed:
            given["growth"] = f"{interval([r['growth'] for r in printed.values()])[0]:.4f}"
            grown = [
                (row["last norm"] / normal[seed]["last norm"]) ** (1.0 / (row["merges"] - 1))
                for seed, row in printed.items()
            ]
            given["grown"] = "{:.4f} +- {:.4f}".format(*interval(grown))
        table.append({**given, **{n: given.get(n, "-") for n in ("growth", "grown")}})
    return table


def by_cell(rows: Iterable[Row], keys: Sequence[str]) -> dict[tuple[Any, ...], dict[int, Row]]:
    """Return the rows of each combination of the keys' values by seed."""
    found: dict[tuple[Any, ...], dict[int, Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), {})[row["seed"]] = row
    return found


def _difference(cell: Mapping[int, Row], base: Mapping[int, Row], key: str) -> str:
    differences = [100.0 * (row[key] - base[seed][key]) for seed, row in cell.items()]
    return "{:+.2f} +- {:.2f}".format(*interval(differences))


def factorial(figure: Figure) -> None:
    """Check or simulate seed by seed, and write what is known after each."""
    rows = read_csv(RESULTS / f"{figure.name}.csv")
    for seed, data in itertools.product(range(figure.given["seeds"]), figure.sets):
        own = [row for row in rows if (row["data"], row["seed"]) == (data, seed)]
        rows = [row for row in rows if row not in own] + seed_rows(data, seed, own, figure.folder)
        rows.sort(key=lambda row: list(DATA).index(row["data"]))
        figure.write(rows, table_lines(effects(rows)))


def seed_rows(data: str, seed: int, known: list[Row], folder: Path) -> list[Row]:
    """Return a seed's rows on a set: the known ones, if one of them comes out the same again."""
    jobs = jobs_of([data], seed)
    if known:
        checked = list(jobs)[7 * seed % len(jobs)]  # seeds that follow each other: far apart
        (row,) = simulated({checked: jobs[checked]}, folder)
        if decided(row) in map(decided, known):
            return known
    return simulated(jobs, folder)


def decided(row: Row) -> Row:
    """Return what of a row is the same on every processor."""
    return {**row, "first norm": f"{row['first norm']:.6g}", "last norm": 0.0, "P@1": 0.0}


def simulated(jobs: Mapping[tuple[Any, ...], Job], folder: Path) -> list[Row]:
    """Simulate what is missing; return a row for each run."""
    histories = study.run_all(list(jobs.values()), folder, simulate_one)
    return [row_of(factors, job, histories[job]) for factors, job in jobs.items()]


def scenes(undisturbed: History) -> dict[str, tuple[Sequence[float], tuple[Freeze, ...]]]:
    """Return the speeds and freezes of each scene, by an undisturbed run's times."""
    ends = [row["wall_s"] for row in undisturbed]
    whole, length = ends[-1], ends[-1] / len(ends)
    in_turn = [Freeze((0.1 + 0.2 * n) * whole, str(n), 0.05 * whole) for n in range(4)]
    equal, spread = (1.0,) * 4, study.SPEEDS
    return {
        "alike": (equal, ()), "1.32": (spread, ()), "4": (SPREADS[4.0], ()),
        "one frozen": (spread, (Freeze(whole / 8.0, "1", 20.0 * length),)),
        "each 5 %": (spread, tuple(in_turn)), "a tenth": ((1.0, 1.0, 1.0, 0.1), ()),
    }  # fmt: skip


def late_jobs(data: str, seed: int, epochs: int, folder: Path) -> dict[tuple[str, ...], Job]:
    """Return a seed's runs on a set by scene and policy."""
    base = Job(
        data=data, algorithm="adaptive-sgd", seed=seed, every=1_000_000,
        lr=chosen_lr(data, "adaptive-sgd"),
        overrides=(
            ("training.minutes", 0), ("training.epochs", epochs), ("strategy.name", "weighted"),
        ),
    )  # fmt: skip
    (undisturbed,) = study.run_all([base], folder, simulate_one).values()
    return {
        (scene, policy, shares): replace(
            base, speeds=tuple(speeds), freezes=freezes,
            overrides=(
                *base.overrides, ("combine.quorum", quorum), ("strategy.shares", shares),
                ("strategy.weights", "perturbed"),
            ),
        )
        for scene, (speeds, freezes) in scenes(undisturbed).items()
        for policy, quorum in (("barrier", 1.0), ("quorum", 0.75))
        for shares in (LATE_SHARES if quorum < 1.0 or scene in ("4", "a tenth") else ("u",))
    }  # fmt: skip


def late(figure: Figure) -> None:
    """Simulate seed by seed, and write what is known after each."""
    rows: list[Row] = []
    for seed in range(figure.given["seeds"]):
        for data in figure.sets:
            jobs = late_jobs(data, seed, figure.given["epochs"], figure.folder)
            histories = study.run_all(list(jobs.values()), figure.folder, simulate_one)
            for (scene, policy, shares), job in jobs.items():
                history = histories[job]
                rows.append({
                    "data": data, "scene": scene, "policy": policy, "shares": shares, "seed": seed,
                    "P@1": round(history[-1]["metrics"]["P@1"], 5), "merges": len(history),
                    "late": sum(bool(row.get("late")) for row in history),
                    "rows_per_s": round(history[-1]["rows"] / history[-1]["wall_s"], 1),
                })  # fmt: skip
        figure.write(rows, table_lines(late_effects(rows)))


def late_effects(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each set, scene, policy and kind of shares.

    ``P@1`` and ``speed`` are paired with the barrier's of the same scene without its freezes, by
    updates: differences in hundredths with half their 95 % interval, and a ratio.
    """
    keys = ("data", "scene", "policy", "shares")
    found = by_cell(rows, keys)
    table = []
    for cell, own in found.items():
        calm = "1.32" if cell[1] in ("one frozen", "each 5 %") else cell[1]
        base = found[cell[0], calm, "barrier", "u"]
        ratios = [row["rows_per_s"] / base[seed]["rows_per_s"] for seed, row in own.items()]
        shares = [row["late"] / row["merges"] for row in own.values()]
        table.append({
            **dict(zip(keys, cell, strict=True)), "seeds": len(own),
            "P@1": interval([row["P@1"] for row in own.values()])[0],
            "points": _difference(own, base, "P@1"), "rows a second": sum(ratios) / len(ratios),
            "merges with a late one": sum(shares) / len(shares),
        })  # fmt: skip
    return table


def lengths(figure: Figure) -> None:
    """Simulate the shipped settings with mega-batches of one, two and four times 50 batches."""
    rows: list[Row] = []
    for seed in range(figure.given["seeds"]):
        cases = itertools.product(figure.sets, (2, 4), (1, 2, 4), ("as they are", "for the length"))
        jobs = {}
        for data, workers, times, settings in cases:
            if times == 1 and settings != "as they are":
                continue
            scaled = times if settings == "for the length" else 1
            jobs[data, workers, 50 * times, settings] = Job(
                data=data, algorithm="adaptive-sgd", seed=seed, lr=rate_gain(0.9, scaled),
                speeds=(1.0,) * workers, every=1_000_000,
                overrides=(
                    ("training.minutes", 0), ("training.epochs", 20), ("model.dropout", 0.2),
                    ("strategy.batch_max", 64), ("strategy.megabatch_batches", 50 * times),
                    ("strategy.momentum", 0.9**scaled),
                ),
            )  # fmt: skip
        histories = study.run_all(list(jobs.values()), figure.folder)
        for (data, workers, batches, settings), job in jobs.items():
            metrics = histories[job][-1]["metrics"]
            rows.append({
                "data": data, "workers": workers, "batches": batches, "rates": settings,
                "seed": seed, **{name: round(metrics[name], 5) for name in ("P@1", "P@5")},
            })  # fmt: skip
        figure.write(rows, table_lines(length_effects(rows)))


def length_effects(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each set, number of workers and length: differences from 50 batches."""
    keys = ("data", "workers", "batches", "rates")
    found = by_cell(rows, keys)
    return [
        {
            **dict(zip(keys, cell, strict=True)), "seeds": len(own),
            "P@1": interval([row["P@1"] for row in own.values()])[0],
            **{
                f"points of {name}": _difference(own, found[(*cell[:2], 50, "as they are")], name)
                for name in ("P@1", "P@5")
            },
        }
        for cell, own in found.items()
    ]  # fmt: skip


KINDS = {"factorial": factorial, "late": late, "lengths": lengths}
