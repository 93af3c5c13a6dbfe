"""Figures 5 to 8 of Hogbatch: sets, models, devices, rates and algorithms.

Ma, Rusu, Wu and Sim, "Adaptive Stochastic Gradient Descent for Deep Learning on Heterogeneous
CPU+GPU Architectures", IPDPSW 2021, section VII. Models, batch bounds, alpha = 2 and beta = 1 are
those of Table II and the text; a9a replaces covtype, and rcv1-binary-sub real-sim.

Time is simulated, and its unit is what the GPU alone takes for an epoch in its largest batches. Of
the paper's testbed three ratios are kept. An epoch takes the pool of 56 threads 250 times as long,
in batches of any size (the paper: 236 to 317). The GPU's fixed cost of a batch, for launches and
for copying the model to it and back, is that of the arithmetic of ``batch_min`` rows, so that it is
half used in its smallest batches, as the paper has it, and almost fully in its largest. Messages
cost next to nothing, as between threads of one process; a batch's time has a jitter of 5 %.

Two rules of rates. ``proportional``: a step's rate is in proportion to its rows, as section VI.B
says and as daskxml's strategies do; ``lr`` is the rate of ``batch_max`` rows. ``equal``: every step
has the rate ``lr``, be it of one row or of 8,192, as in the code that the authors published
(github.com/YMA33/CPU-GPU-SGD at e19bbd1, where both kinds of worker step by ``N_0`` times the mean
gradient): ``scaling = "none"`` of the strategies.

Sets are in ``hogbatch.toml``; figures share the runs of the whole grid, of one seed. ``loss``
(figures 5 and 6): normalised training loss, for both rules, with the rates chosen: means over
``seeds``, "+-" half the 95 % interval of the mean; ``beside mini-batch`` is the mean of the seeds'
ratios of lowest losses. ``use`` (figure 7): a pool is used while it works; of the
GPU's time only the arithmetic counts, not a batch's fixed cost, so that small batches use it less.
``shares`` (figure 8): the updates of both.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from daskxml.config import RunConfig, load_run_config
from daskxml.local import CostModel, Network, Rows, read_rows
from daskxml.local.cost import cost_by_epochs
from drawing import RESULTS, Figure, draw, elapsed_s, spread, table_lines, write_csv
from study import HERE, History, keep, run_all, run_file

THREADS, RATIO = 56, 250.0
UNITS = 512
NETWORK = Network(bandwidth_bytes_s=1e15, latency_s=0.0, message_s=1e-5)  # see the head
RULES = ("proportional", "equal")


@dataclass(frozen=True, kw_only=True)
class HogbatchSet:
    """A set: Table II's column, and how long it is trained on.

    Attributes
    ----------
    layers
        Hidden ones, of 512 sigmoid units.
    batch_max, batch_min, pool_batch_max
        Of a batch on the GPU, and of a thread's part of the pool's.
    megabatch_batches, megabatches
        Between two barriers, in batches of ``batch_max``; and how many of those.
    rates
        The grid, the same for all algorithms, the likeliest first.
    """

    name: str
    rows: int
    layers: int
    batch_max: int = 8192
    batch_min: int = 64
    pool_batch_max: int = 64
    megabatch_batches: int = 5
    megabatches: int
    rates: tuple[float, ...] = (0.1, 0.01, 1.0)

    @property
    def megabatch_rows(self) -> int:
        """Rows between two barriers."""
        return self.megabatch_batches * self.batch_max

    @property
    def train_s(self) -> float:
        """Epochs of the GPU alone that every run may last."""
        return self.megabatches * self.megabatch_rows / self.rows

    @property
    def cost(self) -> CostModel:
        """Of a batch on the GPU: an epoch in batches of ``batch_max`` takes 1."""
        row_s = 1.0 / (self.rows * (1.0 + self.batch_min / self.batch_max))
        return CostModel(fixed_s=row_s * self.batch_min, per_row_s=row_s)

    @property
    def pool_cost(self) -> CostModel:
        """Of a batch on the pool."""
        return cost_by_epochs(self.cost, RATIO, self.batch_max)


SETS = {
    name: HogbatchSet(name=name, **{**given, "rates": tuple(given.get("rates", (0.1, 0.01, 1.0)))})
    for name, given in tomllib.loads((HERE / "hogbatch.toml").read_text()).items()
}


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """An algorithm: its strategy, and who takes part."""

    strategy: str
    has_gpu: bool = True
    has_pool: bool = True

    @property
    def workers(self) -> tuple[str, ...]:
        """Names of those who take part."""
        return ("gpu",) * self.has_gpu + ("cpu",) * self.has_pool


ALGORITHMS = {
    "cpu": Algorithm(strategy="hogbatch", has_gpu=False),
    "gpu": Algorithm(strategy="hogbatch", has_pool=False),
    "cpu-gpu": Algorithm(strategy="cpu-gpu-hogbatch"),
    "adaptive": Algorithm(strategy="adaptive-hogbatch"),
}


@dataclass(frozen=True, kw_only=True)
class HogbatchJob:
    """One simulated run: keys of `SETS` and `ALGORITHMS`, one of `RULES`, ``lr`` and ``seed``.

    ``settings`` are others of the strategy.
    """

    data: str
    algorithm: str
    rule: str
    lr: float
    settings: tuple[tuple[str, Any], ...] = ()
    seed: int = 0

    @property
    def label(self) -> str:
        """A line for the progress display."""
        extra = " ".join(f"{name}={value}" for name, value in self.settings)
        return f"{self.data} {self.algorithm} {self.rule} lr={self.lr:g} {extra}".strip()


def strategy_of(data: HogbatchSet, algorithm: str, rule: str, lr: float) -> dict[str, Any]:
    """Return the strategy's table of the run file."""
    name = ALGORITHMS[algorithm].strategy
    scaling = "linear" if rule == "proportional" else "none"
    table: dict[str, Any] = {"name": name, "lr": lr, "lease_s": 0.0, "scaling": scaling}
    if algorithm == "cpu":  # the rate of one row; as many batches as in the GPU's mega-batch
        rows = max(1, int(data.megabatch_rows / RATIO / THREADS)) * THREADS
        scale = data.batch_max if rule == "proportional" else 1
        return table | {
            "lr": lr / scale, "batch_max": 1, "per_thread": True, "megabatch_batches": rows,
        }  # fmt: skip
    table |= {"batch_max": data.batch_max, "megabatch_batches": data.megabatch_batches}
    if algorithm == "adaptive":
        table |= {"batch_min": data.batch_min, "pool_batch_max": data.pool_batch_max}
    return table


def resolve(job: HogbatchJob, folder: Path) -> RunConfig:
    """Return the whole configuration of a run."""
    data = SETS[job.data]
    train = folder / f"{data.name}.train.txt.gz"
    if not train.exists():
        raise SystemExit(f"{train}: not there; --data must name the folder of the sets")
    return load_run_config({
        "run": {"name": job.algorithm, "seed": job.seed},
        "data": {"train": [str(train)], "residency": "replicate"},
        "model": {"hidden": [UNITS] * data.layers, "activation": "sigmoid"},
        "strategy": strategy_of(data, job.algorithm, job.rule, job.lr) | dict(job.settings),
        "training": {"minutes": data.train_s / 60.0},
        "evaluation": {"training_loss": True},
        "cluster": {"threads": 1},
    })  # fmt: skip


@functools.lru_cache(maxsize=1)
def _rows(data: str, folder: Path) -> Rows:
    return read_rows(resolve(all_jobs([data])[0], folder), 2)


def simulate_job(job: HogbatchJob, folder: Path) -> dict[str, Any]:
    """Simulate a run, unless it is known."""
    data, names = SETS[job.data], ALGORITHMS[job.algorithm].workers
    config, pools = resolve(job, folder), {"cpu": THREADS} if "cpu" in names else {}
    costs = {"cost": data.cost, "pool_cost": data.pool_cost if pools else None}
    decides = {
        "pools": pools, "workers": names, "network": dataclasses.asdict(NETWORK),
        **{name: cost and dataclasses.asdict(cost) for name, cost in costs.items()},
    }  # fmt: skip
    path = run_file(data.name, config, decides)
    given = {"speeds": dict.fromkeys(names, 1.0), "pools": pools, "network": NETWORK, **costs}
    rows = None if path.exists() else _rows(job.data, folder)
    return keep(job, path, config, train=rows, **given)


def all_jobs(sets: Iterable[str]) -> list[HogbatchJob]:
    """Return the whole grid."""
    return [
        HogbatchJob(data=data, algorithm=name, rule=rule, lr=lr)
        for data in sets for lr in SETS[data].rates for rule in RULES for name in ALGORITHMS
    ]  # fmt: skip


def histories(sets: Iterable[str], folder: Path) -> dict[HogbatchJob, History]:
    """Return the histories of all runs."""
    return run_all(all_jobs(sets), folder, simulate_job)


def losses(history: History) -> list[dict[str, float]]:
    """Return the training loss where it was found, with time and epochs; not-finite ones go."""
    return [
        {"time": time_s, "epoch": row["epoch"], "loss": row["training_loss"]}
        for time_s, row in zip(elapsed_s(history), history, strict=True)
        if abs(row.get("training_loss", float("inf"))) < float("inf")
    ]


def lowest(history: History) -> float:
    """Return the lowest training loss, infinite where none was found."""
    return min((point["loss"] for point in losses(history)), default=float("inf"))


def chosen(found: dict[HogbatchJob, History]) -> list[HogbatchJob]:
    """Return for every set and rule the runs with the rate of the lowest loss of any algorithm."""
    jobs = []
    for data, rule in itertools.product(SETS, RULES):
        mine = [job for job in found if (job.data, job.rule) == (data, rule)]
        if mine:
            lr = min(mine, key=lambda job: lowest(found[job])).lr
            jobs += [job for job in mine if job.lr == lr]
    return sorted(jobs, key=lambda job: list(ALGORITHMS).index(job.algorithm))


Points = list[dict[str, float]]


def over_seeds(jobs: Sequence[HogbatchJob], figure: Figure) -> dict[HogbatchJob, list[Points]]:
    """Return the losses of every job with each seed."""
    seeds = range(figure.given["seeds"])
    wanted = {job: [dataclasses.replace(job, seed=seed) for seed in seeds] for job in jobs}
    found = run_all([each for own in wanted.values() for each in own], figure.folder, simulate_job)
    return {job: [losses(found[each]) for each in own] for job, own in wanted.items()}


def least(points: Points) -> float:
    """Return the lowest loss of a curve."""
    return min(point["loss"] for point in points)


def curves_of(runs: Mapping[HogbatchJob, Sequence[Points]]) -> list[dict[str, Any]]:
    """Return every point of the mean curves, with its normalised loss."""
    rows, lowest_of = [], {job: fmean(map(least, own)) for job, own in runs.items()}
    for job, own in runs.items():
        best = min(loss for other, loss in lowest_of.items() if other.data == job.data)
        for found in zip(*own, strict=False):
            point = {key: fmean(each[key] for each in found) for key in found[0]}
            rows.append({
                "data": job.data, "rule": job.rule, "algorithm": job.algorithm, "lr": job.lr,
                **{name: round(value, 5) for name, value in point.items()},
                "normalised": round(point["loss"] / best, 4),
            })  # fmt: skip
    return rows


def summary(runs: Mapping[HogbatchJob, Sequence[Points]]) -> list[dict[str, Any]]:
    """Return a row for each curve: its lowest and last loss, also beside mini-batch's."""
    rows = []
    for job, own in sorted(runs.items(), key=lambda item: (item[0].data, item[0].rule)):
        beside = runs[dataclasses.replace(job, algorithm="gpu")]
        ratios = [least(a) / least(b) for a, b in zip(own, beside, strict=True)]
        last = [points[-1]["loss"] for points in own]
        rows.append({
            "set": job.data, "rule": job.rule, "algorithm": job.algorithm, "lr": job.lr,
            **spread("lowest loss", [*map(least, own)], 4),
            **spread("beside mini-batch", ratios, 4), **spread("last loss", last, 4),
        })  # fmt: skip
    return rows


def grid(found: dict[HogbatchJob, History]) -> list[dict[str, Any]]:
    """Return the lowest loss of every run."""
    return [
        {
            "data": job.data, "rule": job.rule, "algorithm": job.algorithm, "lr": job.lr,
            "lowest_loss": round(lowest(history), 5),
        }
        for job, history in found.items()
    ]  # fmt: skip


def loss(figure: Figure) -> None:
    """Make figure 5 or 6; the first also writes the lowest loss of every run."""
    found, left_out = histories(figure.sets, figure.folder), figure.given["left_out"]
    if not left_out:
        write_csv(RESULTS / "hogbatch_learning_rates.csv", grid(found))
    runs = over_seeds(chosen(found), figure)
    rows = [row for row in curves_of(runs) if row["algorithm"] not in left_out]
    figure.write(rows, [] if left_out else table_lines(summary(runs)))
    axes = [(figure.given["x"], "normalised")]
    draw(
        figure.name, rows, axes, line="algorithm", across="data", down="rule", is_log=True,
        marker=".",
    )  # fmt: skip


SHOWN_EPOCHS = 3.0


def use_of(job: HogbatchJob, history: History) -> list[dict[str, Any]]:
    """Return the use of both devices in every mega-batch of the first epochs of the GPU alone."""
    rows, begun_s = [], 0.0
    for row, ended_s in zip(history, elapsed_s(history), strict=True):
        workers, took_s = row["workers"], ended_s - begun_s
        found = {"algorithm": job.algorithm, "begin": round(begun_s, 4), "end": round(ended_s, 4)}
        row_s = SETS[job.data].cost.per_row_s
        arithmetic_s = workers["gpu"]["rows"] * row_s if "gpu" in workers else 0.0
        found["gpu"] = round(min(1.0, arithmetic_s / took_s), 4)
        found["cpu"] = round(workers["cpu"]["busy_s"] / took_s if "cpu" in workers else 0.0, 4)
        for name in ("gpu", "cpu"):
            worker = workers.get(name, {"batch_rows": 0, "updates": 0})
            found |= {f"{name}_{key}": worker[key] for key in ("batch_rows", "updates")}
        if begun_s < SHOWN_EPOCHS:
            rows.append(found)
        begun_s = ended_s
    return rows


def use(figure: Figure) -> None:
    """Make figure 7."""
    found = histories(figure.sets, figure.folder)
    data = figure.sets[0]
    jobs = [job for job in chosen(found) if (job.data, job.rule) == (data, "proportional")]
    rows = {job: use_of(job, found[job]) for job in jobs}
    figure.write([row for mine in rows.values() for row in mine])
    shown = [
        {**row, "device": device, "time": row[edge], "share of the time": row[device]}
        for mine in rows.values() for row in mine for device in ("cpu", "gpu")
        for edge in ("begin", "end")
    ]  # fmt: skip
    draw(figure.name, shown, [("time", "share of the time")], line="algorithm", across="device")


def shares_of(job: HogbatchJob, history: History) -> dict[str, Any]:
    """Return the updates and rows of both over the whole run."""
    sums = {
        f"{name}_{key}": sum(row["workers"][name][key] for row in history)
        for name in ("cpu", "gpu") for key in ("updates", "rows")
    }  # fmt: skip
    share = sums["cpu_updates"] / (sums["cpu_updates"] + sums["gpu_updates"])
    return {"data": job.data, "algorithm": job.algorithm, **sums, "cpu_share": round(share, 4)}


def shares(figure: Figure) -> None:
    """Make figure 8."""
    found = histories(figure.sets, figure.folder)
    rows = [
        shares_of(job, found[job]) for data in figure.sets for job in chosen(found)
        if (job.data, job.rule) == (data, "proportional")
        and job.algorithm in ("cpu-gpu", "adaptive")
    ]  # fmt: skip
    figure.write(rows)
    draw(figure.name, rows, [("data", "cpu_share")], line="algorithm", marker="o")


KINDS = {"loss": loss, "use": use, "shares": shares}
