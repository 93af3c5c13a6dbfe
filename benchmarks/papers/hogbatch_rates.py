"""Hogbatch's rates, by kind of device and lowered by staleness: what the paper names as options.

    python benchmarks/papers/hogbatch_rates.py --data FOLDER

CPU+GPU and Adaptive Hogbatch with either rule of rates, at the rates of Figure 5: as they are; with
the replica's rate divided by its staleness (section VI-B); and with other rates of the pool
(section VII-A: hyperparameters are those of the architecture). In proportion to rows the pool's
rate may be higher, since it has one row in 250; with one rate for all it may be lower, since it has
nearly all updates. Adaptive's GPU also runs without bounds but those of being used to a half at
least and growing no more at 0.95.
"""

from __future__ import annotations

from typing import Any

from hogbatch_study import SETS, HogbatchJob, chosen_lr, losses, lowest, simulate_job
from output import arguments, table_lines, write_csv, write_measured
from simulations import History, run_all
from study import RESULTS

NAMES = ("a9a", "w8a")
FACTORS = {"proportional": (10.0, 100.0), "equal": (0.1,)}  # of the pool's rate
TITLES = {"cpu-gpu": "CPU+GPU", "adaptive": "Adaptive"}


def variants(data: str, rule: str, algorithm: str) -> dict[str, HogbatchJob]:
    """Return the runs of an algorithm with a rule, by what is different in them."""
    lr = chosen_lr(data, rule)
    settings: dict[str, tuple[tuple[str, Any], ...]] = {
        "as it is": (),
        "divided by staleness": (("lower_stale", True),),
        **{f"pool's rate x {by:g}": (("pool_lr", by * lr),) for by in FACTORS[rule]},
    }
    if algorithm == "adaptive":
        settings["bound by utilization"] = (
            ("batch_min", 1), ("utilization", 0.5), ("utilization_max", 0.95),
        )  # fmt: skip
    return {
        name: HogbatchJob(data=data, algorithm=algorithm, rule=rule, lr=lr, settings=changed)
        for name, changed in settings.items()
    }


def row_of(name: str, job: HogbatchJob, history: History) -> dict[str, Any]:
    """Return the losses of a run, and how stale its replica was."""
    cpu, gpu = (sum(row["workers"][who]["updates"] for row in history) for who in ("cpu", "gpu"))
    return {
        "set": SETS[job.data].title,
        "rates": "in proportion to rows" if job.rule == "proportional" else "one for all",
        "lr": job.lr,
        "algorithm": TITLES[job.algorithm],
        "variant": name,
        "lowest loss": round(lowest(history), 4),
        "last loss": round(losses(history)[-1]["loss"], 4),
        "updates of the pool for each of the GPU": round(cpu / gpu, 2),
    }


def main() -> None:
    """Simulate, and write the table."""
    options = arguments(__doc__, NAMES)
    jobs = [
        (name, job)
        for data in options.sets for rule in FACTORS for algorithm in TITLES
        for name, job in variants(data, rule, algorithm).items()
    ]  # fmt: skip
    found = run_all([job for _, job in jobs], options.data, simulate_job)
    rows = [row_of(name, job, found[job]) for name, job in jobs]
    write_csv(RESULTS / "hogbatch_rates.csv", rows)
    write_measured("hogbatch_rates", table_lines(rows))


if __name__ == "__main__":
    main()
