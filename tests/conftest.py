"""Workers and commands are forked from a process that has imported and compiled what they need."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import dask
import pytest

from daskxml.cluster import connection
from daskxml.transport.ucx import SCHEMES
from harness.clusters import PROTOCOL

PROFILE = "distributed.worker.profile.enabled"  # Dask's setting
COMMANDS = ("api.runs", "api.train", "cli.data", "cli.scheduler", "cli.train", "observe.dashboard")
FORKED = (*connection.PRELOAD, "harness.warm_worker", *(f"daskxml.{name}" for name in COMMANDS))


@pytest.fixture(scope="session", autouse=True)
def _forked_workers() -> Iterator[None]:
    if PROTOCOL in SCHEMES:
        yield
        return
    with (
        pytest.MonkeyPatch.context() as patch,
        connection.forked_workers(FORKED),
        dask.config.set({PROFILE: False}),  # of every process a hundred times a second
    ):
        paths = (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))  # the harness
        patch.setenv("DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED", "False")
        yield
