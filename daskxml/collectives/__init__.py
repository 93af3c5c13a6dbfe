"""Collective operations as programs of messages, without clocks or clusters.

`messages` defines what a program is; `ring` (with `ring_order`) is the all-reduce of means and
sums; `adasum` has the formula of which `adasum_tree` (over `halving`) and `adasum_linear` are
programs; `all_gather` distributes results, and `codec` halves the bytes. `combine` chooses by the
``[combine]`` section of a run file, and gives the factors of a model merge.
"""

from __future__ import annotations

from daskxml.collectives.combine import (
    CombineConfig,
    MergeFactors,
    combine_changes,
    merge_factors,
    outer_memory,
)
from daskxml.collectives.ring import PIECE_FLOATS, ring_all_reduce

__all__ = [
    "PIECE_FLOATS",
    "CombineConfig",
    "MergeFactors",
    "combine_changes",
    "merge_factors",
    "outer_memory",
    "ring_all_reduce",
]
