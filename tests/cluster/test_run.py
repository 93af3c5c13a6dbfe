"""Whole runs on a real cluster of processes: what they write, and what they survive."""

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
from daskxml.data.blocks import read_header
from daskxml.data.formats import plan_files, read_block
from daskxml.data.parse import Dialect
from daskxml.data.rows import to_scipy
from daskxml.records.environment import describe_machine, read_starts
from harness.clusters import local_client
from harness.deaths import die_in
from harness.idle import is_idle
from harness.ledger_check import check_ledger
from harness.records import history

FIELDS = {
    "megabatch", "rows", "epoch", "wall_s", "train_s", "merge_s", "eval_s", "loss", "metrics",
    "workers", "perturbed", "merged_bytes",
}  # fmt: skip
WORKER_FIELDS = {"updates", "rows", "batch_rows", "lr", "weight", "busy_s", "idle_s"}
Data = dict[str, Path]
Values = dict[str, Any]


def check_run(run: daskxml.Run, data: Data, values: Values) -> None:
    """The history accounts for every row, and for the model."""
    check_ledger(run.history, 1500)
    expected = replay.replayed_model(data["train"], values, run.history)
    model = replay.flat_model(run)
    # At the kink of ReLU a unit may step in one and not in the other: some weights differ more.
    assert np.isclose(model, expected, rtol=2e-3, atol=2e-5).mean() > 0.9
    np.testing.assert_allclose(model, expected, rtol=2e-3, atol=2e-3)


def test_a_run_on_disk(client: Client, data: Data, values: Values, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = daskxml.train(values, client=client, train=data["train"], test=data["test"], out=out)
    assert len(run.history) == 8
    assert run.reason == "megabatches"
    lines = history(out)
    assert lines == run.history
    for row in lines:
        assert row.keys() >= FIELDS
        assert row["metrics"]["rows"] == 200
        assert all(worker.keys() >= WORKER_FIELDS for worker in row["workers"].values())
    assert lines[-1]["rows"] == 8 * 12 * 32
    assert (out / "run.toml").exists()
    assert [path.stem for path in sorted((out / "checkpoints").iterdir())] == ["000006", "000008"]
    check_run(run, data, values)
    found = daskxml.verify(out)
    assert (found.megabatches, found.rows) == (8, 8 * 12 * 32)
    assert (found.disagreements, found.notes) == ((), ())
    loaded = daskxml.load(out)
    assert np.array_equal(loaded.parameters["output.weight"], run.model.parameters["output.weight"])
    assert run.metrics["P@1"] > 0.2


def check_environment(out: Path, starts: int, workers: list[str]) -> None:
    """The last start tells what its workers have: all of them are on this machine."""
    found = read_starts(out)
    assert len(found) == starts
    here = {**describe_machine(), "cores": len(os.sched_getaffinity(0))}
    assert found[-1]["workers"] == dict.fromkeys(workers, here)


def check_shards(run: daskxml.Run) -> None:
    """No row is counted twice, and none is left out before a later one of its shard.

    The first epoch is whole once all shards are in a later one, which a worker that others on
    this machine slow down may not reach.
    """
    places = [
        (epoch, stream, place)
        for row in run.history
        for worker in row["workers"].values()
        for lease in worker["leases"]
        for epoch, stream, start, stop in lease
        for place in range(start, stop)
    ]
    assert len(places) == len(set(places)) == run.history[-1]["rows"] == 8 * 12 * 32
    shards: dict[int, dict[int, set[int]]] = {}
    for epoch, shard, place in places:
        shards.setdefault(shard, {}).setdefault(epoch, set()).add(place)
    for epochs in shards.values():
        for epoch, found in epochs.items():
            assert found == set(range(len(found)))
            assert epoch == max(epochs) or len(found) == len(epochs[0])
    if all(1 in epochs for epochs in shards.values()):
        assert sum(len(epochs[0]) for epochs in shards.values()) == 1500


def test_a_run_in_memory_with_sharded_rows(client: Client, data: Data, values: Values) -> None:
    values["data"] = {"residency": "shard"}
    events: list[Any] = []
    run = daskxml.train(
        values, client=client, train=data["train"], test=data["test"], on_event=events.append
    )
    started = next(event for event in events if event["kind"] == "started")
    assert started["residency"] == "shard"
    for row in run.history:
        assert row["metrics"]["rows"] == 200
    check_shards(run)
    replicated = daskxml.train(
        values | {"data": {"residency": "replicate"}}, client=client, train=data["train"],
        test=data["test"],
    )  # fmt: skip
    assert abs(run.metrics["P@1"] - replicated.metrics["P@1"]) < 0.15


def die_in_ring(at_call: int) -> Callable[[Worker], None]:
    """Return a function that makes one worker kill itself in the middle of an all-reduce."""

    def arm(dask_worker: Worker) -> None:
        from daskxml.kernels.cpu.kernels import CpuKernels

        original, calls = CpuKernels.momentum, []

        def deadly(self: Any, *args: Any) -> None:
            calls.append(None)
            if len(calls) == at_call:
                os.kill(os.getpid(), signal.SIGKILL)
            original(self, *args)

        CpuKernels.momentum = deadly  # type: ignore[method-assign]

    return arm


def die_when_asked_for_the_norm(dask_worker: Worker) -> None:
    """Tell no norm with a lease, as a large model's worker; kill itself when it is asked."""
    from daskxml.cluster import worker_tasks as worker

    worker.QUICK_FLOATS = 0
    die_in("squared_norm", 3)(dask_worker)


@pytest.mark.parametrize(
    "arm",
    [
        die_in("lease", 5), die_in_ring(3), die_in("commit", 3), die_in("evaluate", 3),
        pytest.param(die_in("training_loss", 3), marks=pytest.mark.slow),
        pytest.param(die_when_asked_for_the_norm, marks=pytest.mark.slow),
    ],
    ids=["mega-batch", "merge", "commit", "evaluation", "training loss", "norm"],
)  # fmt: skip
def test_a_worker_is_killed(
    client: Client, data: Data, values: Values, arm: Callable[..., None]
) -> None:
    values["evaluation"] = {"training_loss": True, "batch_rows": 64}
    victim = next(iter(client.scheduler_info()["workers"]))
    client.run(arm, workers=[victim])
    events: list[Any] = []
    run = daskxml.train(
        values, client=client, train=data["train"], test=data["test"], on_event=events.append
    )
    changes = [event["event"] for event in events if event["kind"] == "worker"]
    assert changes[0] == "lost"
    assert len(run.history) == 8
    assert all(row["metrics"]["rows"] == 200 for row in run.history)
    losses = [row["training_loss"] for row in run.history]
    assert losses[-1] < losses[0]
    expected = replay.training_loss(data["train"], run.model)
    assert losses[-1] == pytest.approx(expected, rel=1e-5)
    check_run(run, data, values)


@pytest.mark.parametrize(
    ("method", "at_call"), [("lease", 5), pytest.param("training_loss", 3, marks=pytest.mark.slow)]
)
def test_a_worker_is_killed_that_held_shards(
    client: Client, data: Data, values: Values, method: str, at_call: int
) -> None:
    victim = next(iter(client.scheduler_info()["workers"]))
    client.run(die_in(method, at_call), workers=[victim])
    values["data"] = {"residency": "shard"}
    values["evaluation"] = {"training_loss": True, "batch_rows": 64}  # a share, however slow
    events: list[Any] = []
    run = daskxml.train(
        values, client=client, train=data["train"], test=data["test"], on_event=events.append
    )
    assert "lost" in [event.get("event") for event in events]
    assert all(row["metrics"]["rows"] == 200 for row in run.history)
    expected = replay.training_loss(data["train"], run.model)
    assert run.history[-1]["training_loss"] == pytest.approx(expected, rel=1e-5)
    check_shards(run)


def test_a_worker_joins_and_the_run_is_interrupted(
    data: Data, values: Values, tmp_path: Path, stop_once_joined: Any
) -> None:
    values["training"] = {"megabatches": 1_000_000}
    with local_client(1, tmp_path) as client:
        watch, out = stop_once_joined(client.cluster, 2), tmp_path / "run"
        run = daskxml.train(values, client=client, train=data["train"], out=out, on_event=watch)
    assert run.reason == "interrupt"
    check_environment(out, starts=1, workers=["0", "1"])
    assert len(run.history[0]["workers"]) == 1
    assert sorted(run.history[-1]["workers"]) == ["0", "1"]
    check_ledger(run.history, 1500)
    assert daskxml.verify(out).agrees


def test_every_worker_is_lost(single: Client, data: Data, values: Values, tmp_path: Path) -> None:
    single.run(die_in("commit", 4))  # mega-batch 3 is told of, the checkpoint is of 2
    out = tmp_path / "run"
    events: list[Any] = []
    run = daskxml.train(values, client=single, train=data["train"], out=out, on_event=events.append)
    assert "rewound" in [event["kind"] for event in events]
    assert [row["megabatch"] for row in run.history] == list(range(1, 9))
    check_run(run, data, values)
    assert daskxml.verify(out).agrees


def test_resume_gives_the_same_bits(
    single: Client, data: Data, values: Values, tmp_path: Path
) -> None:
    def train(megabatches: int, **where: Any) -> daskxml.Run:
        overrides = {"training.megabatches": megabatches}
        return daskxml.train(
            values, client=single, train=data["train"], test=data["test"],
            overrides=overrides, **where,
        )  # fmt: skip

    whole = train(10, out=tmp_path / "whole")
    train(5, out=tmp_path / "parts")
    resumed = train(10, resume=tmp_path / "parts")
    assert np.array_equal(replay.flat_model(whole), replay.flat_model(resumed))
    assert [row["loss"] for row in whole.history] == [row["loss"] for row in resumed.history]
    assert whole.metrics == resumed.metrics
    lines = (tmp_path / "parts" / "history.jsonl").read_text().splitlines()
    assert len(lines) == 10
    assert daskxml.verify(tmp_path / "parts").agrees


def count_messages(dask_worker: Worker) -> None:
    """On a worker: count channels that are opened, and questions for norms."""
    from daskxml.cluster.worker_plugin import RunWorkerPlugin
    from daskxml.transport import handshake

    connect_to, measure = handshake.connect_to, RunWorkerPlugin.measure
    dask_worker.daskxml_counts = counts = {"opened": 0, "asked": 0}  # type: ignore[attr-defined]

    def counted_connect_to(*args: Any) -> Any:
        counts["opened"] += 1
        return connect_to(*args)

    def counted_measure(*args: Any, **values: Any) -> Any:
        counts["asked"] += 1
        return measure(*args, **values)

    handshake.connect_to, RunWorkerPlugin.measure = counted_connect_to, counted_measure  # type: ignore[assignment]


def test_merges_use_links_that_stay_until_the_end(
    patched: Client, data: Data, values: Values
) -> None:
    patched.run(count_messages)
    run = daskxml.train(values, client=patched, train=data["train"])
    assert len(run.history) == 8
    counts = patched.run(lambda dask_worker: dask_worker.daskxml_counts)
    opened = 1  # of a ring
    assert [*counts.values()] == [{"opened": opened, "asked": 0}] * 2
    check_run(run, data, values)
    check = lambda dask_worker: is_idle(dask_worker.plugins["daskxml"].communicator)  # noqa: E731
    assert all(patched.run(check).values())
    with pytest.raises(TrainingError, match="not finite"):
        daskxml.train({**values, "strategy": {"lr": 1e30}}, client=patched, train=data["train"])
    assert all(patched.run(check).values())


def test_matrices_train_the_same_model_as_their_files(
    single: Client, data: Data, values: Values
) -> None:
    values["training"] = {"megabatches": 3}
    rows = {}
    for part in ("train", "test"):
        header, block = read_header(str(data[part])), plan_files([str(data[part])], 2**30)[0]
        dialect = Dialect(features=header.features, labels=header.labels)
        partition = read_block(block, dialect)
        labels = to_scipy(partition.labels).toarray().astype(bool)
        rows[part] = daskxml.Matrices(to_scipy(partition.features), labels)
    from_files = daskxml.train(values, client=single, train=data["train"], test=data["test"])
    from_matrices = daskxml.train(values, client=single, train=rows["train"], test=rows["test"])
    assert from_matrices.metrics == from_files.metrics
    assert np.array_equal(replay.flat_model(from_files), replay.flat_model(from_matrices))


def test_matrices_that_do_not_fit(client: Client, values: Values) -> None:
    with pytest.raises(daskxml.InputError, match="3 rows but Y has 2"):
        daskxml.train(values, client=client, train=daskxml.Matrices(np.eye(3), np.eye(2)))
    with pytest.raises(daskxml.InputError, match="test: X has 4 columns, that of training 3"):
        daskxml.train(
            values, client=client, train=daskxml.Matrices(np.eye(3), np.eye(3)),
            test=daskxml.Matrices(np.eye(4), np.eye(4)),
        )  # fmt: skip
