# ruff: noqa: D102 (the methods are documented once, in `daskxml.ops.cuda_device.Device`)
"""A GPU by way of CuPy: the only module that imports it.

Each device has a stream of its own, in which all of its work is done in order, and another for
rows on their way. Memory comes from CuPy's allocator: its pool, or RMM's where somebody has set
that. The sources are compiled once for a GPU; CuPy keeps the result on disk.
"""

from __future__ import annotations

from threading import get_ident
from typing import Any

import numpy as np

from daskxml.errors import ConfigError
from daskxml.ops.cuda_arena import Arena
from daskxml.ops.cuda_device import MakeArray, Product, Shape
from daskxml.ops.cuda_kernels import CudaKernels
from daskxml.ops.cuda_source import cuda_source
from daskxml.types import Array

_REMEDY = 'or give device "cpu"'


def open_gpu(exact: bool = False) -> CudaKernels:
    """The kernels of this process's first GPU.

    Parameters
    ----------
    exact
        Whether products are of float32; otherwise their operands are rounded to TF32 (10 bits
        behind the point) where the GPU has it, several times faster.

    Raises
    ------
    ConfigError
        If CuPy is not installed, or there is no GPU that it can use.
    """
    try:
        import cupy

        count = int(cupy.cuda.runtime.getDeviceCount())
        if count == 0:
            raise ConfigError(f'device "cuda": no GPU is visible: make one visible, {_REMEDY}')
        return CudaKernels(CupyDevice(cupy, exact))
    except ImportError as error:  # of CuPy, or of the libraries that it loads when they are used
        problem = f"CuPy cannot be loaded ({error}): install cupy-cuda12x[ctk]"
    except RuntimeError as error:  # CuPy's errors of the driver are among these
        problem = f"no GPU can be used ({error}): mend the driver"
    raise ConfigError(f'device "cuda": {problem}, {_REMEDY}')


class CupyDevice:
    """Implements :class:`daskxml.ops.cuda_device.Device` for the current GPU.

    Parameters
    ----------
    cupy
        The module.
    exact
        See `open_gpu`.
    """

    def __init__(self, cupy: Any, exact: bool) -> None:
        from cupy_backends.cuda.api import runtime
        from cupy_backends.cuda.libs import cublas

        self._cupy, self._cublas = cupy, cublas
        self._arena, self._owner = Arena(self.empty), get_ident()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._copies = cupy.cuda.Stream(non_blocking=True)
        self._module = cupy.RawModule(code=cuda_source(), options=("--std=c++14",))
        self._module.compile()  # now, not in the first step
        self._kernels: dict[str, Any] = {}
        exactly = cublas.CUBLAS_COMPUTE_32F
        quickly = exactly if exact else cublas.CUBLAS_COMPUTE_32F_FAST_TF32
        self._products = {  # of operands of a type: what cuBLAS calls it, and how it adds up
            "float32": (runtime.CUDA_R_32F, quickly),
            "uint16": (runtime.CUDA_R_16BF, exactly),  # bfloat16
        }

    def empty(self, shape: Shape, dtype: str) -> Array:
        with self._stream:
            return self._cupy.empty(shape, dtype)

    def free_bytes(self) -> int:
        """What the driver has left, and what the pool holds for later (none where it is RMM's)."""
        free, _ = self._cupy.cuda.runtime.memGetInfo()
        return int(free) + int(self._cupy.get_default_memory_pool().free_bytes())

    def release(self) -> None:
        self._stream.synchronize()
        self._arena.release()
        self._cupy.get_default_memory_pool().free_all_blocks()

    def reserve(self, nbytes: int) -> None:
        """For this thread: a parameter server may step in another one at the same time."""
        self._arena.reserve(nbytes)
        self._owner = get_ident()

    def scratch(self) -> MakeArray:
        if get_ident() != self._owner:
            return self.empty
        self._arena.reset()
        return self._arena.take

    def fill(self, out: Array, value: float) -> None:
        with self._stream:
            out.fill(value)

    def copy(self, out: Array, x: Array) -> None:
        with self._stream:
            self._cupy.copyto(out, x)

    def holds(self, value: Array) -> bool:
        return isinstance(value, self._cupy.ndarray)

    def upload(self, value: Array) -> Array:
        with self._stream:
            return self._cupy.asarray(value)  # by way of pinned memory: copied when this returns

    def upload_ahead(self, value: Array) -> Array:
        """By way of pinned memory, in a stream of its own, beside the work that is queued later.

        Memory that is used again was given up by work that is queued already: that is waited for.
        """
        self._copies.wait_event(self._mark(self._stream))
        with self._copies:
            return self._cupy.asarray(value)

    def settle(self) -> None:
        self._stream.wait_event(self._mark(self._copies))

    def _mark(self, stream: Any) -> Any:
        """An event behind what is in a stream now."""
        return stream.record(self._cupy.cuda.Event(disable_timing=True))

    def download(self, value: Array) -> Array:
        return self._cupy.asnumpy(value, stream=self._stream)

    def launch(
        self, name: str, blocks: tuple[int, ...], threads: tuple[int, ...], *arguments: Any
    ) -> None:
        if min(blocks) == 0:
            return
        kernel = self._kernels.get(name)
        if kernel is None:
            kernel = self._kernels[name] = self._module.get_function(name)
        with self._stream:
            kernel(blocks, threads, arguments)

    def gemm(self, product: Product, alpha: float, beta: float) -> None:
        if product.m == 0 or product.n == 0:
            return
        cublas, p = self._cublas, product
        scalars = np.array([alpha, beta], np.float32)  # read by the call itself
        flips = {False: cublas.CUBLAS_OP_N, True: cublas.CUBLAS_OP_T}
        kind, adds = self._products[str(p.a.dtype)]
        with self._stream:
            handle = self._cupy.cuda.device.get_cublas_handle()  # this thread's
            cublas.gemmEx(
                handle, flips[p.flips_b], flips[p.flips_a], p.n, p.m, p.k, scalars.ctypes.data,
                p.b.data.ptr, kind, p.b_stride, p.a.data.ptr, kind, p.a_stride,
                scalars.ctypes.data + 4, p.out.data.ptr, self._products["float32"][0], p.n,
                adds, cublas.CUBLAS_GEMM_DEFAULT,
            )  # fmt: skip

    def close(self) -> None:
        self._copies.synchronize()
        self._stream.synchronize()
