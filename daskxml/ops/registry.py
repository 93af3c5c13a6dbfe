"""Which kernels exist, by the name of their device."""

from __future__ import annotations

from collections.abc import Callable

from daskxml.errors import ConfigError
from daskxml.ops.protocol import Kernels


def _on_cpu(threads: int, exact: bool) -> Kernels:
    from daskxml.ops.numpy_kernels import NumpyKernels  # and with it Numba, no need of a GPU's

    return NumpyKernels(threads)


def _on_gpu(threads: int, exact: bool) -> Kernels:
    from daskxml.ops.cupy_device import open_gpu  # and with it CuPy, which runs on a CPU never need

    return open_gpu(exact)


KERNELS: dict[str, Callable[[int, bool], Kernels]] = {"cpu": _on_cpu, "cuda": _on_gpu}


def get_kernels(name: str, threads: int, exact: bool = False) -> Kernels:
    """The kernels of a device.

    Parameters
    ----------
    name
        ``cpu`` or ``cuda``.
    threads
        Lanes on a CPU, at least 1; a GPU has one and ignores it.
    exact
        Whether a GPU multiplies matrices in float32 instead of TF32; a CPU always does.

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
    return KERNELS[name](threads, exact)
