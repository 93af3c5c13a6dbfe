"""The table of a scheduler's runs on a small terminal."""

from __future__ import annotations

import io

from rich.console import Console

from daskxml.cli.train import runs_table
from daskxml.cluster.event_log import RunRecord


def lines_of_table(record: RunRecord) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=80).print(runs_table([record]))
    return text.getvalue().splitlines()


def test_a_table_of_runs_cuts_nothing_off_on_a_small_terminal() -> None:
    record = RunRecord(
        run="95a30726", name="adaptive-sgd", strategy="adaptive-sgd", state="ended by megabatches",
        is_over=True, is_detached=False, begun_at_s=0.0, megabatches=12_345,
        metrics={"P@1": 0.61234}, out="/shared/experiments/of-this-month/first",
    )  # fmt: skip
    lines = lines_of_table(record)
    assert lines[2].startswith("95a30726  adaptive")
    assert "12,345  0.6123" in lines[2]
    start = lines[1].index("directory")
    assert "".join(line[start:].strip() for line in lines[2:]) == record.out


def test_why_a_run_failed_does_not_make_the_table_long() -> None:
    record = RunRecord(
        run="95a30726", name="", strategy="elastic", state=f"failed: {'the data are bad ' * 9}",
        is_over=True, is_detached=True, begun_at_s=0.0,
    )  # fmt: skip
    (line,) = lines_of_table(record)[2:]
    assert line.split()[:3] == ["95a30726", "elastic", "failed"]
