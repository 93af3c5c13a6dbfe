"""A real cluster whose runs are watched."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

from daskxml.observe.dashboard import page
from harness.cluster_fixtures import client as client
from harness.clusters import local_cluster
from harness.small_data import data as data
from harness.small_data import small_run
from harness.watched_run import Started, forget


@pytest.fixture
def values() -> dict[str, Any]:
    """A run of small mega-batches that ends when it is stopped."""
    return small_run(1_000_000, cluster={"threads": 1})


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two worker processes, and a scheduler with a dashboard."""
    folder = tmp_path_factory.mktemp("dask")
    with local_cluster(2, folder, dashboard_address="127.0.0.1:0") as made:
        yield made


@pytest.fixture
def start(
    client: Client, data: dict[str, Path], values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Started]]:
    """Start runs on the cluster; with the test they are ended, and forgotten."""
    monkeypatch.setattr(page, "SHARE", 0.5)  # else a page waits up to a minute on a busy machine
    begun: list[Started] = []

    def begin(**sections: Any) -> Started:
        begun.append(Started(client, values | sections, train=data["train"], test=data["test"]))
        return begun[-1]

    yield begin
    for started in begun:
        if started.result is None:
            started.end()
    client.run_on_scheduler(forget)
