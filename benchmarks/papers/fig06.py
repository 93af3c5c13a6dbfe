"""Figure 6 of Adaptive SGD: accuracy over time, for one, two and four workers.

python benchmarks/papers/fig06.py --data FOLDER
"""

from output import arguments, save, table_lines, write_csv, write_measured
from overall import SETS, draw_by_workers, reached, simulate_overall, table
from study import RESULTS


def main() -> None:
    """Simulate and draw."""
    options = arguments(__doc__, SETS)
    histories = simulate_overall(options.sets, options.data)
    write_csv(RESULTS / "fig06.csv", table(histories))
    write_measured("fig06", table_lines(reached(histories, "time_s")))
    figure = draw_by_workers(histories, options.sets, "time_s", "simulated seconds")
    save(figure, "fig06", figure.axes[0])


if __name__ == "__main__":
    main()
