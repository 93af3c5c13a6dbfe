"""Kernels: everything that touches arrays element by element, behind one Protocol."""

from daskxml.ops.protocol import KEEP_ALL, Drop, Kernels
from daskxml.ops.registry import get_kernels

__all__ = ["KEEP_ALL", "Drop", "Kernels", "get_kernels"]
