"""Figure 8 of Adaptive SGD: its accuracy over time and mega-batches, by the number of workers.

    python benchmarks/papers/fig08.py --data FOLDER

The runs are those of Figure 6; SLIDE, the paper's baseline on a CPU, is one of them.
"""

from curves import points
from output import arguments, draw_tree, panels, save, table_lines, write_csv, write_measured
from overall import COUNTS, SETS, overall_jobs, reached, table
from simulations import run_all
from study import ALGORITHMS, DATA, RESULTS

SLIDE = ALGORITHMS["slide"].title
COLORS = {1: "tab:green", 2: "tab:blue", 4: "tab:red"}


def main() -> None:
    """Simulate and draw."""
    options = arguments(__doc__, SETS)
    histories = run_all(overall_jobs(options.sets, ("adaptive-sgd", "slide")), options.data)
    write_csv(RESULTS / "fig08.csv", table(histories))
    write_measured("fig08", [
        "P@1, and simulated seconds to the target:", "",
        *table_lines(reached(histories, "time_s")), "",
        "P@1, and mega-batches to the target:", "",
        *table_lines(reached(histories, "megabatch")),
    ])  # fmt: skip
    figure, axes = panels(2, len(options.sets), sharey="col")
    for job in sorted(histories, key=lambda job: COUNTS.index(job.workers)):
        found, is_slide = points(histories[job]), job.algorithm == "slide"
        column = options.sets.index(job.data)
        for axis, x in zip(axes[:, column], ("time_s", "megabatch"), strict=True):
            axis.plot(
                [point[x] for point in found], [point["P@1"] for point in found],
                color="black" if is_slide else COLORS[job.workers],
                linestyle=":" if is_slide else "-",
                label=SLIDE if is_slide else f"{job.workers} worker{'s' * (job.workers > 1)}",
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
