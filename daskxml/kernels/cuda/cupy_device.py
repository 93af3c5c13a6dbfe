# ruff: noqa: D102 (the methods are documented once, in `daskxml.kernels.cuda.device.CudaDevice`)
"""A GPU through CuPy: the only module that imports it.

Each device has a stream for all of its work, and another for asynchronous uploads. Memory comes
from CuPy's allocator: its pool, or RMM's if that is set. The sources are compiled once for a GPU;
CuPy caches the result on disk. CuPy's own kernels, which need CUDA's headers, are not used.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from os import environ, getpid
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np

from daskxml.core.arrays import Array
from daskxml.core.errors import ConfigError
from daskxml.kernels.cuda.blas import WORKSPACE_BYTES, Blas
from daskxml.kernels.cuda.device import (
    CAPTURING,
    FUSED,
    Arena,
    MakeArray,
    Shape,
    cuda_source,
    kernel_names,
)
from daskxml.kernels.cuda.kernels import CudaKernels

_PINNED_BYTES = 1 << 24
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
    except ImportError as error:  # CuPy, or a library that it loads lazily
        problem = f"CuPy cannot be loaded ({error}): install cupy-cuda12x[ctk]"
    except RuntimeError as error:  # includes CuPy's driver errors
        problem = f"no GPU can be used ({error}): fix the driver"
    raise ConfigError(f'device "cuda": {problem}, {_REMEDY}')


class CupyDevice:
    """Implements :class:`daskxml.kernels.cuda.device.CudaDevice` for the current GPU.

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
        from cupyx.profiler import time_range

        self._time_range = time_range
        self._cupy, self._runtime = cupy, runtime
        self._arena, self._owner = Arena(self.empty, self._carve), get_ident()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._copies = cupy.cuda.Stream(non_blocking=True)
        self._module = cupy.RawModule(code=cuda_source(), options=("--std=c++17",))
        self._module.compile()  # now, not in the first step
        self._kernels: dict[str, Any] = {}
        self.has_fused_kernels = cupy.cuda.Device().compute_capability == "90"
        workspace = self.empty(WORKSPACE_BYTES, "uint8")  # all products take turns
        self._blas_of = partial(Blas, cublas, runtime, workspace=workspace, exact=exact)
        self._blas = self._blas_of(stream=self._stream.ptr)
        self._recording: Any = None  # stream, products: made when the first step is captured
        self._recorder, self._kept = 0, list[Any]()  # thread, and what its work uses
        few = self.empty((8, 8), "float32")
        self.gemm(few, few, few, 1.0, 0.0)  # cuBLAS loads its kernels now

    @property
    def is_recording(self) -> bool:
        return self._recorder != 0 and self._recorder == get_ident()

    def _queue(self, *used: Any) -> Any:
        """The stream for the calling thread's work, which uses these arrays."""
        if not self.is_recording:
            return self._stream
        self._kept += used
        return self._recording[0]

    def capture(self, work: Callable[[], object]) -> object | None:
        """As a CUDA graph, captured in a stream of its own: other threads go on in the usual one.

        Its memory is written in the order of that stream, where the graph is launched.
        """
        if self._recording is None:
            stream = self._cupy.cuda.Stream(non_blocking=True)
            self._recording = stream, self._blas_of(stream=stream.ptr)
        stream, self._kept, collects = self._recording[0], [], gc.isenabled()
        gc.disable()  # what it destroys may wait for the device
        try:
            with CAPTURING:
                stream.begin_capture()
                self._recorder = get_ident()
                try:
                    work()
                finally:
                    self._recorder = 0
                    graph = stream.end_capture()
        except RuntimeError:  # CUDA's: somebody else has waited for the device
            return None
        finally:
            if collects:
                gc.enable()
        return graph, self._kept

    def replay(self, captured: Any) -> None:
        captured[0].launch(self._stream)

    def _module_of(self, name: str) -> Any:
        """CuPy's compiler cannot be asked for ``sm_90a``; its cache is used all the same."""
        if name not in kernel_names(cuda_source(FUSED)):
            return self._module
        from cupy_backends.cuda.libs import nvrtc

        source, options = cuda_source(FUSED), ("--std=c++17", "-ftz=true", "-arch=sm_90a")
        folder = Path(environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")
        key = sha256(f"{nvrtc.getVersion()} {options} {source}".encode()).hexdigest()
        path = folder / f"daskxml-{key}.cubin"
        if not path.exists():
            program = nvrtc.createProgram(source, "fused.cu", (), ())
            nvrtc.compileProgram(program, options)
            folder.mkdir(parents=True, exist_ok=True)
            own = path.with_suffix(f".{getpid()}")
            own.write_bytes(nvrtc.getCUBIN(program))
            own.replace(path)
        return self._cupy.RawModule(path=str(path))

    def empty(self, shape: Shape, dtype: str) -> Array:
        with self._stream:
            return self._cupy.empty(shape, dtype)

    def _carve(self, block: Array, start: int, shape: Shape, dtype: str) -> Array:
        return self._cupy.ndarray(shape, dtype, block.data + start)

    def free_bytes(self) -> int:
        """The driver's free memory, and the unused part of the pool, CuPy's or RMM's."""
        free, _ = self._runtime.memGetInfo()
        unused = int(self._cupy.get_default_memory_pool().free_bytes())
        if (self._cupy.cuda.get_allocator().__module__ or "").startswith("rmm"):
            import rmm

            unused += unused_bytes(rmm.mr.get_current_device_resource())
        return int(free) + unused

    def release(self) -> None:
        self._stream.synchronize()
        self._arena.release()
        self._cupy.get_default_memory_pool().free_all_blocks()

    def reserve(self, nbytes: int) -> None:
        """For this thread: a parameter server may step in another thread at the same time."""
        self._arena.reserve(nbytes)
        self._owner = get_ident()

    def scratch(self) -> MakeArray:
        if get_ident() != self._owner:
            return self.empty
        self._arena.reset()
        return self._arena.take

    def clear(self, out: Array) -> None:
        if out.nbytes:
            self._runtime.memsetAsync(out.data.ptr, 0, out.nbytes, self._queue(out).ptr)

    def copy(self, out: Array, x: Array) -> None:
        if out.nbytes != x.nbytes:
            raise ValueError(f"copy: {x.nbytes} bytes into {out.nbytes}")
        kind = self._runtime.memcpyDeviceToDevice
        if out.nbytes:
            stream = self._queue(out, x)
            self._runtime.memcpyAsync(out.data.ptr, x.data.ptr, x.nbytes, kind, stream.ptr)

    def write(self, out: Array, value: Array) -> None:
        """From pageable memory: the driver has read it when the call returns."""
        place, kind = (out.data.ptr, value.ctypes.data), self._runtime.memcpyHostToDevice
        self._runtime.memcpyAsync(*place, value.nbytes, kind, self._stream.ptr)

    def holds(self, value: Array) -> bool:
        return isinstance(value, self._cupy.ndarray)

    def upload(self, value: Array) -> Array:
        """Through pinned memory unless it is large: CuPy caches that, up to twice as much.

        Either way the host's array has been read when this returns.
        """
        if value.nbytes <= _PINNED_BYTES:
            with self._stream:
                return self._cupy.asarray(value)
        out = self.empty(value.shape, str(value.dtype))
        self.write(out, value)
        self._stream.synchronize()
        return out

    def upload_async(self, value: Array) -> Array:
        """Through pinned memory, in its own stream, concurrently with work that is queued later.

        It waits for work that is queued already, which may still use the memory that is reused.
        """
        self._copies.wait_event(self._event(self._stream))
        with self._copies:
            return self._cupy.asarray(value)

    def await_uploads(self) -> None:
        self._stream.wait_event(self._event(self._copies))

    def _event(self, stream: Any) -> Any:
        """An event after all work that is in a stream now."""
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
            kernel = self._kernels[name] = self._module_of(name).get_function(name)
        kernel(blocks, threads, arguments, stream=self._queue(*arguments))

    def gemm(
        self, out: Array, a: Array, b: Array, alpha: float, beta: float,
        factors: Array | None = None,
    ) -> None:  # fmt: skip
        if out.size:
            is_usual = self._queue(out, a, b, factors) is self._stream
            blas = self._blas if is_usual else self._recording[1]
            blas.gemm(out, a, b, alpha, beta, factors)

    @contextmanager
    def time_range(self, name: str) -> Iterator[None]:
        """What is done within has this device's stream as the current one."""
        with self._stream, self._time_range(name):
            yield

    def close(self) -> None:
        self._copies.synchronize()
        self._stream.synchronize()


def unused_bytes(resource: Any) -> int:
    """Return the unused bytes of an RMM memory resource's pool; 0 without a pool.

    The driver counts all of a pool as used.

    Parameters
    ----------
    resource
        ``rmm.mr.get_current_device_resource()``: adaptors over a pool. How much is
        allocated is known only if one of them counts (dask-cuda's ``rmm_track_allocations``);
        otherwise the whole pool counts as unused.

    Examples
    --------
    >>> from types import SimpleNamespace as Resource
    >>> pool = Resource(pool_size=lambda: 100)
    >>> unused_bytes(pool), unused_bytes(Resource(upstream_mr=None))
    (100, 0)
    >>> unused_bytes(Resource(get_allocated_bytes=lambda: 30, upstream_mr=pool))
    70
    """
    allocated = 0
    while resource is not None and not hasattr(resource, "pool_size"):
        if hasattr(resource, "get_allocated_bytes"):
            allocated = int(resource.get_allocated_bytes())
        elif hasattr(resource, "allocation_counts"):
            allocated = int(resource.allocation_counts.current_bytes)
        resource = getattr(resource, "upstream_mr", None)
    return 0 if resource is None else max(0, int(resource.pool_size()) - allocated)


def new_bytes(size: int) -> Array:
    """New memory on this process's GPU, ``(size,)`` uint8."""
    import cupy

    return cupy.empty(size, np.uint8)


def to_pinned(array: Any) -> np.ndarray[Any, Any]:
    """Copy an array from a GPU to page-locked memory of CuPy's pool, and wait for it.

    64 MiB take 1.3 ms into it on an H100, and 25 into new pages (``benchmarks/gpu/memory.py``).

    Parameters
    ----------
    array
        C-contiguous, on a GPU.

    Examples
    --------
    ::

        sent = to_pinned(cupy.ones(1 << 20, "float32"))
    """
    from cupyx import empty_pinned

    out: np.ndarray[Any, Any] = empty_pinned(array.shape, array.dtype)
    array.get(out=out)
    return out
