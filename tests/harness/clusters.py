"""Which protocol the clusters of the tests speak: Dask's default scheme; Dask's own processes.

`make test-ucx` sets DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME=ucx, which a local cluster of daskxml's
follows. Dask's `LocalCluster` and ``dask scheduler`` must be told; workers follow their scheduler.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster  # which reads the configuration

END_S = 60.0  # a worker over ucx may wait half a minute for those that ended before it
PROTOCOL: str = dask.config.get("distributed.comm.default-scheme")


@contextlib.contextmanager
def local_cluster(workers: int, folder: Path | None = None, **more: Any) -> Iterator[LocalCluster]:
    """Workers of a thread each: processes that are started again when they die, if not told."""
    given = {
        "protocol": PROTOCOL if more.get("processes", True) else None, "threads_per_worker": 1,
        "dashboard_address": ":0", "silence_logs": 50, "local_directory": folder,
    }  # fmt: skip
    with LocalCluster(n_workers=workers, **{**given, **more}) as made:
        yield made


@contextlib.contextmanager
def local_client(workers: int, folder: Path | None = None, **more: Any) -> Iterator[Client]:
    """A client of a cluster of its own, which is its ``cluster``."""
    with local_cluster(workers, folder, **more) as cluster, Client(cluster) as client:
        yield client


@contextlib.contextmanager
def dask_process(
    *arguments: str, folder: Path, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """A process of Dask's command, ended with the block; what it says is in the folder's log."""
    protocol = ("--protocol", PROTOCOL) if arguments[0] == "scheduler" else ()
    with (folder / f"{arguments[0]}.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *arguments, *protocol],
            stdout=log, stderr=log, cwd=folder, env=os.environ | environment, text=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()
            process.wait(END_S)
