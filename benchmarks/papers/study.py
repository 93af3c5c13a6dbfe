"""The common study of the figures: data, model, workers, costs and algorithms.

The settings are those of section 5.1 of Ma, Rusu, Wu and Sim, "Adaptive Elastic Training for
Sparse Deep Learning on Heterogeneous Multi-GPU Servers", 2021: a perceptron with 128 hidden units
(ReLU, softmax, no dropout), batches of ``b_max`` rows, b_min = b_max / 8, beta = b_min / 2, a
mega-batch of 100 batches, pert_thr = delta = 0.1, gamma = 0.9. Four workers have the speeds 1,
0.92, 0.84 and 0.76: between the fastest and the slowest lie the 32 % of the paper's Figure 1.

What does not follow the paper: ``b_max`` and the number of rows are those of smaller sets; bibtex
has 76 batches an epoch, so its mega-batch is 50 batches; learning rates are chosen for each
algorithm and set, on an eighth of the training rows (see ``learning_rates.py``).

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

SLIDE runs on one worker that stands for the CPU of the paper's server, whose 16 cores are taken to
do 8 times the work of two. Two did 5,000 rows a second at 200,000 labels with SimHash and half a
percent of the labels for each row (benchmarks/results/slide.json); at Amazon-670k's 670,091 labels
that is 12,000 rows a second on 16, beside 9,600 on the V100 of the cost model, and so a speed of
1.25. Its rates are a grid of their own: it steps by Adam.
"""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daskxml.config import RunConfig, load_run_config
from daskxml.data.synthetic import SyntheticSpec, write_xml
from daskxml.local import CostModel, Network, Rows, v100_cost
from daskxml.models.network.spec import Layout, ModelSpec

ROOT = Path(__file__).parent.parent.parent
PIPELINES = ROOT / "pipelines"
CACHE = ROOT / "runs" / "figures"  # runs/ is ignored by git
RESULTS = ROOT / "benchmarks" / "results" / "figures"

SPEEDS = (1.0, 0.92, 0.84, 0.76)
SLIDE_SPEED = 1.25
AMAZON_670K = ModelSpec(features=135_909, labels=670_091, hidden=(128,))
AMAZON_BATCH_ROWS, AMAZON_ROW_NONZEROS = 1024, 76
VALIDATION = 0.125
LEARNING_RATES = (1.0, 3.0, 10.0)


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
    learning_rates
        The grid, the same for all algorithms. In an earlier version of this study 0.1 and 0.3 were
        tried on the two smaller sets, and no algorithm chose less than 1; 30 on stackex4-2k with
        five algorithms, and none of them learned anything. On nvd-product, the dearest, 1 is left
        out too.
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
    learning_rates: tuple[float, ...] = LEARNING_RATES
    tree: float | None = None
    synthetic: SyntheticSpec | None = None


# Amazon-670k has 135,909 features, 670,091 labels, 490,449 and 153,025 rows; a fortieth of each.
AMAZON_LIKE = SyntheticSpec(
    rows=12_261, test_rows=3_826, features=3_398, labels=16_752, features_per_row=76.0,
    labels_per_row=5.0, label_exponent=1.0, flatness=10.0, prototype_features=12, noise=0.6, seed=7,
)  # fmt: skip

DATA = {
    data.name: data
    for data in (
        DataSet(name="bibtex", title="bibtex", batch_max=64, megabatch_batches=50,
                train_s=120.0, tuning_s=60.0, tree=0.635),
        DataSet(name="delicious", title="delicious", batch_max=64,
                train_s=160.0, tuning_s=80.0, tree=0.669),
        DataSet(name="stackex4-2k", title="stackex4-2k", batch_max=128,
                train_s=120.0, tuning_s=60.0, tree=0.662),
        DataSet(name="nvd-product", title="nvd-product", batch_max=256,
                train_s=48.0, tuning_s=16.0, learning_rates=LEARNING_RATES[1:], tree=0.770),
        DataSet(name="amazon-like", title="generated, 1/40 of Amazon-670k", batch_max=128,
                train_s=40.0, tuning_s=20.0, synthetic=AMAZON_LIKE),
    )
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A run file, what it is called in the figures, and its colour there.

    ``learning_rates`` are a grid of its own in the place of the data set's.
    """

    run_file: str
    title: str
    color: str
    overrides: tuple[tuple[str, Any], ...] = ()
    learning_rates: tuple[float, ...] = ()


ALGORITHMS = {
    "adaptive-sgd": Algorithm(run_file="adaptive-sgd", title="Adaptive SGD", color="tab:red"),
    "adaptive-paper": Algorithm(
        run_file="adaptive-sgd-paper", title="Adaptive SGD, rules as printed", color="tab:orange"
    ),
    "adaptive-plain": Algorithm(
        run_file="adaptive-sgd", title="Adaptive SGD without momentum", color="salmon",
        overrides=(("strategy.momentum", 0.0),),
    ),
    "adaptive-outer": Algorithm(
        run_file="adaptive-outer", title="Adaptive SGD, outer Nesterov", color="tab:pink"
    ),
    "elastic": Algorithm(run_file="elastic", title="Elastic SGD", color="tab:blue"),
    "elastic-mean": Algorithm(
        run_file="elastic-mean", title="Elastic SGD without momentum", color="navy"
    ),
    "elastic-outer": Algorithm(
        run_file="elastic-outer", title="Elastic SGD, outer Nesterov", color="skyblue"
    ),
    "static": Algorithm(run_file="static", title="Static proportional", color="tab:olive"),
    "static-step": Algorithm(
        run_file="static", title="Static proportional, every step", color="khaki",
        overrides=(("strategy.merge", "step"),),
    ),
    "crossbow": Algorithm(run_file="crossbow", title="CROSSBOW", color="tab:green"),
    "mirrored": Algorithm(run_file="mirrored", title="Mirrored", color="black"),
    "central": Algorithm(run_file="central", title="Central storage", color="tab:gray"),
    "asynchronous": Algorithm(run_file="asynchronous", title="Asynchronous", color="tab:purple"),
    "ssp": Algorithm(run_file="ssp", title="Asynchronous, staleness 3", color="plum"),
    "adasum": Algorithm(run_file="adasum", title="Adasum, 4 local steps", color="tab:brown"),
    "adasum-gradients": Algorithm(
        run_file="adasum-gradients", title="Adasum of gradients", color="peru"
    ),
    "slide": Algorithm(
        run_file="slide", title="SLIDE, one CPU", color="tab:cyan",
        learning_rates=(0.001, 0.003, 0.01),
    ),
}  # fmt: skip


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
    overrides
        ``("section.key", value)`` that win over everything else.
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
    overrides: tuple[tuple[str, Any], ...] = ()

    @property
    def worker_speeds(self) -> tuple[float, ...]:
        """Of every worker."""
        if self.algorithm == "slide":
            return (SLIDE_SPEED,)
        return self.speeds or SPEEDS[: self.workers]

    @property
    def label(self) -> str:
        """A line for the progress display."""
        extra = " ".join(f"{key.partition('.')[2]}={value}" for key, value in self.overrides)
        held = " (validation)" if self.validates else ""
        workers = len(self.worker_speeds)
        return f"{self.data} {self.algorithm} lr={self.lr:g} x{workers}{held} {extra}".strip()


def resolve(job: Job, folder: Path) -> RunConfig:
    """Return the whole configuration of a run: its run file with the study's settings."""
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
        "run": {"name": job.algorithm},
        "data": {"train": [str(train)], "test": [str(test)], "residency": "replicate"},
        "model": {"hidden": [128]},
        "strategy": strategy,
        **{name: tables[name] for name in ("combine", "optimizer", "sampling") if name in tables},
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
    """Return what a batch costs (see this module's head)."""
    amazon = v100_cost(AMAZON_670K)
    batches = AMAZON_BATCH_ROWS / DATA[job.data].batch_max  # b_max rows cost as much as those
    row_nonzeros = rows.facts.nonzeros / rows.facts.rows
    return CostModel(
        fixed_s=amazon.fixed_s,
        per_row_s=amazon.per_row_s * batches,
        per_nonzero_s=amazon.per_nonzero_s * batches * AMAZON_ROW_NONZEROS / row_nonzeros,
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
