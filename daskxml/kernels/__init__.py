"""Kernels: everything that computes on arrays element by element, behind one Protocol."""

from daskxml.kernels.dense import KEEP_ALL, Drop
from daskxml.kernels.memory import StepSizes
from daskxml.kernels.optim import AdamStep, InPlace, RowGradient, RowNet, RowSums, scratch_floats
from daskxml.kernels.registry import Kernels, get_kernels
from daskxml.kernels.sampling import Lookup, RowSamples
from daskxml.kernels.sparse import DeviceCount

__all__ = [
    "KEEP_ALL", "AdamStep", "DeviceCount", "Drop", "InPlace", "Kernels", "Lookup", "RowGradient",
    "RowNet", "RowSamples", "RowSums", "StepSizes", "get_kernels", "scratch_floats",
]  # fmt: skip
