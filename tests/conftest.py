"""Workers and commands are forked from a process that has imported and compiled what they need."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import dask
import hypothesis
import pytest

from daskxml.cluster import connection
from daskxml.transport.ucx import SCHEMES
from harness.clusters import PROTOCOL

# Dask watches each of its processes, which takes a share of a core where many stand side by side:
# 100 samples a second of the threads, 50 of the event loop, 10 of the memory, 2 of the machine.
WATCHING = {
    "distributed.worker.memory.monitor-interval": "2s",
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "10s",
}
COMMANDS = ("api.on_cluster", "api.runs", "cli.data", "cli.train", "observe.dashboard")
FORKED = (*connection.PRELOAD, "harness.warm_worker", *(f"daskxml.{name}" for name in COMMANDS))

hypothesis.settings.register_profile("busy machine", deadline=None)
hypothesis.settings.load_profile("busy machine")


def pytest_configure() -> None:
    """Let Ctrl-C end what tests start, though a shell has it ignored by what runs behind it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several files run at a time, mix those that wait for a cluster with those that compute.

    In the order of their names the former would run together, and leave the cores idle. Simulated
    faults come first: their clocks are those of all threads of a process, so that a cluster that
    has been started there would not work any more.
    """
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: crc32(item.nodeid.partition("::")[0].encode()))
        items.sort(key=lambda item: not item.nodeid.startswith("tests/faults"))


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of every later garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _forked_workers() -> Iterator[None]:
    if PROTOCOL in SCHEMES:
        yield
        return
    with (
        pytest.MonkeyPatch.context() as patch,
        connection.forked_workers(FORKED),
        dask.config.set(WATCHING),
    ):
        paths = (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))  # the harness
        for key, value in WATCHING.items():  # for the processes that tests start
            patch.setenv(f"DASK_{key}".upper().replace(".", "__").replace("-", "_"), str(value))
        yield
