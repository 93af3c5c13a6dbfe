"""What RMM's pool still has: the driver counts all of a pool as used."""

from __future__ import annotations

from typing import Any


def unused_bytes(resource: Any) -> int:
    """Return what an RMM memory resource's pool holds and has not lent; 0 where there is no pool.

    Parameters
    ----------
    resource
        ``rmm.mr.get_current_device_resource()``: adaptors over a pool. What is lent is known where
        one of them counts (dask-cuda's ``rmm_track_allocations``); else nothing counts as lent,
        and memory that is not there is noticed when it is asked for.

    Examples
    --------
    >>> from types import SimpleNamespace as Resource
    >>> pool = Resource(pool_size=lambda: 100)
    >>> unused_bytes(pool), unused_bytes(Resource(upstream_mr=None))
    (100, 0)
    >>> unused_bytes(Resource(get_allocated_bytes=lambda: 30, upstream_mr=pool))
    70
    """
    lent = 0
    while resource is not None and not hasattr(resource, "pool_size"):
        if hasattr(resource, "get_allocated_bytes"):
            lent = int(resource.get_allocated_bytes())
        elif hasattr(resource, "allocation_counts"):
            lent = int(resource.allocation_counts.current_bytes)
        resource = getattr(resource, "upstream_mr", None)
    return 0 if resource is None else max(0, int(resource.pool_size()) - lent)
