"""One model in memory that the processes of a machine share, and how workers reach it.

The memory is a file without a name (Linux's ``memfd_create``): it exists while a process has it
open or mapped, so a killed process leaves nothing behind. Another process of the same user opens it
as ``/proc/PID/fd/FD`` of any process that has it open, not only of its creator.
"""

from __future__ import annotations

import itertools
import mmap
import os
import secrets
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from daskxml.core.arrays import Array
from daskxml.core.errors import ClusterError, ConfigError
from daskxml.kernels import Kernels, get_kernels

_FLOAT_BYTES = 4
_PREFIX = "daskxml-"  # of the names by which /proc shows the memory
_TOKEN = secrets.token_hex(8)  # containers reuse process numbers
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class SharedHandle:
    """Where other processes of the machine find a shared model.

    Attributes
    ----------
    pid, fd
        A process that has it open, and the number of the open file there.
    size
        Floats of the model.
    name
        By which /proc knows the memory; "" is not checked. It tells when the process is another
        one than it was, or in another container: process numbers are used again.
    """

    pid: int
    fd: int
    size: int
    name: str = ""


class SharedModel:
    """A flat model that several processes of a machine read and change in place.

    `create` makes one and `open` maps one that another process has; this class's constructor is
    for them.

    Attributes
    ----------
    flat
        ``(size,)`` float32, aligned to 64 bytes; zero at first.

    Examples
    --------
    >>> model = SharedModel.create(3)
    >>> other = SharedModel.open(model.handle)
    >>> model.flat[1] = 7.0
    >>> other.flat
    array([0., 7., 0.], dtype=float32)
    >>> model.close()
    >>> other.close()
    """

    def __init__(self, flat: Array, fd: int | None, name: str) -> None:
        self.flat, self._fd, self._name = flat, fd, name
        self._close = weakref.finalize(self, os.close, fd) if fd is not None else None

    @classmethod
    def create(cls, size: int, kind: str = "model") -> SharedModel:
        """Allocate a model of ``size`` floats; private where the system cannot share it.

        Its ``kind`` is part of the name by which /proc shows it.

        Raises
        ------
        ConfigError
            If size is below 1.
        ClusterError
            If there is not enough memory.
        """
        if size < 1:
            raise ConfigError(f"a shared model of {size} numbers: must be at least 1")
        if not hasattr(os, "memfd_create"):
            return cls(get_kernels("cpu", 1).zeros(size), None, "")
        name = f"{_PREFIX}{kind}-{_TOKEN}-{os.getpid()}-{next(_numbers)}"
        try:
            fd = os.memfd_create(name, os.MFD_CLOEXEC)
        except OSError:  # forbidden in this container, say
            return cls(get_kernels("cpu", 1).zeros(size), None, "")
        try:
            os.ftruncate(fd, size * _FLOAT_BYTES)
            return cls(_mapped(fd, size), fd, name)
        except OSError as error:
            os.close(fd)
            raise ClusterError(
                f"no memory for a shared model of {size * _FLOAT_BYTES:,} bytes: {error.strerror}"
            ) from None

    @classmethod
    def open(cls, handle: SharedHandle) -> SharedModel:
        """Map the model that another process of this machine, of the same user, has open.

        Raises
        ------
        ClusterError
            If it is gone, or cannot be reached from here.
        """
        path = f"/proc/{handle.pid}/fd/{handle.fd}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise _unreachable(handle, error.strerror) from None
        try:
            _check(handle, fd)
            return cls(_mapped(fd, handle.size), fd, _name_of(fd))
        except OSError as error:
            os.close(fd)
            raise _unreachable(handle, error.strerror) from None
        except ClusterError:
            os.close(fd)
            raise

    @property
    def handle(self) -> SharedHandle:
        """Where other processes find it, while this one has it open.

        Raises
        ------
        ClusterError
            If it cannot be shared, or is closed.
        """
        if self._close is None or self._fd is None:
            raise ClusterError(
                "this system cannot share memory without a name (memfd_create, Linux 3.17): "
                "use one worker on the machine of the shared model"
            )
        if not self._close.alive:
            raise ClusterError("the shared model is closed here: ask another worker for it")
        return SharedHandle(os.getpid(), self._fd, int(self.flat.shape[0]), self._name)

    def is_found_by(self, handle: SharedHandle) -> bool:
        """Whether a handle leads to this memory still."""
        if self._fd is None or self._close is None or not self._close.alive:
            return False
        try:
            there = Path(f"/proc/{handle.pid}/fd/{handle.fd}").stat()
        except OSError:  # closed, or the process is gone
            return False
        return os.path.samestat(there, os.fstat(self._fd))

    def close(self) -> None:
        """Close the file: other processes cannot open it here any more; arrays stay valid."""
        if self._close is not None:
            self._close()


def _mapped(fd: int, size: int) -> Array:
    """The memory of an open file as an array, which keeps it alive."""
    return np.frombuffer(mmap.mmap(fd, size * _FLOAT_BYTES), np.float32)


def _name_of(fd: int) -> str:
    """The name of a file without a place: ``/memfd:NAME (deleted)`` in /proc."""
    target = str(Path(f"/proc/self/fd/{fd}").readlink())
    return target.removeprefix("/memfd:").removesuffix(" (deleted)")


def _check(handle: SharedHandle, fd: int) -> None:
    name, found_bytes = _name_of(fd), os.fstat(fd).st_size
    if not name.startswith(handle.name or _PREFIX) or found_bytes != handle.size * _FLOAT_BYTES:
        raise _unreachable(handle, "it holds something else")


def _unreachable(handle: SharedHandle, why: str | None) -> ClusterError:
    return ClusterError(
        f"the shared model cannot be opened by way of process {handle.pid} ({why}): workers that "
        "share it must run on one machine, in one container, as the same user"
    )


class ModelCopy:
    """A copy of a shared model, on which a worker steps batch by batch.

    Neither waits for others: what they write meanwhile may be in the copy or not, and an addition
    to the same number at the same moment may be lost, as Hogwild allows. On a CPU a batch costs
    seven passes over the model's size beside the step: two copies, and the change in one pass over
    three.

    Parameters
    ----------
    kernels
        Of the device; on a CPU all of their threads copy and add.
    flat
        ``(size,)`` float32 on the device: the copy, which steps change in place.
    model
        The shared one.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.kernels import get_kernels
    >>> from daskxml.worker.shared_model import SharedModel
    >>> model, flat = SharedModel.create(2), np.zeros(2, np.float32)
    >>> copy = ModelCopy(get_kernels("cpu", 1), flat, model)
    >>> copy.pull()
    >>> flat[0] += 1.0
    >>> model.flat[:] = 5.0  # another worker, meanwhile
    >>> copy.push()
    >>> model.flat
    array([6., 5.], dtype=float32)
    """

    def __init__(self, kernels: Kernels, flat: Array, model: SharedModel) -> None:
        self._kernels, self._flat, self._model = kernels, flat, model.flat
        self._here = kernels if kernels.name == "cpu" else get_kernels("cpu", 1)
        self._before = kernels.zeros(flat.shape)

    def pull(self) -> None:
        """Copy the model before a batch."""
        self._kernels.copy(self._flat, self._kernels.to_device(self._model))
        self._kernels.copy(self._before, self._flat)

    def push(self) -> None:
        """Add the copy's changes since `pull` to the model, after a batch."""
        kernels, before = self._kernels, self._before
        if kernels is self._here:
            kernels.add_two(self._model, self._flat, 1.0, before, -1.0)
        else:
            kernels.axpby(before, self._flat, 1.0, before, -1.0)
            self._here.add_scaled(self._model, kernels.to_host(before), 1.0)
