"""Which protocol the clusters of the tests speak: Dask's default scheme.

`make test-ucx` sets DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME=ucx, which processes that tests start
inherit as well. A `LocalCluster` must be told.
"""

from __future__ import annotations

import dask
import distributed  # noqa: F401 (reads the configuration)

PROTOCOL: str = dask.config.get("distributed.comm.default-scheme")
