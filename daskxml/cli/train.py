"""``daskxml train``: train a model as a run file says."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daskxml.cli.arguments import Options
from daskxml.cli.progress import PlainProgress, make_progress
from daskxml.cli.tables import print_lines, print_metrics
from daskxml.config import RunConfig, load_run_config
from daskxml.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from daskxml.training.run import Run

RUNS = Path("runs")
INTERRUPTED = 130


def run(options: Options) -> int:
    """Print the resolved run, train, and show what came out."""
    config = load_run_config(_run_file(options), options.overrides)
    given = {
        "data.train": options.train,
        "data.test": options.test,
        "cluster.workers": options.workers,
        "cluster.device": options.device,
        "cluster.protocol": options.protocol,
        "cluster.dashboard_prefix": options.dashboard_prefix,
    }
    config = load_run_config(config, {key: value for key, value in given.items() if value})
    if not config.data.train:
        raise ConfigError("no training data: give --train FILE, or train in the run file's [data]")
    stem = config.run.name or Path(options.config or "run").stem
    out = options.out or options.resume or next(free_directories(stem))
    where = {"resume": options.resume, "scheduler": options.scheduler}
    if options.detach:
        if options.loggers:
            raise ConfigError("--detach leaves nobody behind to listen: give --log to attach")
        return launch_and_leave(config, out, **where)
    return train_and_report(config, out, loggers=options.loggers, **where)


def launch_and_leave(config: RunConfig, out: str, **where: Any) -> int:
    """Start a run on a scheduler and leave it; say how to come back to it."""
    from daskxml.runtime.client import launch

    with PlainProgress("") as progress:
        name = launch(config, out=out, on_event=progress, **where)
    at = f"{name} --scheduler {where['scheduler']}"
    hints = {"follow": f"daskxml attach {at}", "end": f"daskxml stop {at}"}
    print_lines({"run": name, "out": out, **hints})
    return 0


def train_and_report(config: RunConfig, out: str, **arguments: Any) -> int:
    """Train with a display of the progress, end with the metrics and the places.

    Returns
    -------
    The exit status: 130 where Ctrl-C ended the run at a merge, else 0.
    """
    from daskxml.runtime.client import train

    print(config.to_toml(), flush=True)
    with make_progress(f"daskxml {config.run.name}".rstrip()) as progress:
        done = train(config, out=out, on_event=progress, **arguments)
    places = {"run": out}
    if arguments.get("scheduler"):  # that of a local cluster is gone
        places["dashboard"] = progress.seen.dashboard
    if done.reason == "interrupt":
        places["go on"] = f"daskxml train --resume {shlex.quote(out)}"
    report(done, places)
    return INTERRUPTED if done.reason == "interrupt" else 0


def report(done: Run, places: Mapping[str, str]) -> None:
    """Print the last metrics of a run that is over, what ended it, and where things are."""
    measured = [row for row in done.history if row["metrics"]]
    if measured:
        last = measured[-1]
        print(f"after {last['rows']:,} rows, {last['epoch']:.2f} epochs, {last['wall_s']:.1f} s:")
        print_metrics(last["metrics"])
    print_lines({"ended by": done.reason, **places})


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


def _run_file(options: Options) -> str:
    """Return the run file that is named, or that of the run to go on with."""
    if options.config:
        return str(options.config)
    if not options.resume:
        raise ConfigError("no run file: give RUN.toml, or --resume DIR")
    stored = Path(options.resume) / "run.toml"
    if not stored.is_file():
        raise ModelError(f"{options.resume}: no run to resume here (there is no run.toml)")
    return str(stored)
