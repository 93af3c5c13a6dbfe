"""Tables 2 and 3 of Adasum: local steps on a slow network, and Adam and LAMB in large batches.

    python benchmarks/papers/adasum_tables.py --data FOLDER [--quick]

On delicious, 6 epochs at a constant rate, which for each column is the one of its grid with the
best P@1 on held-out rows within half of them. (A rate that falls to zero would decide itself when a
run reaches its target.) The target is 98 % of the best P@1 on the test rows that any column of the
table reaches.

Table 2: 16 workers that combine after 1 and after 16 local steps of momentum SGD, on a network with
a twentieth of the bandwidth of the study's, 1.25 GB/s for Amazon-670k's model (the paper's has 40
Gb/s Ethernet). Table 3: 32 workers with 64 rows each, 2,048 rows before every exchange, which is a
sixth of an epoch, with Adam and LAMB, whose changes are combined by the mean (the baseline) or by
Adasum. ``--quick`` trains for half an epoch at one rate, prints, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adasum_runs import DATA_NAME, NEVER_S
from curves import best, points
from output import arguments, table_lines, write_csv, write_measured
from simulations import History, run_all
from study import RESULTS, Job

NEAR = 0.98
EPOCHS = 6.0
SLOWDOWN = 20.0
Settings = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table: what it is called, its workers, its settings and its rates."""

    title: str
    workers: int
    settings: Settings
    rates: tuple[float, ...]
    slowdown: float = 1.0
    epochs: float = EPOCHS

    @property
    def step_rows(self) -> int:
        """Rows between two exchanges, of all workers."""
        given = dict(self.settings)
        return int(self.workers * given["strategy.batch_max"] * given["strategy.local_steps"])

    def job(self, lr: float, validates: bool) -> Job:
        """Return a run with a learning rate; half of one, to choose the rate by."""
        epochs = self.epochs / 2 if validates else self.epochs
        return Job(
            data=DATA_NAME, algorithm="adasum", lr=lr, speeds=(1.0,) * self.workers,
            validates=validates, train_s=NEVER_S, slowdown=self.slowdown,
            overrides=(*self.settings, ("training.epochs", epochs)),
        )  # fmt: skip


def local_steps(steps: int) -> Column:
    """Return a column of Table 2, with mega-batches of 16 steps of all 16 workers."""
    return Column(
        title=f"{steps} local step{'s' * (steps > 1)}", workers=16, slowdown=SLOWDOWN,
        settings=(
            ("strategy.batch_max", 16), ("strategy.megabatch_batches", 256),
            ("strategy.local_steps", steps), ("optimizer.name", "momentum"),
        ),
        rates=(0.1, 0.2, 0.4, 0.8),
    )  # fmt: skip


def large_batch(rule: str, optimizer: str, rates: tuple[float, ...]) -> Column:
    """Return a column of Table 3; a mega-batch is one exchange."""
    word = "Adasum" if rule == "adasum" else "mean"
    return Column(
        title=f"{word}, {optimizer.upper() if optimizer == 'lamb' else optimizer.title()}",
        workers=32,
        settings=(
            ("strategy.batch_max", 64), ("strategy.megabatch_batches", 32),
            ("strategy.local_steps", 1), ("optimizer.name", optimizer), ("combine.rule", rule),
        ),
        rates=rates,
    )  # fmt: skip


TABLE_2 = (local_steps(16), local_steps(1))
ADAM_RATES = (0.004, 0.008, 0.016, 0.032, 0.064)
LAMB_RATES = (0.02, 0.04, 0.08, 0.16, 0.32)
TABLE_3 = tuple(
    large_batch(rule, optimizer, rates)
    for optimizer, rates in (("adam", ADAM_RATES), ("lamb", LAMB_RATES))
    for rule in ("mean", "adasum")
)
TABLES = {"adasum_table3": TABLE_3, "adasum_table2": TABLE_2}


def chosen_rates(columns: Iterable[Column], folder: Path) -> dict[str, float]:
    """Return the rate of every column with the best P@1 on held-out rows."""
    jobs = {(c.title, lr): c.job(lr, True) for c in columns for lr in c.rates}
    histories = run_all(list(jobs.values()), folder)
    return {
        column.title: max(column.rates, key=lambda lr: best(histories[jobs[column.title, lr]]))
        for column in columns
    }


def row_of(column: Column, lr: float, history: History, target: float) -> dict[str, Any]:
    """Return a column of the table as a row: what reaching the target took."""
    found = points(history)
    reached = next((point for point in found if point["P@1"] >= target), None)
    return {
        "column": column.title,
        "workers": column.workers,
        "rows_between_exchanges": column.step_rows,
        "lr": lr,
        "best_P@1": round(best(history), 4),
        "target_P@1": round(target, 4),
        "seconds_an_epoch": round(found[-1]["time_s"] / found[-1]["epoch"], 3),
        "epochs_to_target": round(reached["epoch"], 2) if reached else None,
        "exchanges_to_target": -(-int(reached["rows"]) // column.step_rows) if reached else None,
        "seconds_to_target": round(reached["time_s"], 2) if reached else None,
    }


def make_table(columns: Sequence[Column], folder: Path) -> list[dict[str, Any]]:
    """Tune, simulate, and return a row for each column."""
    rates = chosen_rates(columns, folder)
    jobs = {column.title: column.job(rates[column.title], False) for column in columns}
    histories: Mapping[Job, History] = run_all(list(jobs.values()), folder)
    target = NEAR * max(best(histories[job]) for job in jobs.values())
    return [
        row_of(column, rates[column.title], histories[jobs[column.title]], target)
        for column in columns
    ]


def main() -> None:
    """Make the tables."""
    options = arguments(__doc__, quick=True)
    for name, columns in TABLES.items():
        if options.quick:
            columns = tuple(replace(c, rates=c.rates[1:2], epochs=0.5) for c in columns)
        table = make_table(columns, options.data)
        if options.quick:
            print("\n".join(table_lines(table)))
            continue
        write_csv(RESULTS / f"{name}.csv", table)
        write_measured(name, table_lines(table))


if __name__ == "__main__":
    main()
