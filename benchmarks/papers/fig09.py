"""Figure 9 of Adaptive SGD: how often replicas merge, over time and over epochs.

    python benchmarks/papers/fig09.py --data FOLDER

A mega-batch has 4, 20, 50, 100 or 200 batches. Test rows are scored about every 100 batches.
"""

from output import arguments
from study import Job, with_changes
from variants import Panel, base_job, draw_variants

SETS = ("bibtex", "delicious", "stackex4-2k")
SIZES = (4, 20, 50, 100, 200)
SCORED_EVERY = 100  # batches


def jobs_of(data: str) -> dict[str, Job]:
    """Return the runs on a set."""
    return {
        f"{size} batches": with_changes(
            base_job(data),
            every=max(1, SCORED_EVERY // size),
            overrides=[("strategy.megabatch_batches", size)],
        )
        for size in SIZES
    }


def main() -> None:
    """Simulate and draw."""
    options = arguments(__doc__, SETS)
    jobs = {data: jobs_of(data) for data in options.sets}
    shown = [
        Panel(title="mega-batch, over time", jobs=jobs),
        Panel(title="mega-batch, over epochs", jobs=jobs, x="epoch", x_label="epochs"),
    ]
    draw_variants("fig09", shown, options.sets, options.data)


if __name__ == "__main__":
    main()
