"""The GPU that is checked: its kernels and memory, what it can do at most, and what it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from daskxml.core.hardware import find_gpus
from daskxml.kernels import get_kernels
from daskxml.records.environment import describe, versions

MIB = 1 << 20
PACKAGES = ("cupy-cuda12x", "cupy-cuda13x", "numpy", "scipy", "torch", "triton", "numba", "dask")


class Gpu:
    """The first GPU, by way of CuPy, with PyTorch where that is installed.

    Attributes
    ----------
    torch, torch_device
        The module, or None, and where its tensors are.
    compiles
        Which of ``torch.compile`` on and off are tried.
    """

    torch_device, compiles = "cuda", (False, True)

    def __init__(self) -> None:
        import cupy

        try:
            import torch
        except ImportError:
            torch = None
        self._cupy, self.torch = cupy, torch
        self._pool = cupy.get_default_memory_pool()

    def kernels(self, exact: bool = False) -> Any:
        """New kernels."""
        return get_kernels("cuda", 1, exact)

    def reset_memory(self) -> None:
        """Begin anew with peaks."""
        self._pool.free_all_blocks()
        if self.torch is not None:
            self.torch.cuda.empty_cache()
            self.torch.cuda.reset_peak_memory_stats()

    def peak_bytes(self, of_torch: bool) -> int:
        """What either allocator has had at most; CuPy's pool keeps all until it is emptied."""
        if of_torch:
            return int(self.torch.cuda.max_memory_reserved())
        return int(self._pool.total_bytes())

    def ceilings(self) -> dict[str, float]:
        """Bytes a second of a copy of 2 GiB (read and written), operations of a large product."""
        kernels = self.kernels()
        return {"bytes_s": _copied_bytes_s(kernels), "operations_s": _operations_s(kernels)}

    def describe(self) -> dict[str, Any]:
        """The GPU, its driver, and the versions of what was used."""
        runtime = self._cupy.cuda.runtime
        about = runtime.getDeviceProperties(0)
        return {
            "gpu": about["name"].decode(), "memory_GiB": round(about["totalGlobalMem"] / 2**30, 1),
            "capability": f"{about['major']}.{about['minor']}",
            "l2_MiB": about["l2CacheSize"] / MIB, "cuda_of_driver": runtime.driverGetVersion(),
            "cuda_runtime": runtime.runtimeGetVersion(),
            "driver": next((gpu.driver for gpu in find_gpus()), None), **software(),
        }  # fmt: skip


def software() -> dict[str, Any]:
    """The processor, and the versions of what was used."""
    found = describe()
    described = {name: found[name] for name in ("cpu", "python", "commit", "date")}
    return {**described, "packages": versions(PACKAGES)}


def _copied_bytes_s(kernels: Any, floats: int = 1 << 29) -> float:
    x, y = kernels.zeros(floats), kernels.zeros(floats)
    return 2 * float(x.nbytes) / _seconds(kernels, lambda: kernels.copy(y, x))


def _operations_s(kernels: Any, side: int = 8192) -> float:
    some = np.random.default_rng(0).standard_normal(1 << 20, dtype=np.float32)
    a, b = (kernels.to_device(np.resize(some, (side, side))) for _ in range(2))
    out = kernels.empty((side, side))
    return 2.0 * side**3 / _seconds(kernels, lambda: kernels.gemm(out, a, b))


def _seconds(kernels: Any, work: Callable[[], None], times: int = 10) -> float:
    """The mean of several in a row, after some that do not count."""
    last = kernels.zeros(1)
    for counts in (False, True):
        begun_s = time.perf_counter()
        for _ in range(times if counts else 3):
            work()
        kernels.to_host(last)  # waits for what was queued before
    return (time.perf_counter() - begun_s) / times
