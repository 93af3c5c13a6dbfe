"""``daskxml train``: train a model as a run file says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from daskxml.cli.arguments import Options
from daskxml.cli.progress import make_progress
from daskxml.cli.report import metrics_table, print_lines, print_table
from daskxml.config import RunConfig, load_run_config

RUNS = Path("runs")


def run(options: Options) -> int:
    """Print the resolved run, train, and show what came out."""
    overrides = list(options.overrides)
    config = load_run_config(options.config, overrides)
    given = {"data.train": options.train, "data.test": options.test}
    given["cluster.workers"] = options.workers
    config = load_run_config(config, {key: value for key, value in given.items() if value})
    stem = config.run.name or Path(options.config).stem
    out = options.out or options.resume or next(free_directories(stem))
    train_and_report(config, out=out, resume=options.resume, scheduler=options.scheduler)
    return 0


def train_and_report(config: RunConfig, **arguments: Any) -> None:
    """Train with a display of the progress, and end with the metrics and the places."""
    from daskxml.runtime.client import train

    print(config.to_toml(), flush=True)
    with make_progress(f"daskxml {config.run.name}".rstrip()) as progress:
        trained = train(config, on_event=progress, **arguments)
    measured = [row for row in trained.history if row["metrics"]]
    if measured:
        last = measured[-1]
        title = f"after {last['rows']:,} rows, {last['epoch']:.2f} epochs, {last['wall_s']:.1f} s"
        print_table(metrics_table(last["metrics"], title))
    print_lines({"run": str(arguments["out"]), "dashboard": progress.seen.dashboard})


def free_directories(stem: str) -> Iterator[str]:
    """Yield names under ``runs/`` that do not exist yet, dated so that they sort by time.

    Examples
    --------
    >>> next(free_directories("first")).startswith("runs/first-")
    True
    """
    now = time.strftime("%Y%m%d-%H%M%S")
    number = 1
    while True:
        path = RUNS / (f"{stem}-{now}" if number == 1 else f"{stem}-{now}-{number}")
        if not path.exists():
            yield str(path)
        number += 1
