"""Matrix products by cuBLAS, called directly: CuPy refuses its own calls while a graph is captured.

See `daskxml.kernels.cuda.cupy_device`, which loads CuPy and with it the library.
"""

from __future__ import annotations

from ctypes import CDLL, c_int, c_size_t, c_void_p
from functools import cache
from threading import Lock
from typing import Any
from weakref import finalize

import numpy as np

from daskxml.core.arrays import Array
from daskxml.kernels.operands import orientation

WORKSPACE_BYTES = 32 << 20  # what cuBLAS's documentation recommends for Hopper
_ALLOC_FAILED = 3


class Blas:
    """Products in one stream, with a handle and a workspace of its own.

    Parameters
    ----------
    cublas, runtime
        CuPy's modules.
    stream
        Its pointer.
    workspace
        ``(WORKSPACE_BYTES,)`` uint8 on the device. Products that share it must run in turn, as
        those of a captured stream do: its graphs are launched in the usual one.
    exact
        See `daskxml.kernels.cuda.cupy_device.open_gpu`.
    """

    def __init__(
        self, cublas: Any, runtime: Any, stream: int, workspace: Array, exact: bool
    ) -> None:
        self._cublas, self._handle, self._lock = cublas, cublas.create(), Lock()
        finalize(self, cublas.destroy, self._handle).atexit = False
        self._library = _library(cublas.getVersion(self._handle) // 10_000)
        cublas.setStream(self._handle, stream)
        self._workspace = workspace  # after the stream, which resets it
        place = c_void_p(workspace.data.ptr), c_size_t(workspace.nbytes)
        cublas.check_status(self._library.cublasSetWorkspace_v2(c_void_p(self._handle), *place))
        exactly = cublas.CUBLAS_COMPUTE_32F
        quickly = exactly if exact else cublas.CUBLAS_COMPUTE_32F_FAST_TF32
        self._kinds = {  # of operands of a dtype: its name in cuBLAS, and the type of sums
            np.dtype(np.float32): (runtime.CUDA_R_32F, quickly),
            np.dtype(np.float16): (runtime.CUDA_R_16F, exactly),
        }
        self._operations = {False: cublas.CUBLAS_OP_N, True: cublas.CUBLAS_OP_T}
        self._scalars = np.empty(2, np.float32)
        self._scalars_at = self._scalars.ctypes.data

    def gemm(
        self, out: Array, a: Array, b: Array, alpha: float, beta: float, factors: Array | None
    ) -> None:
        """See `daskxml.kernels.cuda.device.CudaDevice.gemm`.

        BLAS is column-major: it computes ``out.T = b.T @ a.T``.
        """
        (flips_a, a_stride), (flips_b, b_stride) = orientation(a), orientation(b)
        (kind, adds), (out_kind, _) = self._kinds[a.dtype], self._kinds[out.dtype]
        (m, n), cublas = out.shape, self._cublas
        with self._lock:
            self._scalars[:] = alpha, beta  # read by the call itself
            at = self._scalars_at if factors is None else factors.data.ptr
            cublas.setPointerMode(self._handle, int(factors is not None))
            status = self._library.cublasGemmEx(
                self._handle, self._operations[flips_b], self._operations[flips_a],
                n, m, a.shape[1], at, b.data.ptr, kind, b_stride,
                a.data.ptr, kind, a_stride, at + 4,
                out.data.ptr, out_kind, n, adds, cublas.CUBLAS_GEMM_DEFAULT,
            )  # fmt: skip
        if status == _ALLOC_FAILED:
            raise MemoryError("cuBLAS has no memory for a product")
        cublas.check_status(status)


@cache
def _library(version: int) -> CDLL:
    """The library that CuPy has loaded, by its name."""
    found = CDLL(f"libcublas.so.{version}")
    pointer, number = c_void_p, c_int
    found.cublasGemmEx.argtypes = (
        pointer, *[number] * 5, pointer, pointer, number, number, pointer, number, number,
        pointer, pointer, *[number] * 4,
    )  # fmt: skip
    return found
