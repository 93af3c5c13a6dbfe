"""Kernels: everything that computes on arrays element by element, behind one Protocol."""

from daskxml.kernels.contract import Kernels
from daskxml.kernels.registry import get_kernels

__all__ = ["Kernels", "get_kernels"]
