"""How arrays merge: rules on values, without clocks, clusters or randomness."""

from __future__ import annotations

from daskxml.combine.ring_order import Transfer, incoming, outgoing, partition_bounds
from daskxml.combine.weighted import MergeKernels, merge_weighted

__all__ = [
    "MergeKernels",
    "Transfer",
    "incoming",
    "merge_weighted",
    "outgoing",
    "partition_bounds",
]
