"""A run file, and what its work costs."""

from typing import Any

import pytest

from daskxml.local import CostModel, Network
from daskxml.session import setup
from harness.recording import RecordingSession
from harness.small_data import data as data
from harness.small_data import few as few
from harness.small_data import small_run


@pytest.fixture
def values() -> dict[str, Any]:
    """A run of six small mega-batches: 2,304 rows."""
    return small_run(6, checkpoint={"every": 2}, evaluation={"every": 2})


@pytest.fixture
def costs() -> dict[str, Any]:
    """About 5 ms a batch, and messages that take a while."""
    return {
        "cost": CostModel(fixed_s=1e-3, per_row_s=1e-4, per_nonzero_s=1e-6),
        "network": Network(bandwidth_bytes_s=1e8, message_s=1e-3),
    }


@pytest.fixture
def trace(monkeypatch):
    """The results and the commands of sessions."""
    monkeypatch.setattr(setup, "Session", RecordingSession)
    RecordingSession.trace.clear()
    return RecordingSession.trace
