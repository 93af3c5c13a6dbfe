"""``daskxml compare``: tell when each run reached a level of a metric."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from daskxml.cli.arguments import Options
from daskxml.errors import ConfigError
from daskxml.reports.runs import RunRecord, read_runs
from daskxml.reports.targets import NEAR_BEST, Reached, best, check_metric, reach
from daskxml.reports.writing import default_metric

_TABLE_CHARACTERS = 80  # at least, so that no column is cut


def run(options: Options) -> int:
    """Print a table, or one JSON object."""
    runs = read_runs(options.runs)
    metric = options.metric or default_metric(runs)
    check_metric(runs, metric)
    top = best(runs, metric)
    if top is None:
        raise ConfigError(f"no run measured {metric}")
    level = options.at if options.at is not None else NEAR_BEST * top
    found = {run.name: reach(run.history, metric, level) for run in runs}
    for problem in (f"{run.name}: {problem}" for run in runs for problem in run.problems):
        print(f"daskxml: {problem}", file=sys.stderr)
    if options.json:
        plain = {name: it and dataclasses.asdict(it) for name, it in found.items()}
        print(json.dumps({"metric": metric, "level": level, "runs": plain}))
    else:
        console = Console(highlight=False)
        console.width = max(console.width, _TABLE_CHARACTERS)
        console.print(comparison_table(runs, found, f"{metric} of at least {level:.4g}"))
        for run in runs:
            if remark := _remark(run, found[run.name]):
                print(f"{run.name}: {remark}")
    return 0


def comparison_table(
    runs: Sequence[RunRecord], found: dict[str, Reached | None], title: str
) -> Table:
    """Lay out when each run reached the level, if it did."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    for name in ("reached", "with\nevaluation", "rows", "epochs", "mega-\nbatches"):
        table.add_column(name, justify="right", no_wrap=True)
    for run in runs:
        table.add_row(run.name, *_cells(found[run.name]))
    return table


def _cells(found: Reached | None) -> tuple[str, ...]:
    if found is None or not found.is_reached:
        return ("-",) * 5
    times = (f"{found.train_s:,.4g} s", f"{found.wall_s:,.4g} s")
    return (*times, f"{found.rows:,}", f"{found.epoch:.2f}", f"{found.megabatch:,}")


def _remark(run: RunRecord, found: Reached | None) -> str:
    """Say what a table's figures leave open."""
    words = [] if run.simulation is None else ["simulated"]
    if found is None:
        words.append("never measured")
    elif not found.is_reached:
        after = f"{found.train_s:,.4g} s, {found.rows:,} rows, {found.megabatch:,} mega-batches"
        words.append(f"not reached, best {found.value:.4g} after {after}")
    if run.state.startswith(("under way", "broken off")):
        words.append(run.state)
    return "; ".join(words)
