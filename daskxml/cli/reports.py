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
from daskxml.core.text import counted, one_line
from daskxml.observe.report import Comparison, StoredRun, by_data, find_runs, folder_of, read_runs
from daskxml.observe.run_view import Reached
from daskxml.observe.terminal import print_lines
from daskxml.records.verification import Verification
from daskxml.records.verification import verify as verify_run

_MOST_LINES = 20  # disagreements of a run that are printed
_TABLE_CHARACTERS = 80  # the least width, so that no column is cut


def report(options: Options) -> int:
    """Print when each run reached a level of a metric, and write a page about them.

    Runs of different files are not compared: each set of files has a table and a page of its own.
    """
    runs = read_runs(options.runs)
    for run in runs:
        for problem in run.problems:
            print(f"daskxml: {run.name}: {problem}", file=sys.stderr)
    together = by_data(runs)
    folder = Path(options.out or folder_of(runs))
    for number, group in enumerate(together, 1):
        _report(group, folder / str(number) if len(together) > 1 else folder, options)
    return 0


def _report(runs: Sequence[StoredRun], folder: Path, options: Options) -> None:
    compared = Comparison.of(runs, options.metric or None, options.at)
    if options.json:
        found = {row["run"]: row["reached"] for row in compared.summary()}
        plain = {name: result and dataclasses.asdict(result) for name, result in found.items()}
        print(json.dumps({"metric": compared.metric, "level": compared.level, "runs": plain}))
        return
    page = compared.write(folder)
    print_comparison(compared)
    print_lines({"page": str(page)})


def print_comparison(compared: Comparison) -> None:
    """Print when each run reached a level of a metric; nothing where none has measured it.

    The table is never narrower than its columns need.
    """
    if compared.level is None:
        return
    title = f"{compared.metric} of at least {compared.level:.4g}"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    for name in ("reached", "with\nevaluation", "rows", "epochs", "mega-\nbatches", "waiting"):
        table.add_column(name, justify="right", no_wrap=True)
    remarks = []
    for run, row in zip(compared.runs, compared.summary(), strict=True):
        found, share = row["reached"], row["waiting_share"]
        table.add_row(run.name, *_cells(found), "-" if share is None else f"{share:.1%}")
        if remark := _remark(run, found):
            remarks.append(f"{run.name}: {remark}")
    console = Console(highlight=False, markup=False)
    console.width = max(console.width, _TABLE_CHARACTERS)
    console.print(table)
    for remark in remarks:
        print(remark)


def verify(options: Options) -> int:
    """Print where the records of runs do not follow their rules; return 1 if any does not."""
    directories = [path for given in options.runs for path in find_runs(Path(given))]
    found = [verify_run(path, options.data) for path in directories]
    for run in found:
        if options.json:
            print(json.dumps(run.as_dict()))
        else:
            _print_verification(run)
    return int(not all(run.agrees for run in found))


def _print_verification(run: Verification) -> None:
    for disagreement in run.disagreements[:_MOST_LINES]:
        print(one_line(str(disagreement)))
    if len(run.disagreements) > _MOST_LINES:
        print(f"and {len(run.disagreements) - _MOST_LINES:,} more, which --json prints")
    count = len(run.disagreements)
    says = counted(count, "disagreement") if count else "the record follows its rules"
    numbers = {"mega-batch": run.megabatches, "row": run.rows, "event": run.events}
    counts = [counted(n, noun) for noun, n in {**numbers, "decision": run.decisions}.items()]
    if run.test_rows:
        counts.append(f"metrics of {counted(run.test_rows, 'test row')}")
    found = {"run": str(run.run), "verified": ", ".join(counts), "found": says}
    print_lines(found | {"note": "; ".join(run.notes)})


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
