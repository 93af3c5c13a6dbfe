"""Searches on a real cluster: trials side by side, pruned, interrupted, and a worker killed."""

from __future__ import annotations

import os
import signal
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from distributed import Client, LocalCluster, SchedulerPlugin

import daskxml
from daskxml.cli import main
from daskxml.records.run_dir import read_history

SPACE = {
    "search": {"seed": 3, "min_evaluations": 1},
    "strategy": {"lr": {"low": 0.001, "high": 2.0, "log": True}},
    "model": {"hidden": {"choices": [[8], [16], [8, 8]]}},
}


class Parsed(SchedulerPlugin):
    """Counts how often each block of the files was parsed."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def transition(self, key: str, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if str(key).startswith("parse-") and finish == "memory":
            self.counts[str(key)] += 1


@pytest.fixture
def parsed(cluster: LocalCluster) -> Any:
    plugin = Parsed()
    cluster.scheduler.add_plugin(plugin, name="parsed")
    yield plugin
    cluster.scheduler.remove_plugin("parsed")


@pytest.fixture
def short(values: dict[str, Any], data: dict[str, Path]) -> dict[str, Any]:
    """A run of four mega-batches, whose test rows are nowhere."""
    rows = {"train": str(data["train"]), "test": "/no/such/file"}
    return {**values, "training": {"megabatches": 4}, "checkpoint": {"every": 1}, "data": rows}


def test_ten_trials_side_by_side_read_the_rows_once_and_some_are_pruned(
    client: Client, short: dict[str, Any], parsed: Parsed, tmp_path: Path
) -> None:
    begun: list[int] = []
    most = 0

    def hear(event: dict[str, Any]) -> None:
        nonlocal most
        if event["kind"] == "trial":
            trial = event["trial"]
            (begun.append if trial.state == "running" else begun.remove)(trial.number)
            most = max(most, len(begun))

    out = tmp_path / "search"
    found = daskxml.search(
        short, SPACE, client=client, out=out, trials=10, parallel=10, on_event=hear
    )
    assert (most, len(found.trials), found.reason) == (10, 10, "trials")
    assert sum(parsed.counts.values()) == 1  # the file is one block
    assert daskxml.runs(client) == []
    states = Counter(trial.state for trial in found.trials)
    assert states.keys() == {"complete", "pruned"}
    for trial in found.trials:
        assert trial.out is not None
        history = read_history(trial.out / "history.jsonl")
        assert {i: row["metrics"]["P@1"] for i, row in enumerate(history, 1)} == trial.evaluations
        assert (len(history) == 4) == (trial.state == "complete")
        assert not (trial.out / "checkpoints").exists()
        assert (trial.out / "model.safetensors").exists() == (trial is found.best)
    complete = [trial for trial in found.trials if trial.state == "complete"]
    assert found.best.value == max(max(trial.evaluations.values()) for trial in complete)
    best = tomllib.loads((out / "best.toml").read_text())
    assert best["strategy"]["lr"] == found.best.settings["strategy.lr"]
    assert best["model"]["hidden"] == found.best.settings["model.hidden"]
    assert list(found.config.model.hidden) == found.best.settings["model.hidden"]  # type: ignore[union-attr]
    assert daskxml.load(found.best.out or "").header == found.model.header
    assert len((out / "trials.csv").read_text().splitlines()) == 11
    assert f"trial {found.best.number}" in (out / "index.html").read_text()


def test_an_interrupted_search_goes_on_though_a_worker_is_killed(
    client: Client, short: dict[str, Any], parsed: Parsed, tmp_path: Path
) -> None:
    out = tmp_path / "search"
    space = {**SPACE, "search": {"seed": 1, "pruner": "none", "trials": 5, "parallel": 2}}

    def interrupt(event: dict[str, Any]) -> None:
        if event["kind"] == "trial" and event["trial"].number == 2:
            raise KeyboardInterrupt

    first = daskxml.search(short, space, client=client, out=out, on_event=interrupt)
    assert first.reason == "interrupt"
    states = {trial.number: trial.state for trial in first.trials}
    assert "running" in states.values()
    with pytest.raises(daskxml.ConfigError, match="holds a search: go on with --resume"):
        daskxml.search(short, space, client=client, out=out)

    pids = client.run(os.getpid)
    killed: list[int] = []

    def kill(event: dict[str, Any]) -> None:
        if event["kind"] == "trial" and event["trial"].number == 3 and not killed:
            killed.append(next(iter(pids.values())))
            os.kill(killed[0], signal.SIGKILL)

    parsed.counts.clear()
    found = daskxml.search(resume=out, client=client, on_event=kill)
    assert [trial.state for trial in found.trials] == ["complete"] * 5
    for trial, before in zip(found.trials, first.trials, strict=False):
        assert trial.settings == before.settings
        assert trial.evaluations.items() >= before.evaluations.items()
    assert len({trial.settings["strategy.lr"] for trial in found.trials}) == 5
    for trial in found.trials:
        assert trial.out is not None
        assert daskxml.verify(trial.out).agrees
    assert killed
    assert max(parsed.counts.values()) <= 2  # again only where the worker was the one that had it

    longer = daskxml.search(resume=out, client=client, trials=6)
    assert [trial.number for trial in longer.trials] == [0, 1, 2, 3, 4, 5]
    assert longer.trials[:5] == found.trials


def test_rows_in_memory_without_a_folder_and_settings_that_do_not_go_together(
    client: Client, short: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.random((300, 20)), rng.random((300, 7)) > 0.7
    space = {"optimizer": {"on_merge": {"choices": ["keep", "average"]}},
             "combine": {"overlap": {"choices": [False, True]}}}  # fmt: skip
    run_file = {**short, "data": {}, "training": {"megabatches": 1}}
    rows = daskxml.Matrices(X, Y, sample_weight=np.ones(300))
    found = daskxml.search(
        run_file, {**space, "search": {"sampler": "random", "seed": 5}}, client=client, train=rows,
        trials=6, parallel=6,
    )  # fmt: skip
    for trial in found.trials:
        is_refused = trial.settings == {"optimizer.on_merge": "average", "combine.overlap": True}
        assert trial.state == ("failed" if is_refused else "complete")
        assert ("would merge moments" in trial.problem) == is_refused
    assert {trial.state for trial in found.trials} == {"failed", "complete"}
    assert (found.out, found.best.out) == (None, None)
    assert found.model.predict(X, top_k=2).shape == (300, 7)


def test_the_command_tells_of_each_trial_and_where_the_best_is(
    client: Client, short: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "search"
    space = {**SPACE, "search": {"pruner": "none"}}
    for name, tables in (("run", short), ("space", space)):
        (tmp_path / f"{name}.toml").write_text(tomli_w.dumps(tables))
    files = (str(tmp_path / "run.toml"), "--space", str(tmp_path / "space.toml"))
    where = ("--scheduler", client.scheduler.address)
    less = ("--set", "training.megabatches=1", "--trials", "2", "--parallel", "2")
    assert main(["search", *files, *where, *less, "--out", str(out)]) == 0
    printed = capsys.readouterr().out.splitlines()
    begun = [line for line in printed if "begins  strategy.lr = " in line]
    assert [line.split()[1] for line in begun] == ["0", "1"]
    assert sum("  complete  " in line for line in printed) == 2
    assert f"report    {out}/index.html" in printed
    assert main(["search", *files, *where, "--out", str(out)]) == 2
    assert main(["search", *files[:1], *where]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].endswith("holds a search: go on with --resume, or choose another")
    assert said[1].endswith("give RUN.toml and --space SPACE.toml, or --resume DIR")
    assert len(said) == 2


def test_a_search_of_bad_rows_ends_with_their_error_and_of_bad_settings_with_the_last(
    client: Client, short: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(daskxml.InputError, match=r"nowhere\.txt: no such file"):
        daskxml.search(short, SPACE, client=client, train=tmp_path / "nowhere.txt", trials=3)
    wild = {"strategy": {"lr": {"low": 1e30, "high": 1e35}}}
    with pytest.raises(daskxml.ConfigError, match="none of 2 trials was completed; the last one: "):
        daskxml.search(short, wild, client=client, trials=2)


def test_what_a_search_refuses(short: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(daskxml.ConfigError, match="needs a run file and a space"):
        daskxml.search(short)
    with pytest.raises(daskxml.ModelError, match="no search to go on with here"):
        daskxml.search(resume=tmp_path)
    with pytest.raises(daskxml.ConfigError, match="give none of them"):
        daskxml.search(short, SPACE, resume=tmp_path)
    unmeasured = {**short, "training": {"megabatches": 4, "target_metric": "P@2"}}
    with pytest.raises(daskxml.ConfigError, match="is never measured: add 2 to"):
        daskxml.search(unmeasured, SPACE)
    mixture = {"model": {"kind": "mixture", "parts": ["tree", "best"]}, "data": {"validation": 0.1}}
    with pytest.raises(daskxml.ConfigError, match="search the run file of a part"):
        daskxml.search(mixture, SPACE, train="rows.txt")
