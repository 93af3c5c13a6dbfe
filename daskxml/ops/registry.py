"""Which kernels exist, by the name of their device."""

from __future__ import annotations

from collections.abc import Callable

from daskxml.errors import ConfigError
from daskxml.ops.numpy_kernels import NumpyKernels
from daskxml.ops.protocol import Kernels


def _absent(threads: int) -> Kernels:
    raise ConfigError('device "cuda": this version has no GPU kernels yet; use "cpu"')


KERNELS: dict[str, Callable[[int], Kernels]] = {"cpu": NumpyKernels, "cuda": _absent}


def get_kernels(name: str, threads: int) -> Kernels:
    """The kernels of a device.

    Parameters
    ----------
    name
        ``cpu`` or ``cuda``.
    threads
        Lanes on a CPU, at least 1; a GPU has one and ignores it.

    Raises
    ------
    ConfigError
        If the device is unknown or not available, or threads is below 1.

    Examples
    --------
    >>> get_kernels("cpu", 2).lanes
    2
    """
    if name not in KERNELS:
        raise ConfigError(f"device {name!r} is unknown: use one of {', '.join(KERNELS)}")
    if threads < 1:
        raise ConfigError(f"threads = {threads}: must be at least 1")
    return KERNELS[name](threads)
