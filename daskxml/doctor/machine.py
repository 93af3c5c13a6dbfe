"""Cores and their linear algebra, memory, disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from daskxml.doctor.findings import Finding

LITTLE_BYTES = 1 << 30
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def examine_cores() -> Iterator[Finding]:
    """Yield the cores that this process may use, and the linear algebra on them."""
    usable, all_of_them = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    share = "" if usable == all_of_them else f" of {all_of_them}"
    yield Finding(topic="cores", text=f"{usable}{share}")
    try:
        import scipy.linalg
        import threadpoolctl
    except Exception:  # told among the packages
        return
    assert scipy.linalg
    for text in describe_pools(threadpoolctl.threadpool_info()):
        yield Finding(topic="BLAS", text=text)
    limits = [f"{name}={os.environ[name]}" for name in THREADS if name in os.environ]
    if limits:
        yield Finding(topic="BLAS", text=f"limited by {', '.join(limits)}")


def describe_pools(pools: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each thread pool that ``threadpoolctl`` knows.

    Examples
    --------
    >>> describe_pools([{"internal_api": "openblas", "version": "0.3.30", "num_threads": 8,
    ...                  "architecture": "Zen", "filepath": "/x/numpy.libs/libblas.so"}])
    ['openblas 0.3.30 (Zen), 8 threads, libblas.so']
    """
    lines = []
    for pool in pools:
        kind = f" ({pool['architecture']})" if pool.get("architecture") else ""
        name = f"{pool['internal_api']} {pool.get('version') or ''}".rstrip()
        file = Path(pool.get("filepath") or "").name
        lines.append(f"{name}{kind}, {pool['num_threads']} threads, {file}")
    return lines


def examine_memory() -> Iterator[Finding]:
    """Yield the memory that is free, for this machine and for this container."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(fields[key].split()[0]) << 10 for key in ("MemTotal", "MemAvailable"))
    limit = container_limit(LIMITS)
    bound = f", {_gib(limit)} for this container" if limit and limit < total else ""
    yield _with_room("memory", f"{_gib(free)} free of {_gib(total)}{bound}", free, "free some")


def container_limit(files: Iterable[str]) -> int:
    """Return the limit in bytes that the first of these files states; 0 for none.

    >>> container_limit(["/no/such/file"])
    0
    """
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            return int(Path(file).read_text())
    return 0


def examine_disk() -> Iterator[Finding]:
    """Yield the room where runs are written, and where Dask keeps what memory does not hold."""
    for what, folder in (("here", Path.cwd()), ("temporary", Path(tempfile.gettempdir()))):
        free = shutil.disk_usage(folder).free
        text = f"{_gib(free)} free in {folder} ({what})"
        yield _with_room("disk", text, free, f"free some room in {folder}")


def _with_room(topic: str, text: str, free_bytes: int, remedy: str) -> Finding:
    if free_bytes < LITTLE_BYTES:
        return Finding(topic=topic, text=text, level="problem", remedy=remedy)
    return Finding(topic=topic, text=text)


def _gib(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"
