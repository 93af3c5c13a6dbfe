"""Figure 5 of Hogbatch: normalised training loss over time, for both rules of rates.

    python benchmarks/papers/hogbatch_fig05.py --data FOLDER

Simulates the whole grid, which the other three figures read as well, and writes the lowest loss of
every run to ``hogbatch_learning_rates.csv``.
"""

from typing import Any

from hogbatch_study import ALGORITHMS, RULES, SETS, HogbatchJob, curves_of, histories, lowest
from output import arguments, panels, save, scale_log, write_csv
from simulations import History
from study import RESULTS

TITLES = {"proportional": "rates in proportion to rows", "equal": "one rate for all"}


def grid(found: dict[HogbatchJob, History]) -> list[dict[str, Any]]:
    """Return the lowest loss of every run."""
    return [
        {
            "data": job.data, "rule": job.rule, "algorithm": job.algorithm, "lr": job.lr,
            "lowest_loss": round(lowest(history), 5),
        }
        for job, history in found.items()
    ]  # fmt: skip


def draw(rows: list[dict[str, Any]], sets: list[str], x: str, label: str, name: str) -> None:
    """Draw a panel for each set and rule."""
    figure, axes = panels(len(RULES), len(sets), sharey="col")
    for line, rule in zip(axes, RULES, strict=True):
        for axis, data in zip(line, sets, strict=True):
            for algorithm, style in ALGORITHMS.items():
                mine = [
                    row for row in rows
                    if (row["data"], row["rule"], row["algorithm"]) == (data, rule, algorithm)
                ]  # fmt: skip
                if mine:
                    axis.plot(
                        [row[x] for row in mine], [row["normalised"] for row in mine], marker=".",
                        markersize=4, color=style.color, label=style.title,
                    )  # fmt: skip
            axis.set_title(f"{SETS[data].title}\n{TITLES[rule]}: {mine[0]['lr']:g}", fontsize=9)
            scale_log(axis)
            axis.set_xlabel(label)
        line[0].set_ylabel("training loss / lowest")
    save(figure, name, axes[0][0])


def main() -> None:
    """Simulate and draw."""
    options = arguments(__doc__, SETS)
    found = histories(options.sets, options.data)
    write_csv(RESULTS / "hogbatch_learning_rates.csv", grid(found))
    rows = curves_of(found)
    write_csv(RESULTS / "hogbatch_fig05.csv", rows)
    draw(rows, options.sets, "time", "time, in epochs of the GPU alone", "hogbatch_fig05")


if __name__ == "__main__":
    main()
