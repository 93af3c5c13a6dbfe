"""How arrays merge: rules on values and programs of messages, without clocks or clusters."""

from __future__ import annotations

from daskxml.combine.changes import combine_changes
from daskxml.combine.config import CombineConfig
from daskxml.combine.kernels import CombineKernels
from daskxml.combine.linear import MergeFactors, merge_factors, outer_memory
from daskxml.combine.ring import ring_all_reduce
from daskxml.combine.weighted import merge_weighted

__all__ = [
    "CombineConfig",
    "CombineKernels",
    "MergeFactors",
    "combine_changes",
    "merge_factors",
    "merge_weighted",
    "outer_memory",
    "ring_all_reduce",
]
