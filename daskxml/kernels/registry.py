"""Which devices there are, and when their kernels are compiled: once after an installation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from daskxml.core.errors import ConfigError
from daskxml.kernels.contract import Kernels

TEXT = "compiling kernels, once after an installation or an update"


def _on_cpu(threads: int, exact: bool) -> Kernels:
    from daskxml.kernels.cpu.kernels import CpuKernels  # imports Numba, which a GPU does not need

    return CpuKernels(threads)


def _on_gpu(threads: int, exact: bool) -> Kernels:
    from daskxml.kernels.cuda.cupy_device import open_gpu  # CuPy need not be installed

    return open_gpu(exact)


KERNELS: dict[str, Callable[[int, bool], Kernels]] = {"cpu": _on_cpu, "cuda": _on_gpu}


def get_kernels(name: str, threads: int, exact: bool = False) -> Kernels:
    """The kernels of a device.

    Parameters
    ----------
    name
        ``cpu`` or ``cuda``.
    threads
        Threads on a CPU, at least 1; ignored on a GPU.
    exact
        Whether a GPU multiplies matrices in float32 instead of TF32; a CPU always does.

    Raises
    ------
    ConfigError
        If the device is unknown or not available, or threads is below 1.

    Examples
    --------
    >>> get_kernels("cpu", 2).threads
    2
    """
    if name not in KERNELS:
        raise ConfigError(f"device {name!r} is unknown: use one of {', '.join(KERNELS)}")
    if threads < 1:
        raise ConfigError(f"threads = {threads}: must be at least 1")
    return KERNELS[name](threads, exact)


@contextmanager
def telling_of_compilation(tell: Callable[[], Any]) -> Iterator[None]:
    """Call ``tell`` before this process compiles the first kernel of the context, if it does.

    A kernel that comes from the cache is not compiled. As a decorator it is for every call.

    Examples
    --------
    >>> from numba import njit
    >>> with telling_of_compilation(lambda: print(TEXT)):
    ...     njit(lambda x: x + 1)(1), njit(lambda x: x + 2)(1)
    compiling kernels, once after an installation or an update
    (2, 3)
    """
    from numba.core import event

    tells = [tell]

    class Listener(event.Listener):
        def on_start(self, event: Any) -> None:
            if tells:
                tells.pop()()

        def on_end(self, event: Any) -> None:
            pass

    with event.install_listener("numba:compile", Listener()):
        try:
            yield
        finally:
            tells.clear()  # a class stays until a collection: it is not to hold what it tells
