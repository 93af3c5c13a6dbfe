"""Figure 11 of Adaptive SGD: the threshold and the size of the perturbation.

    python benchmarks/papers/fig11.py --data FOLDER

The norm per parameter is read as the root mean square (``norm = "rms"``): literally, ||w|| / |w|,
it is below every threshold of the paper, and the threshold changes nothing. The last row belongs to
no figure of the paper: weights by updates times batch size, u b, of which section 3.3 says that
they brought no discernible improvement over weights by updates alone. They are compared where batch
sizes lie apart, with Algorithm 1 as printed.
"""

from output import arguments
from study import Job
from variants import SETS, Panel, base_job, draw_variants, varied

THRESHOLDS = (0.05, 0.1, 0.2)
FACTORS = (0.05, 0.1, 0.2)


def base(data: str) -> Job:
    """Return the run that both panels vary."""
    return varied(base_job(data), "norm", "rms")


def by_threshold(data: str) -> dict[str, Job]:
    """Return the runs with different pert_thr."""
    return {
        f"pert_thr = {value:g}": varied(base(data), "perturbation_threshold", value)
        for value in THRESHOLDS
    }


def by_factor(data: str) -> dict[str, Job]:
    """Return the runs with different delta; the threshold lets every merge be perturbed."""
    loose = varied(base(data), "perturbation_threshold", THRESHOLDS[-1])
    return {f"delta = {value:g}": varied(loose, "perturbation", value) for value in FACTORS}


def by_weights(data: str) -> dict[str, Job]:
    """Return the runs with weights by updates and by rows, batch sizes following Algorithm 1."""
    printed = varied(base_job(data), "rule", "paper")
    return {"weights by u": printed, "weights by u b": varied(printed, "weighting", "rows")}


def main() -> None:
    """Simulate and draw."""
    options = arguments(__doc__, SETS)
    shown = [
        Panel(title="threshold", jobs={data: by_threshold(data) for data in options.sets}),
        Panel(
            title="size, at threshold 0.2", jobs={data: by_factor(data) for data in options.sets}
        ),
        Panel(title="sizes as printed", jobs={data: by_weights(data) for data in options.sets}),
    ]
    draw_variants("fig11", shown, options.sets, options.data)


if __name__ == "__main__":
    main()
