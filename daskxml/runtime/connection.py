"""The Dask cluster that a run goes to: the user's, or a local one that is made for it."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator

from distributed import Client, LocalCluster
from distributed.comm.addressing import parse_address, parse_host_port
from distributed.comm.registry import get_backend

from daskxml.config.sections import ClusterSection
from daskxml.errors import ClusterError, ConfigError
from daskxml.runtime.interrupts import deaf_children, postponed

CONNECT_S = "10s"
DASHBOARD_PORT = 8787
# Ctrl-C at a terminal reaches the workers too: they go on, until the run ends at a merge.
IGNORE_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"


@contextlib.contextmanager
def connection(
    client: Client | None, scheduler: str | None, section: ClusterSection
) -> Iterator[Client]:
    """Give a client: the user's own, one of a running scheduler, or of a cluster made here.

    Raises
    ------
    ClusterError
        If no scheduler answers, or the local workers cannot start.
    """
    if client is not None:
        if client.asynchronous:
            raise ConfigError("an asynchronous client cannot be waited for: give a synchronous one")
        yield client
    elif scheduler is not None:
        with _client(scheduler) as connected:
            yield connected
    else:
        with _local_cluster(section) as cluster, Client(cluster) as connected:
            yield connected


def _client(scheduler: str) -> Client:
    _check_address(scheduler)
    try:
        return Client(scheduler, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"{scheduler}: no scheduler answers there; "
            "start one with 'dask scheduler' or correct the address"
        ) from error


def _check_address(scheduler: str) -> None:
    """Refuse what is no address before a client hangs on it."""
    try:
        scheme, place = parse_address(scheduler)
        get_backend(scheme)
        if scheme in ("tcp", "tls"):
            parse_host_port(place)
    except ValueError as error:
        raise ClusterError(
            f"{scheduler}: not a scheduler's address; give one like tcp://HOST:8786"
        ) from error


@contextlib.contextmanager
def _local_cluster(section: ClusterSection) -> Iterator[LocalCluster]:
    with (
        tempfile.TemporaryDirectory(prefix="daskxml-") as folder,
        contextlib.ExitStack() as stack,
    ):
        with postponed(), deaf_children():  # else Ctrl-C in here leaves half a cluster
            cluster = stack.enter_context(_new_cluster(section, folder))
        yield cluster


def _new_cluster(section: ClusterSection, folder: str) -> LocalCluster:
    try:
        return LocalCluster(
            n_workers=section.workers_on(len(os.sched_getaffinity(0))),
            threads_per_worker=1,
            processes=True,
            dashboard_address=_dashboard_address(),
            local_directory=folder,
            silence_logs=50,
            preload=[IGNORE_INTERRUPTS],
        )
    except (RuntimeError, OSError) as error:
        raise ClusterError(
            f"the local workers cannot start ({error}); a script must call daskxml.train below "
            "'if __name__ == \"__main__\":', since each worker imports it"
        ) from error


def _dashboard_address() -> str:
    """Dask's usual port if it is free, else any: a warning about it would help nobody."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", DASHBOARD_PORT))
        except OSError:
            return "127.0.0.1:0"
    return f"127.0.0.1:{DASHBOARD_PORT}"
