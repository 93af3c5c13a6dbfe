"""A real cluster whose runs are watched."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster, Scheduler
from small_data import data as data

import daskxml
from daskxml.dashboard import dismiss

WITHIN_S = 30.0


@pytest.fixture
def values() -> dict[str, Any]:
    """A run of small mega-batches that ends when it is told to."""
    return {
        "model": {"hidden": [16]},
        "strategy": {"batch_max": 32, "megabatch_batches": 12, "lr": 0.5},
        "training": {"megabatches": 1_000_000},
        "cluster": {"threads": 1},
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two worker processes, and a scheduler with a dashboard."""
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0",
        local_directory=tmp_path_factory.mktemp("dask"), silence_logs=50,
    ) as made:  # fmt: skip
        yield made


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[Client]:
    """A client of the cluster."""
    with Client(cluster) as connected:
        yield connected


def stop(dask_scheduler: Scheduler, run: str) -> None:
    """End a run at a merge."""
    dask_scheduler.plugins["daskxml"].drivers[run].stop("enough")


class Started:
    """A run in the background.

    Attributes
    ----------
    events
        What it has told so far.
    result
        The `daskxml.Run`, once it is over.
    """

    def __init__(self, client: Client, values: dict[str, Any], **arguments: Any) -> None:
        self.client, self.events = client, list[Any]()
        self.result: daskxml.Run | None = None
        arguments |= {"client": client, "on_event": self.events.append}
        self._thread = threading.Thread(target=self._train, args=(values, arguments))
        self._thread.start()

    def _train(self, values: dict[str, Any], arguments: dict[str, Any]) -> None:
        self.result = daskxml.train(values, **arguments)

    def event(self, kind: str) -> Any:
        """Return the first event of a kind, when it comes."""
        return until(lambda: next((it for it in self.events if it["kind"] == kind), None))

    @property
    def name(self) -> str:
        """The run's name."""
        return str(self.event("started")["run"])

    @property
    def url(self) -> str:
        """Where it is watched."""
        return str(self.event("started")["dashboard"])

    @property
    def megabatches(self) -> int:
        """How many are done."""
        return sum(event["kind"] == "megabatch" for event in list(self.events))

    def go_on(self, megabatches: int) -> None:
        """Wait until so many more are done."""
        wanted = self.megabatches + megabatches
        until(lambda: self.megabatches >= wanted)

    def end(self) -> daskxml.Run:
        """Stop it, and return what came out."""
        self.client.run_on_scheduler(stop, run=self.name)
        self._thread.join(WITHIN_S)
        assert self.result is not None
        return self.result


def until(found: Callable[[], Any]) -> Any:
    """Return what a function returns, once that is true."""
    deadline_s = time.monotonic() + WITHIN_S
    while not (value := found()):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return value


@pytest.fixture
def start(
    client: Client, data: dict[str, Path], values: dict[str, Any]
) -> Iterator[Callable[..., Started]]:
    """Start runs on the cluster; with the test they are ended, and forgotten."""
    begun: list[Started] = []

    def begin(**sections: Any) -> Started:
        begun.append(Started(client, values | sections, train=data["train"], test=data["test"]))
        return begun[-1]

    yield begin
    for started in begun:
        if started.result is None:
            started.end()
    dismiss(client)


def read(url: str) -> str:
    """Return a page."""
    with urllib.request.urlopen(url, timeout=20) as answer:
        text: str = answer.read().decode()
    return text


def is_missing(url: str) -> bool:
    """Whether there is no such page."""
    try:
        read(url)
    except urllib.error.HTTPError as error:
        return error.code == 404
    return False
