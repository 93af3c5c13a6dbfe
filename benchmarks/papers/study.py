"""The runs of Adaptive SGD's and Adasum's figures: data, model, workers, costs; and their cache.

The settings are those of section 5.1 of Ma, Rusu, Wu and Sim, "Adaptive Elastic Training for
Sparse Deep Learning on Heterogeneous Multi-GPU Servers", 2021: a perceptron with 128 hidden units
(ReLU, softmax, no dropout), batches of ``b_max`` rows, b_min = b_max / 8, beta = b_min / 2, a
mega-batch of 100 batches, pert_thr = delta = 0.1, gamma = 0.9. Four workers have the speeds 1,
0.92, 0.84 and 0.76: between the fastest and the slowest are the 32 % of the paper's Figure 1.

What does not follow the paper: ``b_max`` and the number of rows are those of smaller sets; bibtex
has 76 batches an epoch, so its mega-batch is 50 batches; learning rates are chosen for each
algorithm and set, on an eighth of the training rows (``learning_rates.toml``).

Time is simulated, by the one cost model that daskxml has (`daskxml.local.cost.v100_cost`, with
the sources of its constants), and scaled so that the ratios of the paper's testbed hold on every
set. On Amazon-670k a batch of 1,024 rows takes 106 ms on a V100: 75 for the three products of
1,024 x 128 x 670,091, 31 for passes over the scores, less than one for rows of the first layer and
for launching kernels. An all-reduce of its model of 415 MB moves 2 x 3/4 x 415 MB past every one
of 4 GPUs: 25 ms at the 25 GB/s of an NVLink. So for every set

    a batch of b_max rows    as long as one of 1,024 rows on Amazon-670k, and in the same parts;
    a smaller batch          the fixed part, and its share of the others;
    the network              25 GB/s x (bytes of the set's model / 415 MB).

Each batch's time has a seeded log-normal jitter of 5 %. Two or one workers are the first of the
four.

SLIDE runs on one worker that stands for the CPU of the paper's server, with 16 cores. Its speed is
measured at the shape of Amazon-670k with the share of the labels that it trains each row with on a
set (200 labels: all of bibtex, a fifth of delicious, a tenth of stackex4-2k), beside the V100's by
the cost model: `adaptive.slide_speed` writes ``slide_speed.csv``. Its rates are a grid of their
own, since it steps by Adam.

Asynchronous Local-SGD (Liu et al., "Asynchronous Local-SGD Training for Language Modeling", 2024,
arXiv 2401.09135) is `AsynchronousLocal`.

Sets and algorithms are in ``study.toml``. Finished simulations are kept on disk, and those that are
missing run, one on every core of this process. A file for each run holds its history, under a key
of everything that decides it: the resolved configuration, the speeds, the costs, the network, the
data's name, a digest of the sources. So figures share runs, and an interrupted study continues.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import hashlib
import json
import multiprocessing
import os
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from daskxml.api.in_process import simulate
from daskxml.config import RunConfig, load_run_config
from daskxml.core.errors import TrainingError
from daskxml.data.synthetic import SyntheticSpec, write_xml
from daskxml.local import CostModel, Freeze, Network, Rows, read_rows, v100_cost
from daskxml.models.network.spec import Layout, ModelSpec
from daskxml.strategies import STRATEGIES
from daskxml.strategies.elastic import ElasticSgd
from daskxml.strategies.protocol import Command, Event, Merged
from daskxml.strategies.quorum import STALENESS
from daskxml.strategies.state import MegabatchState

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from machine import sources_digest

PIPELINES = ROOT / "pipelines"
CACHE = ROOT / "runs" / "figures"  # runs/ is ignored by git

SPEEDS = (1.0, 0.92, 0.84, 0.76)
SLIDE_SPEEDS = ROOT / "benchmarks" / "results" / "figures" / "slide_speed.csv"
AMAZON_670K = ModelSpec(features=135_909, labels=670_091, hidden=(128,))
AMAZON_BATCH_ROWS, AMAZON_ROW_NONZEROS = 1024, 76
VALIDATION = 0.125
# What a simulated run is computed by; the key of a finished one has its digest.
DECIDING = tuple(
    f"daskxml/{room}" for room in (
        "config", "core", "data", "kernels/cpu", "collectives", "strategies", "metrics", "optim",
        "models/network", "session", "worker", "local",
    )
)  # fmt: skip
PROCESSES = len(os.sched_getaffinity(0))
History = list[dict[str, Any]]


class AsynchronousLocal(ElasticSgd):
    """Local steps in proportion to speed; a worker that has done its own merges without the others.

    Its change is added to what the global model has become (a rebase), times the outer optimizer's
    rate, however stale it is. A mega-batch is one worker's steps, and those of all workers at the
    same time are as many as in other strategies' mega-batches. Needs a quorum below 1 / workers.
    Deviations: the outer optimizer has no momentum, so the paper's is not delayed.
    """

    def eligible(self, state: MegabatchState) -> set[str]:
        """Return the workers that have nothing to merge."""
        return {name for name, worker in state.members.items() if not worker.rows}

    def schedule(self, state: MegabatchState) -> tuple[MegabatchState, tuple[Command, ...]]:
        """Wait for nobody, and give nobody up."""
        found = state.members.items()
        members = {n: replace(w, age=min(w.age, STALENESS)) for n, w in found}
        state = replace(state, members=members, waits_for="others", is_grace_over=True)
        return super().schedule(state)

    def step(self, state: MegabatchState, event: Event) -> tuple[MegabatchState, Any]:
        """Decide the next steps of a worker that has merged, where others' speeds are known."""
        if isinstance(event, Merged):
            speeds = [w.rows_per_s for w in state.members.values() if w.rows_per_s]
            own = sum(state.members[name].rows_per_s for name in state.merging)
            share = own / fmean(speeds) / len(state.members)
            state = replace(state, batches=max(1, round(share * self.config.first_batches)))
        return super().step(state, event)


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A set, and how long it is trained on.

    Attributes
    ----------
    batch_max, megabatch_batches
        b_max, and a mega-batch in batches of it.
    train_s
        Simulated seconds of every run that is shown.
    tuning_s
        Simulated seconds of every run that a learning rate is chosen by.
    tree
        P@1 of omikuji's Parabel on the test rows, a linear tree; None where it was not measured.
    synthetic
        Parameters of the generator, for a set that is generated.
    """

    name: str
    title: str
    batch_max: int
    megabatch_batches: int = 100
    train_s: float
    tuning_s: float
    tree: float | None = None
    synthetic: SyntheticSpec | None = None


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A run file, and what it is called in the tables.

    The grid of ``learning_rates`` is extended until the best is none of its ends.
    """

    run_file: str
    title: str
    overrides: tuple[tuple[str, Any], ...] = ()
    learning_rates: tuple[float, ...] = (1.0, 3.0, 10.0)


def _load() -> tuple[dict[str, DataSet], dict[str, Algorithm]]:
    tables = tomllib.loads((HERE / "study.toml").read_text())
    sets, algorithms = {}, {}
    for name, found in tables["sets"].items():
        if "synthetic" in found:
            found["synthetic"] = SyntheticSpec(**found["synthetic"])
        sets[name] = DataSet(name=name, **found)
    for name, found in tables["algorithms"].items():
        overrides = tuple(found.pop("set", {}).items())
        if "learning_rates" in found:
            found["learning_rates"] = tuple(found["learning_rates"])
        algorithms[name] = Algorithm(overrides=overrides, **{"run_file": name, **found})
    return sets, algorithms


DATA, ALGORITHMS = _load()


@dataclass(frozen=True, kw_only=True)
class Job:
    """One simulated run.

    Attributes
    ----------
    data, algorithm
        Keys of `DATA` and `ALGORITHMS`.
    lr
        At b_max rows.
    workers
        The first so many of the four.
    speeds
        Other workers than those.
    validates
        Hold out an eighth of the training rows, and score them instead of the test rows.
    train_s
        Simulated seconds; 0 for those of the data set.
    every
        Mega-batches between two evaluations.
    slowdown
        By which the network's bandwidth is divided.
    seed
        Of the run.
    overrides
        ``("section.key", value)`` that win over everything else.
    freezes
        When which workers do nothing.
    """

    data: str
    algorithm: str
    lr: float
    workers: int = 4
    speeds: tuple[float, ...] = ()
    validates: bool = False
    train_s: float = 0.0
    every: int = 1
    slowdown: float = 1.0
    seed: int = 0
    overrides: tuple[tuple[str, Any], ...] = ()
    freezes: tuple[Freeze, ...] = ()

    @property
    def worker_speeds(self) -> tuple[float, ...]:
        """Of every worker."""
        if self.algorithm == "slide":
            return (slide_speed(self.data),)
        return self.speeds or SPEEDS[: self.workers]

    @property
    def label(self) -> str:
        """A line for the progress display."""
        extra = " ".join(f"{key.partition('.')[2]}={value}" for key, value in self.overrides)
        held = " (validation)" if self.validates else ""
        workers = len(self.worker_speeds)
        return f"{self.data} {self.algorithm} lr={self.lr:g} x{workers}{held} {extra}".strip()


@functools.cache
def slide_speed(data: str) -> float:
    """Return the speed of SLIDE's CPU on a set, as it was measured."""
    return {row["data"]: row["speed"] for row in read_csv(SLIDE_SPEEDS)}[data]


def read_csv(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a CSV file, its numbers as numbers; none if it is not there."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def resolve(job: Job, folder: Path) -> RunConfig:
    """Return the whole configuration of a run: its run file with the study's settings."""
    STRATEGIES["asynchronous-local"] = AsynchronousLocal  # for this process, which simulates it
    data, algorithm = DATA[job.data], ALGORITHMS[job.algorithm]
    tables = tomllib.loads((PIPELINES / f"{algorithm.run_file}.toml").read_text())
    strategy = tables["strategy"]
    for name in ("batch_min", "batch_initial", "beta"):  # they follow from batch_max
        strategy.pop(name, None)
    strategy |= {
        "lr": job.lr, "batch_max": data.batch_max, "megabatch_batches": data.megabatch_batches,
    }  # fmt: skip
    train, test = data_files(data, folder)
    source = {
        "run": {"name": job.algorithm, "seed": job.seed},
        "data": {"train": [str(train)], "test": [str(test)], "residency": "replicate"},
        "model": {"hidden": [128]},
        "strategy": strategy,
        "combine": {**tables.get("combine", {}), "quorum": 1.0},  # as in the papers
        **{name: tables[name] for name in ("optimizer", "sampling") if name in tables},
        "training": {"minutes": (job.train_s or data.train_s) / 60.0},
        "evaluation": {"every": job.every, "k": [1, 3, 5]},
        "cluster": {"threads": 1},
    }
    if job.validates:
        source["data"]["validation"] = VALIDATION
    return load_run_config(source, dict((*algorithm.overrides, *job.overrides)))


def data_files(data: DataSet, folder: Path) -> tuple[Path, Path]:
    """Return the two files of a set; a generated one is written at the first use."""
    if data.synthetic is None:
        train, test = (folder / f"{data.name}.{part}.txt.gz" for part in ("train", "test"))
        if not train.exists():
            raise SystemExit(f"{train}: not there; --data must name the folder of the sets")
        return train, test
    train, test = (CACHE / "data" / f"{data.name}.{part}.txt" for part in ("train", "test"))
    if not train.exists() or not test.exists():
        write_xml(train, data.synthetic, "train")
        write_xml(test, data.synthetic, "test")
    return train, test


def cost_of(job: Job, rows: Rows) -> CostModel:
    """Return what a batch costs (see this module's head).

    Time of evaluations is not counted, so where workers would train meanwhile they take none.
    """
    amazon = v100_cost(AMAZON_670K)
    batches = AMAZON_BATCH_ROWS / DATA[job.data].batch_max  # b_max rows cost as much as those
    row_nonzeros = rows.facts.nonzeros / rows.facts.rows
    return CostModel(
        fixed_s=amazon.fixed_s,
        per_row_s=amazon.per_row_s * batches,
        per_nonzero_s=amazon.per_nonzero_s * batches * AMAZON_ROW_NONZEROS / row_nonzeros,
        **({"evaluation_share": 0.0} if job.algorithm == "asynchronous-local" else {}),
    )


def network_of(config: RunConfig, rows: Rows, slowdown: float = 1.0) -> Network:
    """Return a network as fast for this model as the paper's is for Amazon-670k's, or slower."""
    spec = config.model_spec(rows.facts.features, rows.facts.labels)
    share = Layout(spec).count / Layout(AMAZON_670K).count
    return Network(bandwidth_bytes_s=Network().bandwidth_bytes_s * share / slowdown)


def with_changes(job: Job, **values: Any) -> Job:
    """Return a job with other values, ``overrides`` being added to those that it has."""
    added = tuple(values.pop("overrides", ()))
    return dataclasses.replace(job, overrides=(*job.overrides, *added), **values)


@functools.lru_cache(maxsize=2)
def _rows(data: str, folder: Path, validates: bool) -> Rows:
    """Read a set; the same rows in the same order for any number of workers."""
    job = Job(data=data, algorithm="elastic", lr=1.0, validates=validates)
    return read_rows(resolve(job, folder), len(job.worker_speeds))


def run_file(data: str, config: RunConfig, decides: dict[str, Any]) -> Path:
    """Return where a run on the set of that name is kept, by all that decides it."""
    tables = config.as_dict()
    tables["data"] |= {"train": data, "test": "", "card": ""}  # not where it lies
    tables["run"]["name"] = ""
    text = json.dumps([tables, decides, sources_digest(DECIDING)], sort_keys=True)
    return CACHE / "runs" / data / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def find(job: Job, folder: Path) -> tuple[Path, RunConfig, dict[str, Any]]:
    """Return the file of a run, its configuration, and what else `simulate` needs."""
    config, rows = resolve(job, folder), _rows(job.data, folder, job.validates)
    cost, network = cost_of(job, rows), network_of(config, rows, job.slowdown)
    decides = {
        "speeds": job.worker_speeds,
        "cost": dataclasses.asdict(cost),
        "network": dataclasses.asdict(network),
        "synthetic": dataclasses.asdict(spec) if (spec := DATA[job.data].synthetic) else None,
        **({"freezes": [dataclasses.astuple(each) for each in job.freezes]} if job.freezes else {}),
    }
    path = run_file(job.data, config, decides)
    given = {"speeds": job.worker_speeds, "cost": cost, "network": network}
    return path, config, given | {"changes": job.freezes}


def _simulate(job: Job, folder: Path) -> dict[str, Any]:
    """Return a run's history, from the cache if it is there."""
    path, config, given = find(job, folder)
    return keep(job, path, config, train=_rows(job.data, folder, job.validates), **given)


def keep(job: Any, path: Path, config: RunConfig, **given: Any) -> dict[str, Any]:
    """Simulate a run, unless its file is there, and write its history.

    Parameters
    ----------
    job
        Any dataclass with a ``label``.
    path, config
        Of the run.
    given
        The other arguments of `simulate`.
    """
    if path.exists():
        return {"job": job, "path": path, "took_s": 0.0}
    begun_s = time.perf_counter()
    found: dict[str, Any] = {"label": job.label, "job": dataclasses.asdict(job)}
    history: History = []
    try:
        simulate(config, on_megabatch=lambda row: history.append(slim(row)), **given)
        found["failed"] = ""
    except TrainingError as error:
        found["failed"] = str(error)
    found["history"], found["took_s"] = history, time.perf_counter() - begun_s
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(found))
    partial.replace(path)
    return {"job": job, "path": path, "took_s": found["took_s"]}


def slim(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the history without the places of its rows."""
    workers = {
        name: {key: value for key, value in worker.items() if key != "leases"}
        for name, worker in row["workers"].items()
    }
    return {**row, "workers": workers}


def run_all(
    jobs: Sequence[Any],
    folder: Path,
    simulate_one: Callable[[Any, Path], dict[str, Any]] = _simulate,
) -> dict[Any, History]:
    """Simulate what is missing; return the histories of all.

    A run whose weights did not stay finite has the history up to there.

    Parameters
    ----------
    simulate_one
        Returns what `keep` does; jobs of other studies have one of their own.
    """
    jobs = list(dict.fromkeys(jobs))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"  # inherited by the processes
    paths: dict[Any, Path] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        futures = [pool.submit(simulate_one, job, folder) for job in jobs]
        for number, future in enumerate(as_completed(futures), 1):
            done = future.result()
            paths[done["job"]] = done["path"]
            took = f"{done['took_s']:.0f} s" if done["took_s"] else "known"
            print(f"{number}/{len(jobs)}  {done['job'].label}  {took}", flush=True)
    return {job: json.loads(paths[job].read_text())["history"] for job in jobs}
