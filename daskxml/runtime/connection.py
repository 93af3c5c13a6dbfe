"""The Dask cluster that a run goes to: the user's, or a local one that is made for it."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator
from typing import Any

from distributed import Client, Nanny, Scheduler, SpecCluster
from distributed.comm.addressing import parse_address, parse_host_port
from distributed.comm.registry import get_backend

from daskxml.config.sections import ClusterSection
from daskxml.errors import ClusterError, ConfigError
from daskxml.runtime.interrupts import deaf_children, postponed
from daskxml.runtime.machines import POOL

CONNECT_S = "10s"
HOST = "127.0.0.1"
SILENT = 50  # of logging: nothing that Dask says
DASHBOARD_PORT = 8787
# Ctrl-C at a terminal reaches the workers too: they go on, until the run ends at a merge.
IGNORE_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"


def page_link(link: str | None, path: str) -> str:
    """Return where a run is watched: the scheduler's own page, or Dask's where there is none.

    Parameters
    ----------
    link
        Of Dask's status page, by Dask's setting ``distributed.dashboard.link``; None or "" where
        there is no dashboard.
    path
        Of the page on the scheduler; "" if there is none.

    Examples
    --------
    >>> page_link("http://h:8787/status", "/me/daskxml")
    'http://h:8787/me/daskxml'
    >>> page_link("https://hub/user/me/proxy/8787/status", "/daskxml")
    'https://hub/user/me/proxy/8787/daskxml'
    """
    base, _, page = (link or "").rpartition("/")
    if not path or page != "status":
        return link or ""
    prefix, _, name = path.rpartition("/")
    return f"{base.removesuffix(prefix)}{prefix}/{name}"


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
def _local_cluster(section: ClusterSection) -> Iterator[SpecCluster]:
    cores = len(os.sched_getaffinity(0))
    section.pool_threads_on(cores)  # refuses too many before anything is started
    with (
        tempfile.TemporaryDirectory(prefix="daskxml-") as folder,
        contextlib.ExitStack() as stack,
    ):
        with postponed(), deaf_children():  # else Ctrl-C in here leaves half a cluster
            cluster = stack.enter_context(_new_cluster(section, cores, folder))
        yield cluster


def _new_cluster(section: ClusterSection, cores: int, folder: str) -> SpecCluster:
    scheduler = {
        "host": HOST,
        "port": 0,
        "dashboard_address": _dashboard_address(),
        "http_prefix": section.dashboard_prefix,
    }
    try:
        return SpecCluster(
            workers=local_workers(section, cores, folder),
            scheduler={"cls": Scheduler, "options": scheduler},
            silence_logs=SILENT,
            name="daskxml",
        )
    except (RuntimeError, OSError) as error:
        raise ClusterError(
            f"the local workers cannot start ({error}); a script must call daskxml.train below "
            "'if __name__ == \"__main__\":', since each worker imports it"
        ) from error


def local_workers(section: ClusterSection, cores: int, folder: str) -> dict[int | str, Any]:
    """Return what Dask must know of each local process, by its name: pools come last.

    Examples
    --------
    >>> workers = local_workers(ClusterSection(workers=1, pools=1), 4, "/tmp")
    >>> list(workers), workers["pool-0"]["options"]["resources"]
    ([0, 'pool-0'], {'cpu-pool': 3})
    """
    replicas: list[int | str] = [*range(section.workers_on(cores))]
    pools = [f"pool-{number}" for number in range(section.pools)]
    common = {
        "host": HOST,
        "nthreads": 1,
        "memory_limit": 1.0 / (len(replicas) + len(pools)),  # share of the machine's
        "local_directory": folder,
        "silence_logs": SILENT,
        "preload": [IGNORE_INTERRUPTS],
    }
    pool = {**common, "resources": {POOL: section.pool_threads_on(cores)}} if pools else {}
    kinds = dict.fromkeys(replicas, common) | dict.fromkeys(pools, pool)
    return {name: {"cls": Nanny, "options": options} for name, options in kinds.items()}


def _dashboard_address() -> str:
    """Dask's usual port if it is free, else any: a warning about it would help nobody."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", DASHBOARD_PORT))
        except OSError:
            return "127.0.0.1:0"
    return f"127.0.0.1:{DASHBOARD_PORT}"
