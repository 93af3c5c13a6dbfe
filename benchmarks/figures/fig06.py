"""Figure 6 of Adaptive SGD: accuracy over time, for one, two and four workers.

python benchmarks/figures/fig06.py --data FOLDER
"""

from output import arguments, save, write_csv
from overall import SETS, draw_by_workers, simulate_overall, table
from study import RESULTS


def main() -> None:
    """Simulate and draw."""
    options = arguments(__doc__, SETS)
    histories = simulate_overall(options.sets, options.data)
    write_csv(RESULTS / "fig06.csv", table(histories))
    figure = draw_by_workers(histories, options.sets, "time_s", "simulated seconds")
    save(figure, "fig06", figure.axes[0])


if __name__ == "__main__":
    main()
