"""Figure 1 of Adasum: how orthogonal the gradients of 32 workers are, layer by layer.

    python benchmarks/papers/adasum_fig01.py --data FOLDER

Orthogonality is ||Adasum(g_1..g_n)||^2 / sum ||g_i||^2 (section 3.6): 1 for orthogonal gradients,
1/32 for equal ones. It is what daskxml notes in the history of every run with that rule.
"""

from __future__ import annotations

from typing import Any

from adasum_fig06 import sequential_schedule
from adasum_runs import DATA_NAME, gradient_job
from output import arguments, panels, save, write_csv
from simulations import History, run_all
from study import DATA, RESULTS, Job

WORKERS = 32
SETS = (DATA_NAME, "bibtex")
EPOCHS = {DATA_NAME: 8.0, "bibtex": 24.0}
NOTE = "orthogonality/"
COLORS = ("tab:blue", "tab:cyan", "tab:green", "tab:olive")


def rows_of(job: Job, history: History) -> list[dict[str, Any]]:
    """Return the orthogonality of every layer at every step, and their mean."""
    table = []
    for row in history:
        layers = {
            name.removeprefix(NOTE): round(value, 5)
            for name, value in row["notes"].items() if name.startswith(NOTE)
        }  # fmt: skip
        mean = round(sum(layers.values()) / max(1, len(layers)), 5)
        table.append(
            {
                "data": job.data, "step": row["megabatch"], "epoch": round(row["epoch"], 4),
                "loss": round(row["loss"], 5), **layers, "mean": mean,
            }
        )  # fmt: skip
    return table


def draw(axis: Any, data: str, table: list[dict[str, Any]]) -> None:
    """Draw a line for each layer, and their mean in bold."""
    epochs = [row["epoch"] for row in table]
    layers = [name for name in table[0] if name not in ("data", "step", "epoch", "loss", "mean")]
    for name, color in zip(layers, COLORS, strict=True):
        axis.plot(epochs, [row[name] for row in table], color=color, linewidth=0.9, label=name)
    axis.plot(epochs, [row["mean"] for row in table], color="tab:red", linewidth=2.5, label="mean")
    axis.axhline(1.0 / WORKERS, color="gray", linestyle=":", label=f"equal gradients, 1/{WORKERS}")
    axis.set_title(f"{DATA[data].title}, {WORKERS} workers", fontsize=9)
    axis.set_xlabel("epochs")
    axis.set_ylim(0.0, 1.05)


def main() -> None:
    """Simulate and draw."""
    folder = arguments(__doc__).data
    _, peak, _ = sequential_schedule(folder)
    jobs = [gradient_job(data, WORKERS, peak, EPOCHS[data]) for data in SETS]
    histories = run_all(jobs, folder)
    tables = [rows_of(job, histories[job]) for job in jobs]
    write_csv(RESULTS / "adasum_fig01.csv", [row for table in tables for row in table])
    figure, axes = panels(1, len(SETS), sharey="row")
    for axis, data, table in zip(axes[0], SETS, tables, strict=True):
        draw(axis, data, table)
    axes[0][0].set_ylabel("orthogonality")
    save(figure, "adasum_fig01", figure.axes[0], columns=3)


if __name__ == "__main__":
    main()
