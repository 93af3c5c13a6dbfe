"""``daskxml runs``: list the runs that a scheduler has."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from daskxml.cli.arguments import Options

if TYPE_CHECKING:
    from daskxml.runtime.records import RunRecord

FAILED = "failed"  # and why: in a line of its own


def run(options: Options) -> int:
    """Print a table, or one JSON object a line."""
    from daskxml.runtime.runs import runs

    records = runs(scheduler=options.scheduler)
    if options.json:
        for record in records:
            print(json.dumps(dataclasses.asdict(record)))
    elif records:
        Console(highlight=False).print(runs_table(records))
        for record in records:
            if record.state.startswith(FAILED):
                print(f"{record.run} {record.state}")
    else:
        print(f"no runs on {options.scheduler}")
    return 0


def runs_table(records: Iterable[RunRecord]) -> Table:
    """Lay out runs, those begun first before.

    Examples
    --------
    >>> from daskxml.runtime.records import RunRecord
    >>> record = RunRecord(run="a1", name="", strategy="elastic", state="training", is_over=False,
    ...                    is_detached=True, begun_at_s=0.0, metrics={"P@1": 0.5})
    >>> table = runs_table([record])
    >>> [list(column.cells)[0] for column in table.columns][2:4], table.row_count
    (['elastic', 'training'], 1)
    """
    table = Table(box=None, pad_edge=False)
    table.add_column("run", no_wrap=True)
    for header in ("name", "strategy", "state", "begun"):
        table.add_column(header, overflow="fold")
    for header in ("mega-\nbatches", "P@1"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("directory", overflow="fold")  # it is what one needs: never cut
    for record in records:
        begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.begun_at_s))
        precision = f"{record.metrics['P@1']:.4f}" if "P@1" in record.metrics else ""
        state = FAILED if record.state.startswith(FAILED) else record.state
        state += "" if record.is_detached else " (attached)"
        table.add_row(
            record.run, record.name, record.strategy, state, begun,
            f"{record.megabatches:,}", precision, record.out,
        )  # fmt: skip
    return table
