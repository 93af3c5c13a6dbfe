"""A small data set on disk, and run files for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from daskxml.data.synthetic import SyntheticSpec, write_xml
from daskxml.simulator import CostModel, Network

SPEC = SyntheticSpec(rows=1500, test_rows=200, features=300, labels=60, seed=5)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Training and test files."""
    folder = tmp_path_factory.mktemp("data")
    return {part: write_xml(folder / f"{part}.txt", SPEC, part) for part in ("train", "test")}


@pytest.fixture
def values() -> dict[str, Any]:
    """A run of six small mega-batches: 2,304 rows."""
    return {
        "model": {"hidden": [16]},
        "strategy": {"batch_max": 32, "megabatch_batches": 12, "lr": 0.5},
        "training": {"megabatches": 6},
        "checkpoint": {"every": 2},
        "evaluation": {"every": 2},
    }


@pytest.fixture
def costs() -> dict[str, Any]:
    """About 5 ms a batch, and messages that take a while."""
    return {
        "cost": CostModel(fixed_s=1e-3, per_row_s=1e-4, per_nonzero_s=1e-6),
        "network": Network(bandwidth_bytes_s=1e8, message_s=1e-3),
    }
