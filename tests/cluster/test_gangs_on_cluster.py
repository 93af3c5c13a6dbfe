"""Strategies whose workers exchange arrays at every step, on a real cluster of processes."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, Worker

import daskxml
import harness.replay as replay
from daskxml.core.errors import TrainingError
from daskxml.records.checkpoint import checkpoints
from daskxml.strategies.protocol import Central, LocalSteps, Mirrored
from harness.clusters import local_client
from harness.every_strategy import ROW_STRATEGIES
from harness.ledger_check import check_ledger
from harness.small_data import small_run

Data = dict[str, Path]
Values = dict[str, Any]

JOINT = ["adasum", "asynchronous", "central", "crossbow", "mirrored"]
AT_LEAST = ["adaptive-hogbatch", "adaptive-sgd", "adasum", "asynchronous"]  # the others are slow


@pytest.fixture
def values() -> Values:
    """A run of four small mega-batches."""
    return small_run(4, checkpoint={"every": 2}, cluster={"threads": 1})


def named(values: Values, strategy: str, **changes: Any) -> Values:
    return {**values, **changes, "strategy": {**values["strategy"], "name": strategy}}


def watched(client: Client, data: Data, values: Values, **where: Any) -> tuple[Any, list[Any]]:
    """A run, and its events."""
    events: list[Any] = []
    run = daskxml.train(
        values, client=client, train=data["train"], test=data["test"],
        on_event=events.append, **where,
    )  # fmt: skip
    return run, events


def changes_of(events: list[Any]) -> list[str]:
    return [event["event"] for event in events if event["kind"] == "worker"]


# ------------------------------------------------------------------------ whole runs


@pytest.mark.parametrize("residency", ["replicate", pytest.param("shard", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "strategy",
    [n if n in AT_LEAST else pytest.param(n, marks=pytest.mark.slow) for n in ROW_STRATEGIES],
)
def test_every_strategy_accounts_for_every_row(
    client: Client, data: Data, values: Values, strategy: str, residency: str
) -> None:
    all_wait = {} if strategy in JOINT else {"quorum": 1.0}
    values = named(values, strategy, data={"residency": residency}, combine=all_wait)
    run, events = watched(client, data, values)
    assert [row["rows"] for row in run.history] == [384, 768, 1152, 1536]
    assert not [event for event in events if event["kind"] == "warning"]
    assert all(row["metrics"]["rows"] == 200 for row in run.history)
    assert run.metrics["P@1"] > 0.15
    work = [row["workers"].items() for row in run.history]  # one may come late to a mega-batch
    assert {name for each in work for name, own in each if own["busy_s"] > 0} == {*dict(work[-1])}
    if residency == "replicate":
        check_ledger(run.history, 1500)
    if strategy in JOINT:
        assert all(row["moved_bytes"] > 12 * 4 * run.model.spec.labels for row in run.history)


@pytest.mark.parametrize(
    ("strategy", "pattern"),
    [("mirrored", Mirrored()), ("central", Central()), ("adasum", LocalSteps(1))],
)
def test_workers_get_the_bits_of_the_same_programs_in_one_process(
    client: Client, data: Data, values: Values, strategy: str, pattern: Any
) -> None:
    values = named(values, strategy)
    run, _ = watched(client, data, values)
    expected = replay.replayed_gangs(data["train"], values, run.history, pattern)
    np.testing.assert_array_equal(replay.flat_model(run), expected)


def test_workers_of_one_process_exchange_messages(data: Data, values: Values) -> None:
    with local_client(2, processes=False) as client:
        runs = [
            watched(client, data, named(values, strategy))[0]
            for strategy in ("mirrored", "asynchronous")
        ]
    for run in runs:
        check_ledger(run.history, 1500)
    expected = replay.replayed_gangs(
        data["train"], named(values, "mirrored"), runs[0].history, Mirrored()
    )
    np.testing.assert_array_equal(replay.flat_model(runs[0]), expected)


def test_a_loss_that_is_not_finite_ends_the_run(client: Client, data: Data, values: Values) -> None:
    values = named(values, "mirrored")
    values["strategy"]["lr"] = 1e30
    with pytest.raises(TrainingError, match="not finite any more at learning rate"):
        watched(client, data, values)


# ---------------------------------------------------------------- losses and arrivals


def act_in(method: str, at_call: int, act: Callable[[], None]) -> Callable[[Worker], None]:
    """Return a function that makes a worker act in a call of a `BatchRunner` method."""

    def arm(dask_worker: Worker) -> None:
        from daskxml.worker.batch_runner import BatchRunner

        original, calls = getattr(BatchRunner, method), []

        def acting(self: Any, *args: Any) -> Any:
            calls.append(None)
            if len(calls) == at_call:
                act()
            return original(self, *args)

        setattr(BatchRunner, method, acting)

    return arm


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def lose_the_connection() -> None:
    raise ConnectionResetError("for a test")


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("strategy", ["mirrored", "asynchronous"])
def test_a_worker_is_killed_in_the_middle_of_a_gang(
    client: Client, data: Data, values: Values, strategy: str, rank: int
) -> None:
    names = {info["name"]: address for address, info in client.scheduler_info()["workers"].items()}
    client.run(act_in("gradient", 17, die), workers=[names[rank]])
    values = named(values, strategy, training={"megabatches": 6})
    run, events = watched(client, data, values)
    assert changes_of(events)[0] == "lost"
    assert [row["rows"] for row in run.history] == [384 * (i + 1) for i in range(6)]
    check_ledger(run.history, 1500)
    assert all(row["metrics"]["rows"] == 200 for row in run.history)
    if strategy == "mirrored":
        expected = replay.replayed_gangs(data["train"], values, run.history, Mirrored())
        np.testing.assert_array_equal(replay.flat_model(run), expected)


def test_a_gang_that_breaks_although_nobody_is_lost_is_done_again(
    patched: Client, data: Data, values: Values
) -> None:
    first, _ = patched.scheduler_info()["workers"]
    patched.run(act_in("gradient", 17, lose_the_connection), workers=[first])
    values = named(values, "mirrored")
    run, events = watched(patched, data, values)
    assert not changes_of(events)
    check_ledger(run.history, 1500)
    expected = replay.replayed_gangs(data["train"], values, run.history, Mirrored())
    np.testing.assert_array_equal(replay.flat_model(run), expected)


@pytest.mark.parametrize("strategy", ["mirrored", pytest.param("crossbow", marks=pytest.mark.slow)])
def test_a_worker_joins(
    data: Data, values: Values, tmp_path: Path, stop_once_joined: Any, strategy: str
) -> None:
    values = named(values, strategy, training={"megabatches": 1_000_000})
    with local_client(1, tmp_path) as client:
        watch = stop_once_joined(client.cluster, 1)
        run = daskxml.train(values, client=client, train=data["train"], on_event=watch)
    assert run.reason == "interrupt"
    check_ledger(run.history, 1500)
    if strategy == "mirrored":
        expected = replay.replayed_gangs(data["train"], values, run.history, Mirrored())
        np.testing.assert_array_equal(replay.flat_model(run), expected)


def test_who_waits_for_the_next_merge_is_killed(data: Data, values: Values, tmp_path: Path) -> None:
    """The loss is heard between two gangs, not at the end of the mega-batch."""
    values = named(values, "mirrored", training={"megabatches": 1})
    values["strategy"]["megabatch_batches"] = 25_000
    with local_client(1, tmp_path) as client:
        events: list[Any] = []
        is_interrupted: list[bool] = []

        def watch(event: Any) -> None:
            if event["kind"] == "started":
                client.cluster.scale(2)
            if event["kind"] == "worker" and not any(e["kind"] == "worker" for e in events):
                workers = client.scheduler_info()["workers"].items()
                (address,) = (a for a, info in workers if str(info["name"]) == event["worker"])
                os.kill(client.run(os.getpid, workers=[address])[address], signal.SIGKILL)
            events.append(event)
            if changes_of(events)[:2] == ["joined", "lost"] and not is_interrupted:
                is_interrupted.append(True)
                raise KeyboardInterrupt  # the mega-batch has shown what it is to show

        run = daskxml.train(values, client=client, train=data["train"], on_event=watch)
    assert is_interrupted
    (row,) = run.history
    lost = next(event for event in row["events"] if event["kind"] == "lost")
    assert 0 < lost["rows_returned"] < 25_000 * 32  # long before all were done
    assert row["rows"]
    check_ledger(run.history, 1500)


# ------------------------------------------------------------------------ local state


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "optimizer"),
    [("adaptive-sgd", {"name": "adam"}), ("crossbow", {"name": "sgd"}),
     ("mirrored", {"name": "adam"}), ("central", {"name": "adam"})],
)  # fmt: skip
def test_resume_with_local_state_gives_the_same_bits(
    single: Client, data: Data, values: Values, tmp_path: Path, strategy: str, optimizer: Values
) -> None:
    values = named(values, strategy, optimizer=optimizer)
    values["strategy"]["lr"] = 0.01

    def train(megabatches: int, **where: Any) -> daskxml.Run:
        overridden = {**values, "training": {"megabatches": megabatches}}
        return watched(single, data, overridden, **where)[0]

    whole = train(6, out=tmp_path / "whole")
    train(3, out=tmp_path / "parts")
    folder = checkpoints(tmp_path / "parts")[-1].with_suffix("")
    assert [path.name for path in folder.iterdir()] == ["0.safetensors"]
    resumed = train(6, resume=tmp_path / "parts")
    np.testing.assert_array_equal(replay.flat_model(whole), replay.flat_model(resumed))
    told = (tmp_path / "parts" / "history.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in told]
    assert [row["loss"] for row in lines] == [row["loss"] for row in whole.history]
    kept = {path.stem for path in (tmp_path / "parts" / "checkpoints").iterdir() if path.is_dir()}
    assert kept == {path.stem for path in checkpoints(tmp_path / "parts")}
