"""The hardware of this machine: its cores, its memory, and its NVIDIA GPUs.

GPUs are found through their driver; neither CUDA nor CuPy is loaded. The driver comes with
``nvidia-smi``, which lists GPUs and the slices of those in MIG mode (multi-instance GPU: one GPU
partitioned into several that share nothing), and with ``libcuda``, which states the newest CUDA
version that the driver supports.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
CUPY = {12: "cupy-cuda12x", 13: "cupy-cuda13x"}  # by CUDA's major version
_DRIVERS = {12: "525", 13: "580"}  # the oldest for each major version of CUDA
_DRIVER_TIMEOUT_S = 30.0  # the first call after a boot initialises the driver
_CGROUP_FILES = {  # by the controllers that /proc names: a limit, what is used, and of it by files
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
_QUERY = "index,uuid,name,memory.total,driver_version"


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_name() -> str:
    """Return the model name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def memory_bytes() -> int:
    """Return the size of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_memory_bytes() -> int:
    """Return the memory that processes here can still have: of the machine, and in their cgroups.

    Examples
    --------
    >>> 0 < free_memory_bytes() < memory_bytes()
    True
    """
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return min(int(fields["MemAvailable"].split()[0]) << 10, *cgroup_rooms())


def cgroup_rooms(mounts: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> list[int]:
    """Return what is left below each limit of this process's control groups, of both versions.

    Pages of files that were not used lately can be had again.
    """
    rooms = [1 << 62]
    for line in Path(own).read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top, names = Path(mounts, controllers), _CGROUP_FILES[controllers]
        folder = top / path.lstrip("/")
        for each in [folder, *folder.parents]:
            with contextlib.suppress(OSError, ValueError, KeyError):  # "max", or no such file
                limit, used = (int((each / name).read_text()) for name in names[:2])
                facts = dict(row.split() for row in (each / "memory.stat").read_text().splitlines())
                rooms.append(max(0, limit - used + int(facts[names[2]])))
            if each == top:
                break
    return rooms


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU, or a slice of one.

    Attributes
    ----------
    index
        The driver's number of the GPU, or of the GPU that the slice is part of.
    uuid
        ``GPU-...``, or ``MIG-...`` for a slice.
    name
        Of the product; for a slice, followed by its profile.
    memory_bytes
        Total, as the driver reports it; for a slice, as the name of its profile says.
    driver
        Version of the driver.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int
    driver: str

    @property
    def is_slice(self) -> bool:
        """Whether this is a slice of a GPU in MIG mode."""
        return self.uuid.startswith("MIG-")


@functools.cache
def find_gpus() -> tuple[Gpu, ...]:
    """Return every GPU of this machine; a partitioned GPU is replaced by its slices.

    Empty if there is no driver, or it does not answer.
    """
    table = _nvidia_smi(f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits")
    return parse_gpus(table, _nvidia_smi("-L")) if table else ()


def parse_gpus(table: str, listing: str) -> tuple[Gpu, ...]:
    """Return the GPUs in the output of ``nvidia-smi``.

    Parameters
    ----------
    table
        CSV of ``index, uuid, name, memory.total [MiB], driver_version``.
    listing
        Output of ``nvidia-smi -L``.

    Examples
    --------
    >>> table = "0, GPU-5c89, NVIDIA A100-SXM4-40GB, 40960, 550.54.15"
    >>> parse_gpus(table, "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5c89)")[0].name
    'NVIDIA A100-SXM4-40GB'
    >>> cut = parse_gpus(table, '''GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5c89)
    ...   MIG 3g.20gb     Device  0: (UUID: MIG-a1)
    ...   MIG 3g.20gb     Device  1: (UUID: MIG-b2)''')
    >>> [(gpu.uuid, gpu.memory_bytes >> 30) for gpu in cut]
    [('MIG-a1', 20), ('MIG-b2', 20)]
    """
    slices = _slices(listing)
    found: list[Gpu] = []
    for line in table.strip().splitlines():
        index, uuid, rest = (part.strip() for part in line.split(",", 2))
        name, mebibytes, driver = (part.strip() for part in rest.rsplit(",", 2))
        size = int(mebibytes) << 20 if mebibytes.isdecimal() else 0
        whole = Gpu(index=int(index), uuid=uuid, name=name, memory_bytes=size, driver=driver)
        found += [_slice_of(whole, *one) for one in slices.get(uuid, [])] or [whole]
    return tuple(found)


def _slices(listing: str) -> dict[str, list[tuple[str, str]]]:
    """Return the profile and UUID of every slice, by the UUID of its GPU."""
    found: dict[str, list[tuple[str, str]]] = {}
    parent = ""
    for line in listing.splitlines():
        uuid = re.search(r"\(UUID: ([^)]+)\)", line)
        profile = re.match(r"\s+MIG\s+(\S+)\s+Device", line)
        if uuid and profile:
            found.setdefault(parent, []).append((profile[1], uuid[1]))
        elif uuid:
            parent = uuid[1]
    return found


def _slice_of(whole: Gpu, profile: str, uuid: str) -> Gpu:
    size = re.search(r"(\d+)gb", profile)
    memory_bytes = int(size[1]) << 30 if size else 0
    return replace(whole, uuid=uuid, name=f"{whole.name} MIG {profile}", memory_bytes=memory_bytes)


def visible_gpus(gpus: Sequence[Gpu], variable: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` makes visible, in its order.

    As in CUDA, the list ends at the first entry that matches no GPU. The number of a partitioned
    GPU stands for its first slice.

    Examples
    --------
    >>> gpus = [Gpu(index=i, uuid=f"GPU-{i}", name="", memory_bytes=0, driver="") for i in (0, 1)]
    >>> [gpu.index for gpu in visible_gpus(gpus, "1,0")], visible_gpus(gpus, "-1,0")
    ([1, 0], ())
    >>> visible_gpus(gpus, None) == tuple(gpus), visible_gpus(gpus, "")
    (True, ())
    """
    if variable is None:
        return tuple(gpus)
    found: list[Gpu] = []
    for entry in variable.split(","):
        gpu = _named(gpus, entry.strip())
        if gpu is None:
            break
        found.append(gpu)
    return tuple(found)


def _named(gpus: Iterable[Gpu], entry: str) -> Gpu | None:
    if entry.isdecimal():
        matching = (gpu for gpu in gpus if gpu.index == int(entry))
    elif entry.startswith(("GPU-", "MIG-")):
        matching = (gpu for gpu in gpus if gpu.uuid.startswith(entry))
    else:
        return None
    return next(matching, None)


def usable_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that this process may use."""
    return visible_gpus(find_gpus(), os.environ.get(VISIBLE))


def gpu_models() -> list[str]:
    """Return the product names of the GPUs as the kernel module lists them, without a process."""
    files = Path("/proc/driver/nvidia/gpus").glob("*/information")
    lines = (line for file in sorted(files) for line in file.read_text().splitlines())
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model")]


@functools.cache
def driver_cuda() -> tuple[int, int]:
    """Return the newest CUDA that the driver supports, (major, minor); (0, 0) without a driver."""
    version = ctypes.c_int(0)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return version.value // 1000, version.value % 1000 // 10


def installed_cupy() -> tuple[int, ...]:
    """Return the major versions of CUDA that CuPy is installed for: one, unless there is a clash.

    A package named ``cupy`` is conda's or was built from source: it fits this machine's driver.
    """
    present = versions(["cupy", *CUPY.values()])
    found = tuple(cuda for cuda, name in CUPY.items() if name in present)
    return found or ((fitting_cuda(driver_cuda()),) if present else ())


def cuda_problem(driver: tuple[int, int], cupy: Sequence[int]) -> str:
    """Explain why the CUDA packages cannot use this machine's GPUs, and the remedy; "" if they can.

    Parameters
    ----------
    driver
        See `driver_cuda`.
    cupy
        See `installed_cupy`.

    Examples
    --------
    >>> cuda_problem((12, 4), [12])
    ''
    >>> cuda_problem((12, 4), [13])
    "the driver runs CUDA 12.4, older than the installed packages' CUDA 13: pip uninstall
    cupy-cuda13x, then pip install 'daskxml[cuda12]'; or update the driver to 580 or newer"
    """
    extra = f"pip install 'daskxml[cuda{fitting_cuda(driver)}]'"
    if not cupy:
        return f"CuPy is not installed: {extra}"
    if len(cupy) > 1:
        wrong = CUPY[next(cuda for cuda in cupy if cuda != fitting_cuda(driver))]
        return f"CuPy is installed for two versions of CUDA: pip uninstall {wrong}"
    (cuda,) = cupy
    if driver == (0, 0):
        return f"the driver's libcuda is missing: install the driver {_DRIVERS[cuda]} or newer"
    if driver[0] >= cuda:
        return ""
    older = f"pip uninstall {CUPY[cuda]}, then {extra}; or " if driver[0] in CUPY else ""
    return (
        f"the driver runs CUDA {driver[0]}.{driver[1]}, older than the installed packages' CUDA "
        f"{cuda}: {older}update the driver to {_DRIVERS[cuda]} or newer"
    )


def fitting_cuda(driver: tuple[int, int]) -> int:
    """Return the newest major version of CUDA that the driver supports and packages exist for.

    Examples
    --------
    >>> fitting_cuda((12, 4)), fitting_cuda((14, 0)), fitting_cuda((0, 0))
    (12, 13, 12)
    """
    return max((cuda for cuda in CUPY if cuda <= driver[0]), default=min(CUPY))


def _nvidia_smi(*options: str) -> str:
    """Return the output of ``nvidia-smi``; "" if there is none, or it fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, *options]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_DRIVER_TIMEOUT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed.

    Examples
    --------
    >>> versions(["numpy", "no-such-package"]) == {"numpy": metadata.version("numpy")}
    True
    """
    found = {}
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
