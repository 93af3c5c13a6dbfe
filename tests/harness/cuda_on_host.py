"""The CUDA kernels where there is no GPU: the same sources, compiled for the host.

:class:`HostDevice` stands in for the GPU: its arrays are a kind of their own, filled with rubbish
and fenced, and every launch is checked against the kernel's parameters.
"""

import ctypes
import fcntl
import platform
import shutil
import subprocess
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial, wraps
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from weakref import finalize

import numpy as np
import pytest

from daskxml.core.arrays import Csr, Partition, Segment
from daskxml.core.errors import ConfigError
from daskxml.kernels import get_kernels
from daskxml.kernels.cuda.device import EVERY_GPU, NULL, aligned, cuda_source, kernel_names
from daskxml.kernels.cuda.kernels import CudaKernels
from daskxml.kernels.operands import orientation

COMPILER = shutil.which("g++") or shutil.which("clang++")
# The order in which threads of a block take turns: one after the other, or at random; or warp by
# warp, each as far as it gets, from the last or from the first.
FORWARD, BACKWARD, SHUFFLED, AHEAD = 0, 1, 2, 3
_PROBLEMS = ("", "threads wait for others that never come", "a warp operation lacks lanes")
_ROWS = Csr, Partition, Segment
SOURCE = cuda_source((*EVERY_GPU, "fused"))
_FENCE, _RUBBISH = 64, 0xC3  # bytes on both sides of every array; what they, and new arrays, hold


# The library of these sources stays here for other processes; `make clean` removes it.
FOLDER = Path(__file__).parents[2] / "build/cuda-on-host"
BUILT = ""  # the library's path, where another process has said it


@cache
def build():
    """Compile the sources, unless a process has done so since they changed; return the path."""
    entries = "\n".join(f"EMULATE({name})" for name in kernel_names(SOURCE))
    shim = Path(__file__).with_name("cuda_shim.h").read_text()
    source = "\n".join((shim, SOURCE, entries))
    command = [COMPILER, "-std=c++17", "-O1", "-w", "-fPIC", "-shared"]
    name = sha256("\n".join((*command, platform.machine(), source)).encode()).hexdigest()
    path = FOLDER / name[:16] / "kernels.so"
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # others wait for it instead of doing the same
        if not path.exists():
            (path.parent / "kernels.cpp").write_text(source)
            subprocess.run([*command, "kernels.cpp", "-o", "new.so"], cwd=path.parent, check=True)
            path.with_name("new.so").replace(path)
    return str(path)


@cache
def library():
    """The kernels, compiled."""
    loaded = ctypes.CDLL(BUILT or build())
    for name in kernel_names(SOURCE):
        getattr(loaded, f"signature_{name}").restype = ctypes.c_char_p
    return loaded


@cache
def parameters(name):
    """Return the kernel's parameters as NumPy writes types, with a star for pointers."""
    return getattr(library(), f"signature_{name}")().decode().split()


class DeviceArray(np.ndarray):
    """An array that only the device may read: the host would have to wait for it, and say so.

    It has what `daskxml.transport.channels.protocol` uses of CuPy's.
    """

    __cuda_array_interface__ = MappingProxyType({"version": 3})
    device = SimpleNamespace(synchronize=lambda: None)

    def get(self):
        return np.array(self, subok=False)

    def set(self, x):
        self[...] = x

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        raise AssertionError(f"the host computes {ufunc.__name__} with a device's array")

    def __array_function__(self, function, types, operands, options):
        raise AssertionError(f"the host calls {function.__name__} with a device's array")

    def __getitem__(self, key):
        found = super().__getitem__(key)
        assert isinstance(found, DeviceArray), "the host reads a device's array"
        return found


def _bare(array):
    """The same memory, for the device itself."""
    return array.view(np.ndarray)


def recorded(method):
    """A method whose calls are noted, not done, while a step is captured."""

    @wraps(method)
    def call(self, *arguments):
        if self._recorded is None:
            method(self, *arguments)
        else:
            self._recorded.append((partial(method, self), arguments))

    return call


class HostDevice:
    """Implements `daskxml.kernels.cuda.device.CudaDevice` by running the kernels on the host.

    Parameters
    ----------
    order
        Of the threads of a block.
    budget_bytes
        What its memory holds; 0: as much as is asked for. Beyond, it raises `MemoryError`.
    """

    has_fused_kernels = True

    def __init__(self, order=FORWARD, budget_bytes=0):
        self.order, self.queued, self.downloads = order, Counter(), 0  # what was queued, by name
        self.ranges = Counter()  # by name
        self.budget_bytes, self.used_bytes, self.allocations = budget_bytes, 0, 0
        self.peak_bytes = 0
        self._reserved = self._lent = 0
        self._sent = []  # arrays that are on their way, and what they will hold
        self._recorded = None  # calls, while a step is captured

    def empty(self, shape, dtype):
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        self._take(nbytes)
        self.allocations += 1
        made = _fenced(shape, dtype)
        root = made
        while root.base is not None:
            root = root.base
        finalize(root, self._take, -nbytes)
        return made

    def _take(self, nbytes):
        if self.budget_bytes and nbytes > 0 and self.used_bytes + nbytes > self.budget_bytes:
            raise MemoryError(f"{nbytes} bytes: {self.used_bytes} of {self.budget_bytes} are used")
        self.used_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def free_bytes(self):
        return max(0, self.budget_bytes - self.used_bytes) if self.budget_bytes else 1 << 40

    def release(self):
        self._take(-self._reserved)
        self._reserved = 0

    def reserve(self, nbytes):
        if nbytes > self._reserved:
            self._take(nbytes - self._reserved)
            self._reserved = nbytes

    def scratch(self):
        """Arrays of their own, so that they are fenced; what was reserved must have room."""
        self._lent = 0

        def make(shape, dtype):
            nbytes = aligned(int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize)
            if self._lent + nbytes > self._reserved:
                return self.empty(shape, dtype)
            self._lent += nbytes
            return _fenced(shape, dtype)

        return make

    @property
    def is_recording(self):
        return self._recorded is not None

    def capture(self, work):
        """Do nothing but note what would be done, with the arrays that it would be done to."""
        self._recorded = recorded = []
        try:
            work()
        finally:
            self._recorded = None
        return recorded

    def replay(self, captured):
        queued = self.queued + Counter(["graph"])
        for call, arguments in captured:
            call(*arguments)
        self.queued = queued

    @recorded
    def clear(self, out):
        assert self.holds(out)
        assert out.flags.c_contiguous
        self.queued["clear"] += 1
        out[...] = 0

    @recorded
    def copy(self, out, x):
        assert self.holds(out)
        assert self.holds(x)
        assert out.shape == x.shape
        assert out.flags.c_contiguous
        assert x.flags.c_contiguous
        self.queued["copy"] += 1
        out[...] = x

    def write(self, out, value):
        assert out.shape == value.shape
        assert out.dtype == value.dtype
        assert not self.is_recording
        self.queued["write"] += 1
        out[...] = value

    def holds(self, value):
        return isinstance(value, DeviceArray)

    def upload(self, value):
        out = self.empty(value.shape, value.dtype)
        out[...] = value
        return out

    def upload_async(self, value):
        """Rubbish until the upload is awaited."""
        out = self.empty(value.shape, value.dtype)
        self._sent.append((out, np.array(value)))
        return out

    def await_uploads(self):
        for out, value in self._sent:
            out[...] = value
        self._sent.clear()

    def download(self, value):
        assert not self.is_recording
        assert self.holds(value)
        self.downloads += 1
        return np.array(value, subok=False)

    @recorded
    def launch(self, name, blocks, threads, *arguments):
        if min(blocks) == 0:
            return
        self.queued[name] += 1
        wanted = parameters(name)
        assert len(arguments) == len(wanted), f"{name}: {len(arguments)} of {len(wanted)} arguments"
        assert max(blocks[1:], default=0) < 2**16
        cells = [self._cell(name, *pair) for pair in zip(arguments, wanted, strict=True)]
        pointers = (ctypes.c_void_p * len(cells))(*(cell.ctypes.data for cell in cells))
        sizes = (ctypes.c_uint * 6)(*_three(blocks), *_three(threads))
        problem = getattr(library(), f"run_{name}")(pointers, sizes, self.order)
        assert not problem, f"{name}: {_PROBLEMS[problem]}"
        for array in arguments:
            if isinstance(array, DeviceArray):
                assert _is_fenced(array), f"{name} wrote past the end of an array"

    def _cell(self, name, argument, wanted):
        """One argument as the launch passes it: a number, or an address."""
        if argument is NULL:
            assert wanted[0] == "*", name
            return np.array([0], np.uintp)
        if wanted[0] != "*":
            assert isinstance(argument, np.generic), f"{name}: {argument!r} is no NumPy number"
            assert argument.dtype.str[1:] == wanted, f"{name}: {argument.dtype}, not {wanted}"
            return np.array([argument])
        assert self.holds(argument), f"{name}: an array of the host"
        assert argument.flags.c_contiguous, name
        assert argument.dtype.str[1:] == wanted[1:], f"{name}: {argument.dtype}, not {wanted}"
        return np.array([argument.ctypes.data], np.uintp)

    @recorded
    def gemm(self, out, a, b, alpha, beta, factors=None):
        """Read memory as BLAS does, by columns, whatever the arrays' own shapes say."""
        if factors is not None:
            assert self.holds(factors)
            alpha, beta = (float(factor) for factor in _bare(factors))
        self.queued["gemm"] += 1
        assert a.dtype == b.dtype
        assert out.dtype == np.float32 or a.dtype == out.dtype == np.float16
        (m, n), k = out.shape, a.shape[1]
        (flips_a, a_stride), (flips_b, b_stride) = orientation(a), orientation(b)
        left = _columns(b, b_stride, *((k, n) if flips_b else (n, k)))
        right = _columns(a, a_stride, *((m, k) if flips_a else (k, m)))
        left, right = left.astype(np.float32), right.astype(np.float32)
        result = alpha * (left.T if flips_b else left) @ (right.T if flips_a else right)
        columns = _columns(out, n, n, m)
        columns[...] = result + (beta * columns if beta else 0.0)

    def time_range(self, name):
        self.ranges[name] += 1
        return nullcontext()

    def close(self):
        pass


def _fenced(shape, dtype):
    """A new array of rubbish between rubbish."""
    kind = np.dtype(dtype)
    inner = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    raw = np.full(inner + 3 * _FENCE, _RUBBISH, np.uint8)
    start = _FENCE + -raw.ctypes.data % 64
    return raw[start : start + inner].view(kind).reshape(shape).view(DeviceArray)


def _three(sizes):
    return (*sizes, 1, 1, 1)[:3]


def _columns(array, stride, rows, columns):
    """The matrix at an array's first address, columns first, ``stride`` numbers apart."""
    assert stride >= rows
    item = array.itemsize
    return np.lib.stride_tricks.as_strided(_bare(array), (rows, columns), (item, stride * item))


def _is_fenced(array):
    """Whether the bytes around the memory that an array is part of are untouched."""
    raw = array
    while raw.base is not None:
        raw = raw.base
    inner = array
    while isinstance(inner.base, DeviceArray):
        inner = inner.base
    start = inner.ctypes.data - raw.ctypes.data
    sides = raw[:start], raw[start + inner.nbytes :]
    return all((side == _RUBBISH).all() for side in sides)


class HostCalls:
    """Kernels of a device for tests that hold NumPy arrays: they go there and come back.

    Parameters
    ----------
    make
        Makes the kernels, when the first of them is called.
    """

    def __init__(self, make):
        self._make, self._made = make, None

    @property
    def kernels(self):
        if self._made is None:
            self._made = self._make()
        return self._made

    def empty(self, shape, dtype="float32"):
        """A host array of rubbish."""
        out = np.empty(shape, dtype)
        out.view(np.uint8).reshape(-1)[:] = _RUBBISH if out.size else 0
        return out

    def __getattr__(self, name):
        function = getattr(self.kernels, name)
        if not callable(function):
            return function

        def call(*arguments, **options):
            there = {}  # the same host array is the same array there
            moved = [self._move(value, there) for value in arguments]
            result = function(*moved, **options)
            for here, array in there.values():
                if here.flags.writeable:
                    here[...] = self.kernels.to_host(array)
            return result

        return call

    def _move(self, value, there):
        if isinstance(value, np.ndarray):
            key = value.__array_interface__["data"][0], value.shape, value.strides
            if key not in there:
                there[key] = value, self._there(value)
            return there[key][1]
        if isinstance(value, tuple):
            return tuple(self._move(item, there) for item in value)
        if hasattr(value, "values") and hasattr(value, "skip_zero_rows"):
            values, ids = (self._move(item, {}) if item is not None else None
                           for item in (value.values, value.ids))  # fmt: skip
            return replace(value, values=values, ids=ids)
        return self.kernels.to_device(value) if isinstance(value, _ROWS) else value

    def _there(self, value):
        """A transposed view stays one, and one with gaps has gaps."""
        if value.ndim < 2 or value.flags.c_contiguous:
            return self.kernels.to_device(value)
        if value.T.flags.c_contiguous:
            return self.kernels.to_device(value.T).T
        return self.kernels.to_device(np.repeat(value, 2, axis=1))[:, ::2]


def emulated(order=FORWARD, budget_bytes=0):
    """The GPU's kernels, run on the host."""
    return CudaKernels(HostDevice(order, budget_bytes))


def gpu_kernels():
    """The GPU's kernels on a GPU, with products of float32."""
    return get_kernels("cuda", 1, exact=True)


def _why_no_gpu():
    try:
        gpu_kernels().close()
    except ConfigError as error:
        return error.message
    return ""


NO_GPU = _why_no_gpu()
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler: g++ or clang++")
needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU or "there is one")]
