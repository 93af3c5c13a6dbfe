"""Kernels: everything that touches arrays element by element, behind one Protocol."""

from daskxml.ops.memory_protocol import StepSizes
from daskxml.ops.optim_protocol import AdamStep, Live, RowGradient, RowSums
from daskxml.ops.protocol import KEEP_ALL, Drop, Kernels
from daskxml.ops.registry import get_kernels
from daskxml.ops.row_protocol import RowNet, scratch_floats
from daskxml.ops.row_sets_protocol import Lookup, RowSets

__all__ = [
    "KEEP_ALL", "AdamStep", "Drop", "Kernels", "Live", "Lookup", "RowGradient", "RowNet", "RowSets",
    "RowSums", "StepSizes", "get_kernels", "scratch_floats",
]  # fmt: skip
