"""UCX beneath Dask: whether it is installed, its addresses, and its logging."""

from __future__ import annotations

import logging
import os
import sys
from importlib.metadata import entry_points

SCHEMES = ("ucx", "ucxx")  # two names of one protocol
LOGGER = "distributed_ucxx"  # Dask's own options do not silence it


def has_ucx() -> bool:
    """Whether Dask has UCX here; its own ``ucx`` backend only says that it has moved elsewhere."""
    return bool(entry_points(group="distributed.comm.backends", name="ucx"))


def takes_device_arrays(address: str) -> bool:
    """Whether connections to an address take device memory.

    Examples
    --------
    >>> takes_device_arrays("ucx://h:1"), takes_device_arrays("tcp://h:1")
    (True, False)
    """
    return address.partition("://")[0] in SCHEMES


def can_receive_device_arrays() -> bool:
    """Whether this process can: UCX receives them into device memory, which takes a GPU.

    A worker that has one has loaded CuPy before it takes part in a collective.
    """
    return "cupy" in sys.modules


def ucx_missing(where: str) -> str:
    """Return an error message that UCX is missing, with the remedy.

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
    """Silence UCX's part of Dask in this process: it logs every read that is cancelled.

    And UCX itself, which warns of a variable that distributed-ucxx has set.

    Examples
    --------
    >>> silence_ucx()
    >>> logging.getLogger("distributed_ucxx.ucxx").isEnabledFor(logging.ERROR)
    False
    """
    logging.getLogger(LOGGER).setLevel(logging.CRITICAL)
    os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")
