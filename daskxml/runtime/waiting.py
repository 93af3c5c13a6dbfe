"""Waiting for a worker where a cluster has none."""

from __future__ import annotations

import asyncio
from collections.abc import Sized

from distributed import Client

from daskxml.errors import ClusterError

PATIENCE_S = 60.0


async def some_worker(client: Client, present: Sized, arrived: asyncio.Event) -> None:
    """Wait until a worker is there.

    A task waits as well: without one a cluster that scales with its tasks (``cluster.adapt``)
    would not start a worker.

    Parameters
    ----------
    client
        Asynchronous client on the scheduler's loop.
    present
        The workers that are there.
    arrived
        Set when one comes.

    Raises
    ------
    ClusterError
        If none comes for a minute.
    """
    wish = client.submit(bool, pure=False)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not present:
                arrived.clear()
                await arrived.wait()
    except TimeoutError:
        raise ClusterError(
            f"no worker came within {PATIENCE_S:.0f} s; start some with 'dask worker'"
        ) from None
    finally:
        wish.release()
