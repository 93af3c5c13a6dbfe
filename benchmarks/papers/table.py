"""The algorithms on the real sets at equal simulated time, on four unequal workers.

    python benchmarks/papers/table.py --data FOLDER

Learning rates are those of ``learning_rates.py``; one with a star was chosen on the set before,
since the algorithm was not tuned on this one. P@1 and P@5 are of the evaluation with the best P@1
within the time; the time is that to 95 % of the best P@1 of all algorithms on the set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from curves import NEAR_BEST, at_best, best, idle_share, time_to
from learning_rates import chosen_lr, chosen_on
from output import arguments, write_csv, write_measured
from simulations import History, run_all
from study import ALGORITHMS, DATA, RESULTS, Job

SETS = ("bibtex", "delicious", "stackex4-2k")


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


def main() -> None:
    """Simulate, and write the table; what it means stands in ``results/figures/table.md``."""
    options = arguments(__doc__, SETS)
    jobs = [
        Job(data=data, algorithm=name, lr=chosen_lr(chosen_on(data, name), name))
        for data in options.sets
        for name in options.algorithms or ALGORITHMS
    ]  # fmt: skip
    histories = run_all(jobs, options.data)
    table = make_table({job: histories[job] for job in jobs})
    write_csv(RESULTS / "table.csv", table)
    write_measured("table", markdown(table, options.sets).split("\n"))


if __name__ == "__main__":
    main()
