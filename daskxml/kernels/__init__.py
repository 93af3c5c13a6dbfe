"""Kernels: everything that computes on arrays element by element, behind one Protocol."""

from daskxml.kernels.contract import Kernels
from daskxml.kernels.operands import (
    KEEP_ALL,
    DeviceCount,
    DeviceKey,
    DeviceNumber,
    Drop,
    InPlace,
    Lookup,
    RowGradient,
    RowNet,
    RowSamples,
    RowSums,
    RuleStep,
    StepSizes,
    scratch_floats,
)  # fmt: skip
from daskxml.kernels.registry import get_kernels

__all__ = [
    "KEEP_ALL", "DeviceCount", "DeviceKey", "DeviceNumber", "Drop", "InPlace", "Kernels", "Lookup",
    "RowGradient", "RowNet", "RowSamples", "RowSums", "RuleStep", "StepSizes", "get_kernels",
    "scratch_floats",
]  # fmt: skip
