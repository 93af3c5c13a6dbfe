"""A real cluster of processes, and a run file for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

from harness.clusters import local_client, local_cluster
from harness.small_data import small_run


@pytest.fixture
def values() -> dict[str, Any]:
    """A run of eight small mega-batches."""
    return small_run(8, checkpoint={"every": 2}, cluster={"threads": 1})


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two worker processes for all tests but those that change what they do (`patched`)."""
    with local_cluster(2, tmp_path_factory.mktemp("dask")) as made:
        yield made


@pytest.fixture(scope="session")
def cluster_of_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One worker process, whose runs repeat to the bit."""
    with local_cluster(1, tmp_path_factory.mktemp("dask")) as made:
        yield made


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """A client of two workers: one that the test before has killed is there again."""
    with Client(cluster) as connected:
        connected.wait_for_workers(2, timeout=60)
        yield connected


@pytest.fixture
def patched(tmp_path: Path) -> Iterator[Client]:
    """A client of two workers that the test may patch: they end with it."""
    with local_client(2, tmp_path / "dask") as connected:
        yield connected


@pytest.fixture
def single(cluster_of_one: LocalCluster) -> Iterator[Client]:
    """A client of one worker."""
    with Client(cluster_of_one) as connected:
        connected.wait_for_workers(1, timeout=60)
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
