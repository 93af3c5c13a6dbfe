"""The Dask cluster that a run goes to: the user's, or a local one that is made for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from distributed import Client
from distributed.comm.addressing import parse_address, parse_host_port
from distributed.comm.registry import get_backend
from distributed.utils import silence_logging_cmgr

from daskxml.config.sections import ClusterSection
from daskxml.errors import ClusterError, ConfigError
from daskxml.runtime.local_cluster import SILENT, Warn, local_cluster
from daskxml.runtime.ucx import SCHEMES, has_ucx, silence_ucx, ucx_missing

CONNECT_S = "10s"


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
    client: Client | None, scheduler: str | None, section: ClusterSection, warn: Warn
) -> Iterator[Client]:
    """Give a client: the user's own, one of a running scheduler, or of a cluster made here.

    Raises
    ------
    ConfigError
        If the cluster does not speak the protocol that is asked for.
    ClusterError
        If no scheduler answers, or the local workers cannot start.
    """
    if client is None and scheduler is None:
        with local_cluster(section, warn) as cluster, Client(cluster) as connected:
            yield connected
    else:
        with running_cluster(client, scheduler) as connected:
            _check_protocol(connected, section)
            yield connected


@contextlib.contextmanager
def running_cluster(client: Client | None, scheduler: str | None) -> Iterator[Client]:
    """Give a client of a cluster that is there: the user's own, or one of this scheduler.

    Raises
    ------
    ConfigError, ClusterError
        If neither is given, or it cannot be used.
    """
    if client is not None:
        _check_client(client)
        yield client
    elif scheduler is not None:
        # Dask would log a traceback where the scheduler is gone: an error tells of it in a line.
        with silence_logging_cmgr(SILENT), _client(scheduler) as connected:
            yield connected
    else:
        raise ConfigError("no cluster: give --scheduler ADDRESS, or a Dask client")


def _check_client(client: object) -> None:
    if not isinstance(client, Client):
        raise ConfigError(
            f"client = {client!r}: must be a dask.distributed.Client; an address goes to scheduler"
        )
    if client.asynchronous:
        raise ConfigError("an asynchronous client cannot be waited for: give a synchronous one")
    if client.scheduler is None:
        raise ClusterError("the client is closed: make another")


def _check_protocol(client: Client, section: ClusterSection) -> None:
    address = client.scheduler.address
    spoken, _ = parse_address(address)
    wanted = SCHEMES if section.protocol == "ucx" else (section.protocol,)
    if section.protocol != "auto" and spoken not in wanted:
        raise ConfigError(
            f"[cluster] protocol = {section.protocol!r}: the scheduler at {address} speaks "
            f"{spoken}; start it with 'dask scheduler --protocol {section.protocol}', or leave "
            "the protocol at auto"
        )


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
        if scheme in SCHEMES and not has_ucx():
            raise ClusterError(ucx_missing(scheduler))
        if scheme in SCHEMES:
            silence_ucx()
        get_backend(scheme)
        if scheme in ("tcp", "tls"):
            parse_host_port(place)
    except ValueError as error:
        raise ClusterError(
            f"{scheduler}: not a scheduler's address; give one like tcp://HOST:8786"
        ) from error
