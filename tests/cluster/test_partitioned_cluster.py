"""A run whose output layer is cut, on real processes: the bits of the simulator, and losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import daskxml
import harness.replay as replay
from daskxml.api.simulate import simulate
from daskxml.core.errors import ConfigError
from daskxml.records.verification import verify
from harness.deaths import die_in

Data = dict[str, Path]
Values = dict[str, Any]
PLACES = {
    "forward": ("daskxml.models.network.mlp:Mlp", 20),
    "join_parts": ("daskxml.models.network.partitioned:PartPass", 20),
    "update_waiting": ("daskxml.models.network.partitioned:PartPass", 20),
    "gather": ("daskxml.worker.partitioned_step:_GradientExchange", 20),
    "backward": ("daskxml.models.network.mlp:Mlp", 20),
    "keep_best": ("daskxml.worker.partitioned_worker:PartitionedWorker", 1),
    "commit": ("daskxml.worker.partitioned_worker:PartitionedWorker", 2),
    "lower_of": ("daskxml.worker.label_part:LabelPart", 2),  # while copies are made
    "rank": ("daskxml.models.network.partitioned:PartitionedOutput", 2),
    "held_arrays": ("daskxml.worker.partitioned_worker:PartitionedWorker", 1),
    "pieces": ("daskxml.worker.label_part:MergePoint", 1),  # while labels move
}


@pytest.fixture
def parted(values: Values) -> Values:
    return {
        **values,
        "model": {"hidden": [16], "output": "partitioned"},
        "strategy": {**values["strategy"], "reshard_above": 10.0},
        "training": {"megabatches": 6},
        "evaluation": {"every": 2},
    }


def train(client: Client, data: Data, values: Values, out: Path) -> tuple[daskxml.Run, list[Any]]:
    events: list[Any] = []
    run = daskxml.train(
        values, client=client, train=data["train"], test=data["test"], out=out,
        on_event=events.append,
    )  # fmt: skip
    if "data" not in values:  # one stream
        replay.check_ledger(run.history, 1500)
    return run, [event for event in events if event["kind"] == "warning"]


def test_the_cluster_gives_the_bits_of_the_simulator(
    client: Client, data: Data, parted: Values, tmp_path: Path
) -> None:
    run, warnings = train(client, data, parted, tmp_path)
    same = simulate(parted, [1.0, 0.5], **data)
    for name, array in same.model.parameters.items():
        np.testing.assert_array_equal(run.model.parameters[name], array, err_msg=name)
    for mine, other in zip(run.history, same.history, strict=True):
        assert mine["metrics"] == other["metrics"]
        assert mine["loss"] == other["loss"]
    assert not warnings


def test_rows_that_are_spread_over_workers_travel_to_the_others(
    client: Client, data: Data, parted: Values, tmp_path: Path
) -> None:
    parted |= {"data": {"residency": "shard", "partitions": 3}, "evaluation": {"every": 1}}
    run, warnings = train(client, data, parted, tmp_path)
    same = simulate(parted, [1.0, 0.5], **data)
    for name, array in same.model.parameters.items():
        np.testing.assert_array_equal(run.model.parameters[name], array, err_msg=name)
    assert [row["metrics"] for row in run.history] == [row["metrics"] for row in same.history]
    assert not warnings
    assert not verify(tmp_path).disagreements


def test_weights_norms_and_the_best_model_are_those_of_the_simulator(
    client: Client, data: Data, parted: Values, tmp_path: Path
) -> None:
    parted |= {
        "optimizer": {"name": "lamb", "clip_norm": 0.5},
        "strategy": {**parted["strategy"], "lr": 0.5},
        "training": {"megabatches": 4, "keep_best": True, "class_weight": "balanced"},
    }
    run, warnings = train(client, data, parted, tmp_path)
    same = simulate(parted, [1.0, 0.5], **data)
    assert run.model.header.training == same.model.header.training
    assert run.model.header.training["best_megabatch"]
    for name, array in same.model.parameters.items():
        np.testing.assert_array_equal(run.model.parameters[name], array, err_msg=name)
    assert not warnings


@pytest.mark.parametrize(
    "method",
    [
        "update_waiting",
        *(pytest.param(it, marks=pytest.mark.slow) for it in PLACES if it != "update_waiting"),
    ],
)
def test_a_worker_that_dies_changes_nothing(
    patched: Client, data: Data, parted: Values, tmp_path: Path, method: str
) -> None:
    place, at_call = PLACES[method]
    parted["training"]["keep_best"] = True
    if method == "pieces":
        parted["strategy"]["reshard_above"] = 0.0
    victim = sorted(patched.scheduler_info()["workers"])[1]
    patched.run(die_in(method, at_call, place), workers=[victim])
    run, _ = train(patched, data, parted, tmp_path)
    assert any(event["kind"] == "lost" for row in run.history for event in row["events"])
    same = simulate(parted, [1.0], **data)
    for name, array in same.model.parameters.items():
        np.testing.assert_allclose(run.model.parameters[name], array, rtol=0, atol=2e-6)
    assert run.history[-1]["metrics"] == same.history[-1]["metrics"]
    assert not verify(tmp_path).disagreements


def test_a_run_without_a_folder_is_refused(client: Client, data: Data, parted: Values) -> None:
    with pytest.raises(ConfigError, match="give --out, a folder that the workers share"):
        daskxml.train(parted, client=client, train=data["train"])


def test_labels_without_room_are_refused_before_the_run(
    client: Client, data: Data, parted: Values, tmp_path: Path
) -> None:
    client.run(set_room, 1 << 20)
    try:
        with pytest.raises(ConfigError, match=r"room for 0 % of the labels \(0: 0 %, 1: 0 %\): st"):
            train(client, data, parted, tmp_path)
    finally:
        client.run(set_room, None)


def set_room(nbytes: int | None) -> None:
    """Let this worker have so much memory left; None: what it has."""
    from daskxml.cluster import worker_tasks
    from daskxml.core import room

    worker_tasks.room_bytes = room.room_bytes if nbytes is None else lambda *args: nbytes
