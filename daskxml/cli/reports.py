"""``daskxml report`` and ``verify``: reading the directories of runs."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from daskxml.cli.arguments import Options
from daskxml.observe.report import summary, write_report
from daskxml.observe.run_view import Reached, reach
from daskxml.observe.stored_runs import (
    StoredRun,
    best,
    check_metric,
    default_level,
    default_metric,
    find_runs,
    read_runs,
)
from daskxml.observe.terminal import print_lines
from daskxml.records.verification import Verification
from daskxml.records.verification import verify as verify_run

_MOST_LINES = 20  # disagreements of a run that are printed
_TABLE_CHARACTERS = 80  # the least width, so that no column is cut


def report(options: Options) -> int:
    """Print when each run reached a level of a metric, and write a page about them."""
    runs = read_runs(options.runs)
    metric = options.metric or default_metric(runs)
    if options.metric:
        check_metric(runs, metric)
    for run in runs:
        for problem in run.problems:
            print(f"daskxml: {run.name}: {problem}", file=sys.stderr)
    level = default_level(runs, metric) if options.at is None else options.at
    if options.json:
        found = (
            {} if level is None else {run.name: reach(run.history, metric, level) for run in runs}
        )
        plain = {name: result and dataclasses.asdict(result) for name, result in found.items()}
        print(json.dumps({"metric": metric, "level": level, "runs": plain}))
        return 0
    written = write_report(options.runs, options.out, metric=options.metric, level=options.at)
    print_comparison(runs, metric, level)
    print_lines(
        {"page": str(written.page), "tables": ", ".join(each.name for each in written.tables)}
    )
    return 0


def print_comparison(runs: Sequence[StoredRun], metric: str, level: float | None) -> None:
    """Print when each run reached a level of a metric; nothing where none has measured it.

    The table is never narrower than its columns need.
    """
    if best(runs, metric) is None or level is None:
        return
    title = f"{metric} of at least {level:.4g}"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    for name in ("reached", "with\nevaluation", "rows", "epochs", "mega-\nbatches", "waiting"):
        table.add_column(name, justify="right", no_wrap=True)
    found = {run.name: reach(run.history, metric, level) for run in runs}
    for row in summary(runs, metric, level):
        share = row["waiting_share"]
        waiting = "-" if share is None else f"{share:.1%}"
        table.add_row(row["run"], *_cells(found[row["run"]]), waiting)
    console = Console(highlight=False)
    console.width = max(console.width, _TABLE_CHARACTERS)
    console.print(table)
    for run in runs:
        if remark := _remark(run, found[run.name]):
            print(f"{run.name}: {remark}")


def verify(options: Options) -> int:
    """Print where the records of runs do not follow their rules; return 1 if any does not."""
    directories = [path for given in options.runs for path in find_runs(Path(given))]
    found = [verify_run(path) for path in directories]
    for run in found:
        if options.json:
            print(json.dumps(run.as_dict()))
        else:
            _print_verification(run)
    return int(not all(run.agrees for run in found))


def _print_verification(run: Verification) -> None:
    for disagreement in run.disagreements[:_MOST_LINES]:
        print(disagreement)
    if len(run.disagreements) > _MOST_LINES:
        print(f"and {len(run.disagreements) - _MOST_LINES:,} more, which --json prints")
    count = len(run.disagreements)
    says = f"{count:,} disagreement{'s' * (count > 1)}" if count else "the record follows its rules"
    verified = {
        "run": str(run.run),
        "verified": f"{run.megabatches:,} mega-batches, {run.rows:,} rows, {run.events:,} events, "
        f"{run.decisions:,} decisions",
        "found": says,
    }
    print_lines(verified | {"note": "; ".join(run.notes)})


def _cells(found: Reached | None) -> tuple[str, ...]:
    if found is None or not found.is_reached:
        return ("-",) * 5
    times = (f"{found.train_s:,.4g} s", f"{found.wall_s:,.4g} s")
    return (*times, f"{found.rows:,}", f"{found.epoch:.2f}", f"{found.megabatch:,}")


def _remark(run: StoredRun, found: Reached | None) -> str:
    """Return what the figures of the table leave open."""
    words = [] if run.simulation is None else ["simulated"]
    if found is None:
        words.append("never measured")
    elif not found.is_reached:
        after = f"{found.train_s:,.4g} s, {found.rows:,} rows, {found.megabatch:,} mega-batches"
        words.append(f"not reached, best {found.value:.4g} after {after}")
    if run.state.startswith(("under way", "broken off")):
        words.append(run.state)
    return "; ".join(words)
