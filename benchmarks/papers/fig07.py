"""Figure 7 of Adaptive SGD: accuracy over mega-batches, for one, two and four workers.

    python benchmarks/papers/fig07.py --data FOLDER

The runs are those of Figure 6.
"""

from output import arguments, save, table_lines, write_csv, write_measured
from overall import SETS, draw_by_workers, reached, simulate_overall, table
from study import RESULTS


def main() -> None:
    """Simulate and draw."""
    options = arguments(__doc__, SETS)
    histories = simulate_overall(options.sets, options.data)
    write_csv(RESULTS / "fig07.csv", table(histories))
    write_measured("fig07", table_lines(reached(histories, "megabatch")))
    figure = draw_by_workers(histories, options.sets, "megabatch", "mega-batches")
    save(figure, "fig07", figure.axes[0])


if __name__ == "__main__":
    main()
