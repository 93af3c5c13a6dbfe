"""Merges that travel while real workers go on; whatever happens, the history repeats the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

import daskxml
import harness.replay as replay
from daskxml.config import load_run_config
from harness.clusters import PROTOCOL
from harness.deaths import die_in
from harness.overlap_replay import assert_repeats

Data = dict[str, Path]
Values = dict[str, Any]


@pytest.fixture
def values(values: Values) -> Values:
    """A model of some megabytes, whose merge takes as long as a few batches."""
    values["model"] = {"hidden": [512]}
    values["strategy"] |= {"megabatch_batches": 16, "lr": 0.2}
    values["combine"] = {"overlap": True}
    values["checkpoint"] = {"every": 4}
    return values


def check_run(run: Any, data: Data, values: Values) -> None:
    """No row counts twice, and the history leads to the model, bit for bit."""
    every = Counter(replay.rows_of(run.history, 1500))
    assert set(every.values()) <= {1}
    assert run.history[-1]["rows"] == every.total()
    if not any(event["kind"] == "lost" for row in run.history for event in row["events"]):
        replay.check_ledger(run.history, 1500)
    config = load_run_config({**values, "data": {}})
    rows = replay.shuffled_rows(data["train"], config.run.seed)
    assert_repeats(config, rows, run.history, run.model)


def corrections(run: Any) -> list[int]:
    """After how many batches replicas were corrected, where they were."""
    workers = [worker for row in run.history for worker in row["workers"].values()]
    return [worker["corrected_after"] for worker in workers if "corrected_after" in worker]


def test_workers_go_on_while_merges_travel(client: Client, data: Data, values: Values) -> None:
    run = daskxml.train(values, client=client, train=data["train"], test=data["test"])
    check_run(run, data, values)
    assert len(run.history) == 8
    assert all(row["metrics"]["rows"] == 200 for row in run.history)
    assert len(corrections(run)) == 2 * 6  # all but two merges overlapped
    assert any(corrections(run))  # and batches were done meanwhile
    full = [row["megabatch"] for row in run.history if not row["overlapped_s"]]
    assert full == [4, 8]
    spent_s = sum(row["train_s"] + row["merge_s"] + row["eval_s"] for row in run.history)
    assert spent_s == pytest.approx(run.history[-1]["wall_s"])  # nothing counts twice


@pytest.mark.parametrize(
    ("method", "strategy"),
    [
        ("merge_source", "adaptive-sgd"),
        ("commit", "elastic"),
        ("evaluate", "elastic"),
        pytest.param("take_snapshot", "adaptive-sgd", marks=pytest.mark.slow),
        pytest.param("merge_source", "elastic", marks=pytest.mark.slow),
        pytest.param("lease", "adaptive-sgd", marks=pytest.mark.slow),
    ],
)
def test_a_worker_is_killed(
    client: Client, data: Data, values: Values, method: str, strategy: str
) -> None:
    """In the middle of a merge that travels (``merge_source``), say, while leases run."""
    values["strategy"] |= {"name": strategy}
    victim = next(iter(client.scheduler_info()["workers"]))
    client.run(die_in(method, 9 if method == "lease" else 3), workers=[victim])
    events: list[Any] = []
    run = daskxml.train(
        values, client=client, train=data["train"], test=data["test"], on_event=events.append
    )
    assert "lost" in [event.get("event") for event in events]
    assert [row["megabatch"] for row in run.history] == list(range(1, 9))
    assert all(row["metrics"]["rows"] == 200 for row in run.history)
    check_run(run, data, values)


def test_a_worker_joins_and_the_run_is_interrupted(
    data: Data, values: Values, tmp_path: Path, stop_once_joined: Callable[..., Any]
) -> None:
    values["training"] = {"megabatches": 1_000_000}
    values["checkpoint"] = {"every": 0}
    with (
        LocalCluster(protocol=PROTOCOL, n_workers=1, threads_per_worker=1, dashboard_address=":0",
                     local_directory=tmp_path) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        watch = stop_once_joined(cluster, 2)
        run = daskxml.train(values, client=client, train=data["train"], on_event=watch)
    assert run.reason == "interrupt"
    assert sorted(run.history[-1]["workers"]) == ["0", "1"]
    assert not run.history[-1]["overlapped_s"]
    check_run(run, data, values)


@pytest.mark.slow
def test_a_run_that_lost_everybody_goes_on_from_its_checkpoint(
    data: Data, values: Values, tmp_path: Path
) -> None:
    with (
        LocalCluster(protocol=PROTOCOL, n_workers=1, threads_per_worker=1, dashboard_address=":0",
                     local_directory=tmp_path / "dask", silence_logs=50) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        client.run(die_in("merge_source", 6))  # the checkpoint is of mega-batch 4
        events: list[Any] = []
        out = tmp_path / "run"
        run = daskxml.train(
            values, client=client, train=data["train"], out=out, on_event=events.append
        )
    assert [event["megabatch"] for event in events if event["kind"] == "rewound"] == [4]
    assert [row["megabatch"] for row in run.history] == list(range(1, 9))
    check_run(run, data, values)
