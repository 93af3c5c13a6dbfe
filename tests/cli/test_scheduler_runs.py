"""The table of a scheduler's runs on a small terminal."""

import io

import pytest
from rich.console import Console

from daskxml.api.runs import RunHandle, find_run
from daskxml.cli.train import runs_table
from daskxml.cluster.event_log import RunRecord
from daskxml.core.errors import ClusterError


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


def test_a_run_is_found_by_its_name_its_directory_and_the_name_of_that(tmp_path, monkeypatch):
    places = {"a1": ("first", tmp_path / "runs/first"), "b2": ("", tmp_path / "runs/second"),
              "c3": ("first", tmp_path / "other/third"), "d4": ("", "")}  # fmt: skip
    handles = [
        RunHandle(run=run, name=name, out=str(out), strategy="elastic", state="", is_over=False,
                  is_detached=True, begun_at_s=0.0)
        for run, (name, out) in places.items()
    ]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for given, run in (("b2", "b2"), ("runs/first", "a1"), (f"{tmp_path}/runs/second", "b2"),
                       ("second", "b2"), ("third", "c3")):  # fmt: skip
        assert find_run(given, handles).run == run
    with pytest.raises(ClusterError, match="first: several runs have this name; take one of: a1"):
        find_run("first", handles)
    with pytest.raises(ClusterError, match="fourth: no such run on this scheduler"):
        find_run("fourth", handles)
