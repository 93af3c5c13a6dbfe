"""A small data set on disk, a real cluster of processes, and a run file for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

from daskxml.data.synthetic import SyntheticSpec, write_xml

SPEC = SyntheticSpec(rows=1500, test_rows=400, features=300, labels=60, seed=5)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Training and test files."""
    folder = tmp_path_factory.mktemp("data")
    return {part: write_xml(folder / f"{part}.txt", SPEC, part) for part in ("train", "test")}


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
