"""``daskxml runs``, ``attach`` and ``stop``: the runs of a scheduler."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

import daskxml
from daskxml.cli.arguments import Options
from daskxml.cli.train import INTERRUPTED, print_outcome
from daskxml.cluster.event_log import RunRecord
from daskxml.core.text import printable
from daskxml.observe.terminal import make_progress, print_lines

FAILED = "failed"  # how the state of a failed run begins; the reason follows


def runs(options: Options) -> int:
    """Print a table of the runs, or one JSON object a line."""
    records: list[RunRecord] = [*daskxml.runs(scheduler=options.scheduler)]
    if options.json:
        for record in records:
            shown = {name: getattr(record, name) for name in RunRecord.__slots__}
            print(json.dumps(shown))
    elif records:
        Console(highlight=False).print(runs_table(records))
        for record in records:
            if record.state.startswith(FAILED):
                print(printable(f"{record.run} {record.state}"))
    else:
        print(f"no runs on {options.scheduler}")
    return 0


def attach(options: Options) -> int:
    """Show a run's progress from its first mega-batch on; Ctrl-C leaves the run as it is."""
    try:
        with make_progress(f"daskxml {options.run}") as progress:
            run = daskxml.attach(options.run, scheduler=options.scheduler)
            done = run.follow(on_event=progress, loggers=options.loggers)
    except KeyboardInterrupt:
        print(
            "the run continues; "
            f"`daskxml stop {options.run} --scheduler {options.scheduler}` ends it"
        )
        return INTERRUPTED
    print_outcome(done, {"run": str(done.out or ""), "dashboard": progress.view.dashboard})
    return 0


def stop(options: Options) -> int:
    """End a run at a merge, with a checkpoint; wait until it is over and say where it is."""
    run = daskxml.attach(options.run, scheduler=options.scheduler)
    over = run.stop(forget_it=options.forget)
    print_lines({"run": over.run, "state": over.state, "out": over.out})
    return 0


def runs_table(records: Iterable[RunRecord]) -> Table:
    """Lay out runs in the order in which they began.

    Examples
    --------
    >>> record = RunRecord(run="a1", name="", strategy="elastic", state="training",
    ...                    is_over=False, is_detached=True, begun_at_s=0.0)
    >>> table = runs_table([record])
    >>> [str(list(column.cells)[0]) for column in table.columns][2:4], table.row_count
    (['elastic', 'training'], 1)
    """
    table = Table(box=None, pad_edge=False)
    table.add_column("run", no_wrap=True)
    for header in ("name", "strategy", "state", "begun"):
        table.add_column(header, overflow="fold")
    for header in ("mega-\nbatches", "P@1"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("directory", overflow="fold")  # never cut: users copy it
    for record in records:
        begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.begun_at_s))
        precision = f"{record.metrics['P@1']:.4f}" if "P@1" in record.metrics else ""
        state = FAILED if record.state.startswith(FAILED) else record.state
        state += "" if record.is_detached else " (attached)"
        cells = (
            record.run, record.name, record.strategy, state, begun, f"{record.megabatches:,}",
            precision, record.out,
        )  # fmt: skip
        table.add_row(*(Text(printable(cell)) for cell in cells))  # somebody else may have named it
    return table
