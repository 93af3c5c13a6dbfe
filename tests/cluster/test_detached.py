"""Runs that go on without a client: listed, followed again, stopped, and written down."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

import daskxml
from daskxml.api.runs import RunFollower, RunHandle, call
from daskxml.cli import main
from daskxml.cluster import scheduler_plugin
from daskxml.config import load_run_config
from daskxml.core.errors import ClusterError, ConfigError, ModelError
from daskxml.core.files import LOCK_FILE, is_locked
from daskxml.records.environment import read_starts
from daskxml.records.run_dir import RunDir
from harness.clusters import local_client, local_cluster
from harness.ledger_check import check_ledger
from harness.records import history

Data = dict[str, Path]
Values = dict[str, Any]
LONG = {"training.megabatches": 1_000_000}


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two worker processes for all tests of this module, started again when they die."""
    with local_cluster(2, tmp_path_factory.mktemp("dask")) as made:
        yield made


@pytest.fixture
def client(shared_cluster: LocalCluster) -> Iterator[Client]:
    """A client of it; every run is forgotten afterwards."""
    with Client(shared_cluster) as connected:
        connected.wait_for_workers(2, timeout=60)
        yield connected
        for record in daskxml.runs(connected):
            daskxml.attach(record.run, client=connected).stop(forget_it=True)


@pytest.fixture
def launch(shared_cluster: LocalCluster, data: Data, values: Values) -> Callable[..., str]:
    """Start a run from a client that is gone when this returns its name."""

    def started(**where: Any) -> str:
        with Client(shared_cluster, set_as_default=False) as passing:
            rows = {"train": data["train"], "test": data["test"]} | where
            name = daskxml.launch(values, client=passing, **rows)
        assert isinstance(name, str)
        return name

    return started


def wait_until(client: Client, run: str, megabatches: int) -> RunHandle:
    """Return the record of a run that has merged so often."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        record = next(it for it in daskxml.runs(client) if it.run == run)
        if record.megabatches >= megabatches or record.is_over:
            return record
    raise AssertionError(record)


def test_a_run_goes_on_without_its_client(
    launch: Callable[..., str], client: Client, data: Data, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    name = launch(out=out, overrides={"run.name": "left"})
    events: list[Any] = []
    rows: list[Any] = []
    run = daskxml.attach("left", client=client).follow(
        on_event=events.append, on_megabatch=rows.append
    )
    assert [row["megabatch"] for row in run.history] == list(range(1, 9))
    assert rows == run.history
    assert history(out) == run.history
    assert run.reason == "megabatches"
    check_ledger(run.history, 1500)
    assert [event["kind"] for event in events if event["kind"] == "started"] == ["started"]
    stored = daskxml.load(out)
    assert np.array_equal(stored.parameters["output.bias"], run.model.parameters["output.bias"])
    # A client that does not see the directory has a worker read it.
    fetched = RunFollower(client, name, events.append)._fetch_model(str(out))
    assert np.array_equal(stored.parameters["output.bias"], fetched.parameters["output.bias"])
    assert fetched.header == stored.header
    (record,) = daskxml.runs(client)
    assert (record.run, record.name, record.state) == (name, "left", "ended by megabatches")
    assert (record.is_over, record.is_detached, record.megabatches) == (True, True, 8)
    assert record.metrics == run.metrics
    resumed = daskxml.train(  # the directory is free again
        out / "run.toml", client=client, resume=out, overrides={"training.megabatches": 9}
    )
    assert len(resumed.history) == len(history(out)) == 9
    told = [sorted(start["workers"]) for start in read_starts(out)]
    assert told == [["0", "1"]] * 2  # both starts, by the keeper and by the client
    stages = [[stage["name"] for stage in start["stages"]] for start in read_starts(out)]
    assert stages == [["read", "shuffle"]] * 2


@pytest.mark.slow
def test_a_run_is_resumed_and_left(
    launch: Callable[..., str], client: Client, data: Data, values: Values, tmp_path: Path
) -> None:
    out, where = tmp_path / "run", {"train": data["train"], "test": data["test"]}
    daskxml.train(values, client=client, out=out, **where, overrides={"training.megabatches": 3})
    before = history(out)
    with (out / "history.jsonl").open("a") as file:
        file.write('{"megabatch": 4, "rows": ')  # as a process leaves it that is killed
    name = launch(resume=out, overrides={"training.megabatches": 6})
    rows: list[Any] = []
    run = daskxml.attach(name, client=client).follow(on_megabatch=rows.append)
    assert [row["megabatch"] for row in history(out)] == [1, 2, 3, 4, 5, 6]
    assert rows == history(out)[3:]
    assert history(out)[:3] == before
    assert run.history == history(out)
    assert "megabatches = 6" in (out / "run.toml").read_text()
    check_ledger(run.history, 1500)


def test_a_resumed_run_that_fails_at_once_leaves_its_directory_as_it_was(
    launch: Callable[..., str], client: Client, data: Data, values: Values, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    daskxml.train(
        values, client=client, train=data["train"], out=out, overrides={"training.megabatches": 2}
    )
    before = (out / "run.toml").read_bytes(), history(out)
    with pytest.raises(ConfigError, match=r"leave \[model\] as it was"):
        launch(resume=out, overrides={"model.hidden": [9]})
    assert ((out / "run.toml").read_bytes(), history(out)) == before


def test_a_run_is_stopped_with_a_checkpoint(
    launch: Callable[..., str], client: Client, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    name = launch(out=out, overrides=LONG | {"checkpoint.every": 1000})
    wait_until(client, name, 2)
    with pytest.raises(ModelError, match="under way in this directory"), RunDir(out, None):
        pass
    over = daskxml.attach(name, client=client).stop()
    assert over.state == "ended by stop"
    assert [row["megabatch"] for row in history(out)] == list(range(1, over.megabatches + 1))
    assert (out / "checkpoints" / f"{over.megabatches:06d}.safetensors").exists()
    check_ledger(history(out), 1500)
    assert daskxml.attach(name, client=client).stop() == over  # once more does no harm
    assert daskxml.attach(name, client=client).follow().reason == "stop"


def test_the_worker_that_writes_is_killed(
    launch: Callable[..., str], client: Client, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    name = launch(out=out, overrides=LONG)
    before = wait_until(client, name, 2)
    keepers = client.run(lambda dask_worker: bool(dask_worker.plugins["daskxml"].directories))
    (keeper,) = [address for address, is_keeper in keepers.items() if is_keeper]
    client.run(lambda: os.kill(os.getpid(), signal.SIGKILL), workers=[keeper], on_error="ignore")
    wait_until(client, name, before.megabatches + 5)  # it goes on
    over = daskxml.attach(name, client=client).stop()
    events: list[Any] = []
    run = daskxml.attach(name, client=client).follow(on_event=events.append)
    assert "lost" in [event.get("event") for event in events]
    assert history(out) == run.history
    assert [row["megabatch"] for row in run.history] == list(range(1, over.megabatches + 1))
    check_ledger(run.history, 1500)


def test_rows_and_model_in_memory(launch: Callable[..., str], client: Client) -> None:
    X, Y = np.eye(60, dtype=np.float32), np.eye(60)[:, :7]
    name = launch(train=daskxml.Matrices(X, Y), test=None)
    rows: list[Any] = []
    run = daskxml.attach(name, client=client).follow()
    again = daskxml.attach(name, client=client).follow(on_megabatch=rows.append)
    assert rows == run.history  # told once more from its beginning
    assert len(run.history) == 8
    assert (run.model.predict(X, 1) != again.model.predict(X, 1)).nnz == 0
    queues = client.run(lambda dask_worker: len(dask_worker.plugins["daskxml"].queues))
    assert set(queues.values()) == {0}  # what is kept is the model alone
    assert daskxml.attach(name, client=client).stop(forget_it=True).is_over
    assert daskxml.runs(client) == []
    kept = client.run(lambda dask_worker: len(dask_worker.plugins["daskxml"].models))
    assert set(kept.values()) == {0}
    with pytest.raises(ClusterError, match="no such run on this scheduler; take one of: n"):
        daskxml.attach(name, client=client).follow()


def test_old_results_are_forgotten(
    launch: Callable[..., str], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_plugin, "KEPT_RUNS", 1)
    names = [launch(overrides={"training.megabatches": 1}) for _ in range(2)]
    for name in names:
        wait_until(client, name, 1)
    deadline_s = time.monotonic() + 60
    while [record.run for record in daskxml.runs(client)] != names[1:]:
        assert time.monotonic() < deadline_s


def test_a_run_under_way_is_not_resumed(
    launch: Callable[..., str], client: Client, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    name = launch(out=out, overrides=LONG | {"checkpoint.every": 1})
    wait_until(client, name, 2)
    assert is_locked(out)  # by a worker
    (out / LOCK_FILE).unlink()  # as if its worker had died just now
    with pytest.raises(ClusterError, match=f"run {name} of another client writes there"):
        daskxml.launch(out / "run.toml", client=client, resume=out)
    (record,) = daskxml.runs(client)
    assert (record.run, record.is_over) == (name, False)


def test_a_run_that_fails_is_remembered(
    launch: Callable[..., str], client: Client, tmp_path: Path
) -> None:
    rows_file = tmp_path / "rows.txt"  # large, so that the run is left before it fails
    rows_file.write_text("3000000 2 2\n" + "0 0:1\n" * 2_999_999 + "0 7:1\n")
    name = launch(train=rows_file, out=tmp_path / "run")
    record = wait_until(client, name, 1)
    assert record.state.startswith(f"failed: {rows_file}:3000001: feature id 7 in '7:1'")
    rows: list[Any] = []
    with pytest.raises(daskxml.InputError, match=r"rows\.txt:3000001: feature id 7"):
        daskxml.attach(name, client=client).follow(on_megabatch=rows.append)
    assert rows == []
    deadline_s = time.monotonic() + 60
    while (tmp_path / "run").exists():
        assert time.monotonic() < deadline_s


def test_a_run_that_somebody_follows_is_stopped_by_somebody_else(
    shared_cluster: LocalCluster, client: Client, data: Data, values: Values
) -> None:
    ended: list[daskxml.Run] = []

    def follow() -> None:
        with Client(shared_cluster, set_as_default=False) as other:
            run = daskxml.train(values, client=other, train=data["train"], overrides=LONG)
            ended.append(run)

    thread = threading.Thread(target=follow)
    thread.start()
    deadline_s = time.monotonic() + 60
    while not (records := daskxml.runs(client)) or not records[0].megabatches:
        assert time.monotonic() < deadline_s
    assert not records[0].is_detached
    over = daskxml.attach(records[0].run, client=client).stop()
    assert (over.is_over, over.state) == (True, "ended by stop")
    thread.join(60)
    assert [run.reason for run in ended] == ["stop"]


def test_a_run_that_waits_for_workers_is_stopped(values: Values) -> None:
    with local_client(0) as client:
        assert daskxml.runs(client) == []
        config, run = load_run_config(values).to_toml(), "waiting"
        where = {"run_dir": None, "checkpoint": None, "is_detached": True}
        started = {"run": run, "config": config, "scattered": {}, "owner": client.id}
        call(client, "daskxml_start", **started, **where)
        over = daskxml.attach(run, client=client).stop()
        assert over.state == "failed: stopped before the first mega-batch"
        with pytest.raises(ClusterError, match="stopped before the first mega-batch"):
            daskxml.attach(run, client=client).follow()


def test_the_commands(
    shared_cluster: LocalCluster, client: Client, data: Data, values: Values, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run_file, out = tmp_path / "run.toml", tmp_path / "run"
    run_file.write_text(load_run_config(values | {"training": {"megabatches": 10**6}}).to_toml())
    at = ("--scheduler", shared_cluster.scheduler_address)
    files = ("--train", str(data["train"]), "--test", str(data["test"]), "--out", str(out))
    assert main(["train", str(run_file), *files, *at, "--detach"]) == 0
    told = capsys.readouterr().out
    (run,) = [record.run for record in daskxml.runs(client)]
    assert f"follow  daskxml attach {run} --scheduler {at[1]}\n" in told
    wait_until(client, run, 1)
    assert main(["runs", *at, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert (listed["run"], listed["is_over"], listed["out"]) == (run, False, str(out))
    assert main(["stop", run, *at]) == 0
    assert "state  ended by stop\n" in capsys.readouterr().out
    assert main(["attach", run, *at]) == 0
    told = capsys.readouterr().out
    assert "mega-batch 1 " in told
    assert f"run        {out}\n" in told
    assert main(["stop", run, *at, "--forget"]) == 0
    capsys.readouterr()
    assert main(["runs", *at]) == 0
    assert capsys.readouterr().out == f"no runs on {at[1]}\n"


def test_what_cannot_be_detached(data: Data, values: Values) -> None:
    with pytest.raises(daskxml.ConfigError, match="needs --scheduler"):
        daskxml.launch(values, train=data["train"])
    with pytest.raises(daskxml.ConfigError, match="no cluster: give --scheduler"):
        daskxml.runs()
