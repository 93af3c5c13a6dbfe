"""The CUDA sources, which lie beside this module: one text for the compiler.

They use no headers and only what a small shim for a host compiler can offer, so that every kernel
also runs, and is tested, where there is no GPU.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_FILES = (
    "prelude", "half", "flat", "dense", "sparse", "group", "labels", "targets", "ranks", "optim",
)  # fmt: skip
_KERNEL = re.compile(r"^KERNEL (\w+)\(", re.MULTILINE)


@cache
def cuda_source() -> str:
    """The source of all kernels.

    Examples
    --------
    >>> "KERNEL sparse_forward" in cuda_source()
    True
    """
    folder = resources.files("daskxml.ops") / "cuda"
    return "\n".join((folder / f"{name}.cu").read_text("utf-8") for name in _FILES)


def kernel_names() -> list[str]:
    """The names of all kernels, in the order of the source.

    Examples
    --------
    >>> kernel_names()[0]
    'scale'
    """
    return _KERNEL.findall(cuda_source())
