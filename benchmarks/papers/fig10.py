"""Figure 10 of Adaptive SGD: the initial batch size, and the slope beta of Algorithm 1.

    python benchmarks/papers/fig10.py --data FOLDER

The first batch size with Algorithm 1 as printed and with the default rule,
which has no beta. Perturbed weights are normalized in all of them: without that the model grows
until it is of no use, whatever the batch sizes (see the table of algorithms).
"""

from output import arguments
from study import DATA, Job
from variants import SETS, Panel, base_job, draw_variants, varied


def printed(data: str) -> Job:
    """Return the run with Algorithm 1 as printed."""
    return varied(base_job(data), "rule", "paper")


def by_initial_size(base: Job) -> dict[str, Job]:
    """Return the runs that begin with b_max, half of it, and b_min."""
    most = DATA[base.data].batch_max
    return {
        f"b_max = {most}": base,
        f"b_max / 2 = {most // 2}": varied(base, "batch_initial", most // 2),
        f"b_min = {most // 8}": varied(base, "batch_initial", most // 8),
    }


def by_beta(base: Job) -> dict[str, Job]:
    """Return the runs with half, once and twice the paper's beta."""
    least = DATA[base.data].batch_max // 8
    return {
        f"beta = b_min / 4 = {least / 4:g}": varied(base, "beta", least / 4),
        f"beta = b_min / 2 = {least / 2:g}": base,
        f"beta = b_min = {least}": varied(base, "beta", float(least)),
    }


def main() -> None:
    """Simulate and draw."""
    options = arguments(__doc__, SETS)
    sets = options.sets
    shown = [
        Panel(
            title="first batch, as printed",
            jobs={data: by_initial_size(printed(data)) for data in sets},
        ),
        Panel(
            title="first batch, by speed",
            jobs={data: by_initial_size(base_job(data)) for data in sets},
        ),
        Panel(title="beta, as printed", jobs={data: by_beta(printed(data)) for data in sets}),
    ]
    draw_variants("fig10", shown, options.sets, options.data)


if __name__ == "__main__":
    main()
