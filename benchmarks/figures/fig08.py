"""Figure 8 of Adaptive SGD: its accuracy over time and mega-batches, by the number of workers.

    python benchmarks/figures/fig08.py --data FOLDER

The runs are those of Figure 6. SLIDE, the paper's baseline on CPUs, is not part of daskxml yet.
"""

from curves import points
from output import arguments, draw_tree, panels, save, write_csv
from overall import COUNTS, SETS, overall_jobs, table
from simulations import run_all
from study import DATA, RESULTS

COLORS = {1: "tab:green", 2: "tab:blue", 4: "tab:red"}


def main() -> None:
    """Simulate and draw."""
    options = arguments(__doc__, SETS)
    histories = run_all(overall_jobs(options.sets, ("adaptive-sgd",)), options.data)
    write_csv(RESULTS / "fig08.csv", table(histories))
    figure, axes = panels(2, len(options.sets), sharey="col")
    for job in sorted(histories, key=lambda job: COUNTS.index(job.workers)):
        found = points(histories[job])
        column = options.sets.index(job.data)
        for axis, x in zip(axes[:, column], ("time_s", "megabatch"), strict=True):
            axis.plot(
                [point[x] for point in found], [point["P@1"] for point in found],
                color=COLORS[job.workers],
                label=f"{job.workers} worker{'s' * (job.workers > 1)}",
            )  # fmt: skip
    for column, data in zip(axes.T, options.sets, strict=True):
        column[0].set_title(DATA[data].title, fontsize=9)
        for axis, label in zip(column, ("simulated seconds", "mega-batches"), strict=True):
            axis.set_xlabel(label)
            axis.set_ylim(bottom=0.0)
            draw_tree(axis, data)
    for axis in axes[:, 0]:
        axis.set_ylabel("P@1, test rows")
    save(figure, "fig08", figure.axes[0])


if __name__ == "__main__":
    main()
