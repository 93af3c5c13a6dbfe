"""Figure 6 of Hogbatch: normalised training loss over epochs, for both rules of rates.

python benchmarks/papers/hogbatch_fig06.py --data FOLDER
"""

from hogbatch_fig05 import draw
from hogbatch_study import SETS, curves_of, histories
from output import arguments, write_csv
from study import RESULTS


def main() -> None:
    """Simulate and draw."""
    options = arguments(__doc__, SETS)
    rows = [
        row for row in curves_of(histories(options.sets, options.data)) if row["algorithm"] != "cpu"
    ]
    write_csv(RESULTS / "hogbatch_fig06.csv", rows)
    draw(rows, options.sets, "epoch", "epochs", "hogbatch_fig06")


if __name__ == "__main__":
    main()
