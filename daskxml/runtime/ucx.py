"""Whether Dask can talk UCX here, and what UCX is not to say."""

from __future__ import annotations

import logging
from importlib.metadata import entry_points

SCHEMES = ("ucx", "ucxx")  # two names of one protocol
LOGGER = "distributed_ucxx"  # Dask's own options do not silence it


def has_ucx() -> bool:
    """Whether Dask can talk UCX here; its own ``ucx`` is but a note that it has gone elsewhere."""
    return bool(entry_points(group="distributed.comm.backends", name="ucx"))


def ucx_missing(where: str) -> str:
    """Say that UCX is missing, and what to do.

    Examples
    --------
    >>> ucx_missing("ucx://h:1")[:43]
    'ucx://h:1: UCX is not installed here: pip i'
    """
    return (
        f"{where}: UCX is not installed here: pip install 'daskxml[ucx]' (GPUs: daskxml[cuda12] or "
        "[cuda13], which have it), or take tcp"
    )


def silence_ucx() -> None:
    """Let UCX's part of Dask not log in this process: it tells of every read that is cancelled.

    Examples
    --------
    >>> silence_ucx()
    >>> logging.getLogger("distributed_ucxx.ucxx").isEnabledFor(logging.ERROR)
    False
    """
    logging.getLogger(LOGGER).setLevel(logging.CRITICAL)
