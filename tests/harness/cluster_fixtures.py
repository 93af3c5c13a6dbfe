"""A real cluster of processes, and a run file for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

from harness.clusters import PROTOCOL


@pytest.fixture
def values() -> dict[str, Any]:
    """A run of eight small mega-batches."""
    return {
        "model": {"hidden": [16]},
        "strategy": {"batch_max": 32, "megabatch_batches": 12, "lr": 0.5},
        "training": {"megabatches": 8},
        "checkpoint": {"every": 2},
        "cluster": {"threads": 1},
    }


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two worker processes that are started again when they die."""
    with LocalCluster(
        protocol=PROTOCOL,
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address=":0",
        local_directory=tmp_path / "dask",
        silence_logs=50,
    ) as made:
        yield made


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """A client of the cluster."""
    with Client(cluster) as connected:
        yield connected


class StopOnceJoined:
    """Lets a second worker come at a mega-batch, and interrupts the run once it has worked."""

    def __init__(self, cluster: LocalCluster, megabatch: int) -> None:
        self.cluster, self.megabatch, self.is_interrupted = cluster, megabatch, False

    def __call__(self, event: Any) -> None:
        """Hear an event of the run."""
        if event["kind"] != "megabatch":
            return
        if event["row"]["megabatch"] == self.megabatch:
            self.cluster.scale(2)
        rows = [worker["rows"] for worker in event["row"]["workers"].values()]
        if len(rows) == 2 and all(rows) and not self.is_interrupted:
            self.is_interrupted = True
            raise KeyboardInterrupt


@pytest.fixture
def stop_once_joined() -> type[StopOnceJoined]:
    """What `daskxml.train` takes as ``on_event``."""
    return StopOnceJoined
