"""Figure 6 of Adasum: accuracy under an aggressive schedule, Sum against Adasum, by workers.

    python benchmarks/papers/adasum_fig06.py --data FOLDER

First one worker: of 2, 4 and 8 epochs the fewest with which the best learning rate comes within
2 % of the best accuracy of all, on held-out rows. Then 4, 8, 16 and 32 workers with that rate
("untuned"), and with the best of a grid around it on held-out rows ("tuned"), the same grid for
both rules. What is drawn is P@1 on the test rows after the last epoch, mean and range of two
seeds.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from adasum_runs import SEEDS, scheduled_job
from output import arguments, pyplot, save, write_csv
from simulations import History, run_all
from study import RESULTS, Job

EPOCHS = (2.0, 4.0, 8.0)
PEAKS = (0.2, 0.4, 0.8, 1.6, 3.2)
NEAR = 0.98
COUNTS = (4, 8, 16, 32)
RULES = ("adasum", "sum")
FACTORS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)
STYLES = {
    ("adasum", "untuned"): ("tab:red", ""), ("adasum", "tuned"): ("tab:red", "//"),
    ("sum", "untuned"): ("tab:blue", ""), ("sum", "tuned"): ("tab:blue", "//"),
}  # fmt: skip


def last_precision(history: History) -> float:
    """Return P@1 of the last evaluation; 0 for a run whose weights did not stay finite."""
    measured = [row["metrics"]["P@1"] for row in history if row["metrics"]]
    return measured[-1] if measured else 0.0


def sequential_schedule(folder: Path) -> tuple[float, float, list[dict[str, Any]]]:
    """Return epochs and peak rate of one worker, and all that was tried."""
    jobs = {
        (epochs, peak): scheduled_job(1, "adasum", peak, epochs, validates=True)
        for epochs, peak in itertools.product(EPOCHS, PEAKS)
    }
    histories = run_all(list(jobs.values()), folder)
    scores = {place: last_precision(histories[job]) for place, job in jobs.items()}
    enough = NEAR * max(scores.values())
    epochs = min(epochs for (epochs, _), score in scores.items() if score >= enough)
    peak = max(PEAKS, key=lambda peak: scores[epochs, peak])
    tried = [
        {"workers": 1, "rule": "", "epochs": e, "lr": p, "P@1": round(score, 5)}
        for (e, p), score in scores.items()
    ]
    return epochs, peak, tried


def tuned_rates(
    epochs: float, peak: float, folder: Path
) -> tuple[dict[tuple[int, str], float], list[dict[str, Any]]]:
    """Return the best rate for every number of workers and rule, and all that was tried."""
    jobs = {
        (count, rule, factor): scheduled_job(count, rule, peak * factor, epochs, validates=True)
        for count, rule, factor in itertools.product(COUNTS, RULES, FACTORS)
    }
    histories = run_all(list(jobs.values()), folder)
    scores = {place: last_precision(histories[job]) for place, job in jobs.items()}
    found = {
        (count, rule): peak * max(FACTORS, key=lambda f: scores[count, rule, f])
        for count, rule in itertools.product(COUNTS, RULES)
    }
    tried = [
        {"workers": n, "rule": rule, "epochs": epochs, "lr": peak * f, "P@1": round(score, 5)}
        for (n, rule, f), score in scores.items()
    ]
    return found, tried


def final_rows(
    epochs: float, rates: dict[tuple[int, str, str], float], folder: Path
) -> list[dict[str, Any]]:
    """Return accuracy on the test rows: mean, least and most of the seeds."""
    jobs: dict[tuple[int, str, str], list[Job]] = {
        (n, rule, kind): [scheduled_job(n, rule, lr, epochs, seed=seed) for seed in SEEDS]
        for (n, rule, kind), lr in rates.items()
    }
    histories = run_all(list(itertools.chain(*jobs.values())), folder)
    table = []
    for (count, rule, kind), seeds in jobs.items():
        found = [last_precision(histories[job]) for job in seeds]
        table.append(
            {
                "workers": count, "rule": rule, "rate": kind, "lr": rates[count, rule, kind],
                "epochs": epochs, "P@1": round(sum(found) / len(found), 5),
                "least": round(min(found), 5), "most": round(max(found), 5),
            }
        )  # fmt: skip
    return table


def draw(table: list[dict[str, Any]], sequential: float) -> None:
    """Draw a group of bars for every number of workers."""
    figure, axis = pyplot().subplots(figsize=(6.4, 3.6))
    for number, ((rule, kind), (color, hatch)) in enumerate(STYLES.items()):
        rows = [row for row in table if row["rule"] == rule and row["rate"] == kind]
        places = [COUNTS.index(row["workers"]) + 0.2 * (number - 1.5) for row in rows]
        spread = [[row["P@1"] - row["least"] for row in rows],
                  [row["most"] - row["P@1"] for row in rows]]  # fmt: skip
        name = "Adasum" if rule == "adasum" else "Sum"
        axis.bar(
            places, [row["P@1"] for row in rows], 0.19, yerr=spread, color=color, hatch=hatch,
            alpha=0.5 if hatch else 0.9, label=f"{name}, {kind} learning rate", edgecolor="white",
            error_kw={"linewidth": 0.8},
        )  # fmt: skip
    axis.axhline(sequential, color="gray", linestyle=":", label="one worker")
    axis.set_xticks(range(len(COUNTS)), [str(count) for count in COUNTS])
    axis.set_xlabel("workers")
    axis.set_ylabel("P@1 at the end, test rows")
    save(figure, "adasum_fig06", axis, columns=2)


def main() -> None:
    """Tune, simulate and draw."""
    folder = arguments(__doc__).data
    epochs, peak, tried = sequential_schedule(folder)
    tuned, more = tuned_rates(epochs, peak, folder)
    write_csv(RESULTS / "adasum_fig06_learning_rates.csv", [*tried, *more])
    rates = {(1, "adasum", "untuned"): peak}
    for count, rule in itertools.product(COUNTS, RULES):
        rates[count, rule, "untuned"] = peak
        rates[count, rule, "tuned"] = tuned[count, rule]
    table = final_rows(epochs, rates, folder)
    write_csv(RESULTS / "adasum_fig06.csv", table)
    draw([row for row in table if row["workers"] > 1], table[0]["P@1"])


if __name__ == "__main__":
    main()
