"""The GPU that is measured, made-up rows for it, and results that are written row by row."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from daskxml.core.arrays import Csr, Partition
from daskxml.core.errors import ConfigError
from daskxml.core.hardware import find_gpus, versions
from daskxml.kernels import get_kernels
from daskxml.records.environment import describe

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import align, write_result

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
        """Reset the peaks."""
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


def random_rows(rng, rows, features, labels, row_features, row_labels):
    """Rows of unit length; popular columns come more often, as in real data.

    Columns are drawn by a power law: column ``n u**2`` for ``u`` uniform; what is drawn twice in a
    row counts once.
    """
    values = np.full(rows * row_features, row_features**-0.5, np.float32)
    return Partition(
        _sparse(rng, rows, features, row_features, values),
        _sparse(rng, rows, labels, row_labels, None),
    )


def _sparse(rng, rows, columns, each, values):
    drawn = np.sort((columns * rng.random((rows, each)) ** 2).astype(np.int32), axis=1)
    fresh = np.ones(drawn.shape, bool)
    fresh[:, 1:] = drawn[:, 1:] != drawn[:, :-1]
    indptr = np.append(0, np.cumsum(fresh.sum(axis=1))).astype(np.int64)
    data = None if values is None else values[fresh.ravel()]
    return Csr(indptr, drawn[fresh], data, columns)


def planted_rows(seed, rows, features, labels, row_features=20):
    """Rows of one label each, whose features are mostly that label's own."""
    rng = np.random.default_rng(seed)
    own = rng.integers(0, features, (labels, row_features))
    label = rng.integers(0, labels, rows)
    picked = np.where(rng.random((rows, row_features)) < 0.7, own[label],
                      rng.integers(0, features, (rows, row_features)))  # fmt: skip
    lists = [np.unique(row) for row in picked]
    indptr = np.append(0, np.cumsum([len(row) for row in lists])).astype(np.int64)
    indices = np.concatenate(lists).astype(np.int32)
    lengths = np.diff(indptr)
    data = np.repeat(lengths**-0.5, lengths).astype(np.float32)
    x = Csr(indptr, indices, data, features)
    y = Csr(np.arange(rows + 1, dtype=np.int64), label.astype(np.int32), None, labels)
    return Partition(x, y)


def write_each(name: str, rows: Iterable[Mapping[str, Any]], device: str) -> int:
    """Write ``results/NAME.json`` again after each row; return the exit status.

    Without a GPU that is 2, after a line that says so. On the device ``cpu``, which tries a script
    out, rows are printed only.
    """
    if device == "cuda":
        try:
            get_kernels("cuda", 1).close()
        except ConfigError as error:
            print(f"nothing is measured: {error}", file=sys.stderr)
            return 2
    found: list[Mapping[str, Any]] = []
    for row in rows:
        found.append(row)
        columns = dict.fromkeys(column for each in found for column in each)
        table = [{column: each.get(column) for column in columns} for each in found]
        if device == "cuda":
            write_result(name, table)
        else:
            print("\n".join(align(table)), flush=True)
    return 0
