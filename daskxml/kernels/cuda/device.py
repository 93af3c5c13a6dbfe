# ruff: noqa: D102 (kernels are documented once, in the Protocol)
"""What the CUDA kernels need: a device, their sources, and arrays beside their operands.

`daskxml.kernels.cuda.cupy_device` implements the device for a GPU; the tests have another
implementation, which runs the same sources on the host, so that they are checked without a GPU as
well. The sources, in `src` beside this module, use no headers and only what a small shim for a
host compiler can offer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from threading import Lock
from typing import Any, Protocol, TypeVar
from weakref import finalize

import numpy as np

from daskxml.core.arrays import Array
from daskxml.kernels.operands import relocate

T = TypeVar("T")
Shape = int | tuple[int, ...]
MakeArray = Callable[[Shape, str], Array]
NULL = np.uintp(0)  # a null pointer
EVERY_GPU = (
    "prelude", "half", "flat", "dense", "sparse", "group", "labels", "targets", "ranks", "optim",
    "tree",
)  # fmt: skip
FUSED = "prelude", "half", "fused"
_KERNEL = re.compile(r"^KERNEL (?:BOUNDS\(.*?\) )?(\w+)\(", re.MULTILINE)
_ALIGNED_BYTES = 256  # as CUDA's own allocations are
_GRAIN_BYTES = 1 << 20
_SLOTS = 1024  # deferred sums at a time
THREADS = 256  # of a block
_MOST_BLOCKS = 1 << 14  # more than any GPU runs at the same time
CAPTURING = Lock()  # whoever waits for a whole device takes it: that would end a capture


class CudaDevice(Protocol):
    """Memory and a queue of work, done in order; only ``download`` synchronizes.

    Attributes
    ----------
    has_fused_kernels
        Whether the kernels of ``cuda_source(FUSED)`` run on it.
    """

    has_fused_kernels: bool

    def empty(self, shape: Shape, dtype: str) -> Array:
        """A new array, aligned to 64 bytes.

        Raises
        ------
        MemoryError
            If the device does not have enough memory.
        """

    def free_bytes(self) -> int:
        """How much can still be allocated."""

    def release(self) -> None:
        """Free reserved memory and cached memory that is not in use."""

    def reserve(self, nbytes: int) -> None:
        """Allocate memory for so many bytes of temporary arrays."""

    def scratch(self) -> MakeArray:
        """An allocator of temporary arrays like `empty`, reusing the memory of the call before."""

    def clear(self, out: Array) -> None:
        """``out = 0``, contiguous."""

    def copy(self, out: Array, x: Array) -> None:
        """``out = x``, both on the device and contiguous."""

    def holds(self, value: Array) -> bool:
        """Whether an array is on the device."""

    def upload(self, value: Array) -> Array:
        """A copy of a host array on the device; the host's may be changed afterwards."""

    def upload_async(self, value: Array) -> Array:
        """As `upload`, concurrently with queued work: readable after `await_uploads`.

        The array must be kept until the work that reads it is queued.
        """

    def await_uploads(self) -> None:
        """Make work that is queued from now on wait for asynchronous uploads."""

    def download(self, value: Array) -> Array:
        """A device array as a NumPy array; waits for the work queued before."""

    def launch(
        self, name: str, blocks: tuple[int, ...], threads: tuple[int, ...], *arguments: Any
    ) -> None:
        """Run a kernel over contiguous arrays and NumPy scalars; nothing where a size is 0."""

    def gemm(
        self, out: Array, a: Array, b: Array, alpha: float, beta: float,
        factors: Array | None = None,
    ) -> None:  # fmt: skip
        """``out = alpha * a @ b + beta * out``, contiguous; operands may be transposed views.

        ``factors (2,)`` float32 on the device are alpha and beta in the place of the numbers.
        """

    def write(self, out: Array, value: Array) -> None:
        """``out = value``, a contiguous array of the host, which may be changed afterwards."""

    @property
    def is_recording(self) -> bool:
        """Whether what the calling thread queues is recorded, in `capture`."""

    def capture(self, work: Callable[[], object]) -> object | None:
        """Record what ``work`` queues, instead of doing it; return what `replay` takes, or None.

        None if the device refuses, as it may while other threads wait for it.

        The work may not read the host's memory later, nor wait for the device. The arrays that it
        uses are kept as long as what is returned.
        """

    def replay(self, captured: Any) -> None:
        """Queue everything that was recorded, at once."""

    def time_range(self, name: str) -> AbstractContextManager[None]:
        """A range of this name in what a profiler records (NVTX)."""

    def close(self) -> None:
        """Wait for the queued work."""


@cache
def cuda_source(files: tuple[str, ...] = EVERY_GPU) -> str:
    """The source of kernels: `EVERY_GPU`'s, or those of ``FUSED``, for ``sm_90a`` alone.

    Examples
    --------
    >>> "KERNEL sparse_forward" in cuda_source()
    True
    """
    folder = resources.files("daskxml.kernels.cuda") / "src"
    return "\n".join((folder / f"{name}.cu").read_text("utf-8") for name in files)


def kernel_names(source: str) -> list[str]:
    """The names of a source's kernels, in order.

    Examples
    --------
    >>> kernel_names(cuda_source())[0]
    'scale'
    """
    return _KERNEL.findall(source)


def aligned(nbytes: int) -> int:
    """The bytes that an array takes in an arena.

    Examples
    --------
    >>> aligned(0), aligned(1), aligned(256)
    (0, 256, 256)
    """
    return -(-nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES


class Arena:
    """A block of memory for temporary arrays, all of which is reused after `reset`.

    Work that was queued before `reset` may still use its arrays: the queue is in order, so work
    that reuses the memory runs later.

    Parameters
    ----------
    make
        Allocates an array; the block is one of uint8.
    carve
        Makes an array of a block's bytes from a place on.

    Examples
    --------
    >>> def carve(block, start, shape, dtype):
    ...     return np.ndarray(shape, dtype, block.data, start)
    >>> arena = Arena(lambda shape, dtype: np.zeros(shape, dtype), carve)
    >>> arena.reserve(1000)
    >>> first, second = arena.take((2, 3), "float32"), arena.take(4, "int64")
    >>> arena.reset()
    >>> np.shares_memory(first, arena.take(1, "uint8")), first.shape, second.dtype.name
    (True, (2, 3), 'int64')
    """

    def __init__(self, make: MakeArray, carve: Callable[[Array, int, Shape, str], Array]) -> None:
        self._make, self._carve, self._used = make, carve, 0
        self._block: Array = None

    @property
    def nbytes(self) -> int:
        """Size of the block."""
        return 0 if self._block is None else int(self._block.shape[0])

    def reserve(self, nbytes: int) -> None:
        """Grow the block to at least so many bytes; the old one is freed before.

        Raises
        ------
        MemoryError
            If the device does not have enough memory.
        """
        if nbytes > self.nbytes:
            self._block = None
            self._block = self._make(-(-nbytes // _GRAIN_BYTES) * _GRAIN_BYTES, "uint8")

    def release(self) -> None:
        """Free the block."""
        self._block = None

    def reset(self) -> None:
        """Reuse the whole block."""
        self._used = 0

    def take(self, shape: Shape, dtype: str) -> Array:
        """A new aligned array; allocated separately where the block is full."""
        size = shape if isinstance(shape, int) else math.prod(shape)
        start, nbytes = self._used, size * np.dtype(dtype).itemsize
        if self._block is None or start + nbytes > self.nbytes:
            return self._make(shape, dtype)
        self._used = start + aligned(nbytes)
        return self._carve(self._block, start, shape, dtype)


@dataclass(slots=True)
class Deferred:
    """A sum on the device; converting it to float synchronizes.

    Attributes
    ----------
    place
        ``(1,)`` float64 on the device, where kernels add to it; 0 at first.
    """

    sums: DeferredSums
    place: Array
    value: float | None = None

    def __float__(self) -> float:
        """The sum; waits for the work queued before."""
        if self.value is None:
            self.sums.read()
        assert self.value is not None
        return self.value


class DeferredSums:
    """Deferred sums in one array, read together in one copy.

    Examples
    --------
    `daskxml.kernels.cuda.dense.CudaDense.deferred_sum` uses one::

        loss = sums.new()
        device.launch("add_sum", (1,), (32,), loss.place, x, np.float64(1), np.int64(x.size))
        mean = float(loss) / rows
    """

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._places: Array = None
        self._open: list[Deferred] = []
        self.recorded: Array = None  # ``(1,)``: where a captured step has its sum

    @property
    def nbytes(self) -> int:
        """Bytes of the array, allocated or not yet."""
        return 8 * _SLOTS

    def reserve(self) -> None:
        """Allocate the array."""
        if self._places is None:
            self._places = self._device.empty(_SLOTS, "float64")

    def new(self) -> Deferred:
        """A new sum, 0; with too many open ones, synchronizes."""
        if self._device.is_recording:
            self._device.clear(self.recorded)
            return Deferred(self, self.recorded)
        if len(self._open) == _SLOTS:
            self.read()
        self.reserve()
        if not self._open:
            self._device.clear(self._places)
        place = len(self._open)
        self._open.append(Deferred(self, self._places[place : place + 1]))
        return self._open[-1]

    def read(self) -> None:
        """Synchronize, and give all open sums their values."""
        values = self._device.download(self._places[: len(self._open)])
        for deferred, value in zip(self._open, values.tolist(), strict=True):
            deferred.value = value
        self._open.clear()


def grid(items: int) -> tuple[tuple[int], tuple[int]]:
    """Blocks and threads for an elementwise kernel.

    Examples
    --------
    >>> grid(257)
    ((2,), (256,))
    """
    return (min(_MOST_BLOCKS, -(-items // THREADS)),), (THREADS,)


class DeviceKernels:
    """What the kernels of all families have in common."""

    def __init__(self, device: CudaDevice) -> None:
        self._device, self._deferred = device, DeferredSums(device)
        self._host_copies: dict[int, Array] = {}  # of uploaded arrays, as long as those exist
        self._zeroed: dict[str, Array] = {}

    def empty(self, shape: Shape, dtype: str = "float32") -> Array:
        return self._device.empty(shape, dtype)

    def zeros(self, shape: Shape, dtype: str = "float32") -> Array:
        out = self._device.empty(shape, dtype)
        self._device.clear(out)
        return out

    def to_device(self, value: T) -> T:
        """Host copies of int64 arrays are kept: they are row numbers and offsets."""
        return relocate(value, lambda array: self._moved(array, self._device.upload))

    def to_host(self, value: T) -> T:
        return relocate(value, self._download)

    def to_device_async(self, value: T) -> T:
        return relocate(value, lambda array: self._moved(array, self._device.upload_async))

    def _moved(self, array: Array, move: Callable[[Array], Array]) -> Array:
        if self._device.holds(array):
            return array
        there = move(np.ascontiguousarray(array))
        if array.dtype == np.int64:
            self._host_copies[id(there)] = array.copy()
            finalize(there, self._host_copies.pop, id(there), None)
        return there

    def _download(self, array: Array) -> Array:
        return self._device.download(array) if self._device.holds(array) else np.asarray(array)

    def _each(self, name: str, items: int, *operands: Any) -> None:
        """Run an elementwise kernel, whose last parameter is the number of items."""
        self._device.launch(name, *grid(items), *operands, np.int64(items))

    def _zeros_of(self, name: str, size: int, dtype: str) -> Array:
        """At least ``size`` zeros in scratch memory of this name, to be zero again after use."""
        array = self._zeroed.get(name)
        if array is None or array.shape[0] < size:
            array = self._zeroed[name] = self.zeros(max(1, size), dtype)
        return array

    def host_copy(self, array: Array) -> Array:
        """An array of row numbers or offsets, without synchronizing where it is from the host."""
        if not self._device.holds(array):
            return array
        copy = self._host_copies.get(id(array))
        return self._device.download(array) if copy is None else copy
