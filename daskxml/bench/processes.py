"""The processes of a cell: who they are, what memory they have, and how they end.

A cell is a process group of its own, and all of its processes have its folder in their environment,
so that those are found, too, that a bench which was killed has left behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from daskxml.errors import ClusterError

MARK = "DASKXML_BENCH_CELL"
PROC = Path("/proc")
_END_S, _LOOK_S = 10.0, 0.02


def group_members(group: int) -> list[int]:
    """Return the ids of the processes of a process group.

    Examples
    --------
    >>> os.getpid() in group_members(os.getpgid(0))
    True
    """
    return [pid for pid in _processes() if _group_of(pid) == group]


def marked_members(folder: Path) -> list[int]:
    """Return the ids of the processes that were started for the cell of a folder."""
    mark = f"{MARK}={folder}".encode()
    return [pid for pid in _processes() if mark in _environment(pid)]


def memory_bytes(pids: Iterable[int]) -> int:
    """Return the memory of processes, pages that they share counted once.

    It is the sum of the proportional set sizes; of the resident sizes where Linux does not tell
    those. Processes that end meanwhile have none.

    Examples
    --------
    >>> memory_bytes([os.getpid()]) > 2**20
    True
    """
    return sum(map(_memory_of, pids))


def end(find: Callable[[], list[int]]) -> None:
    """Kill processes until none is found, those that they start meanwhile included.

    Raises
    ------
    ClusterError
        If some cannot be killed within ten seconds.
    """
    deadline_s = time.monotonic() + _END_S
    while pids := find():
        if time.monotonic() > deadline_s:
            raise ClusterError(f"processes {pids} cannot be killed: end them, then go on")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_S)


def _processes() -> list[int]:
    return [int(path.name) for path in PROC.iterdir() if path.name.isdecimal()]


def _group_of(pid: int) -> int | None:
    """Return a process's group, None where it is gone or only waits to be collected."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    state, _, group = fields[:3]
    return None if state in "ZX" else int(group)


def _environment(pid: int) -> list[bytes]:
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _memory_of(pid: int) -> int:
    folder = PROC / str(pid)
    for name, field in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        with contextlib.suppress(OSError):
            for line in (folder / name).read_text().splitlines():
                if line.startswith(field):
                    return int(line.split()[1]) * 1024
    return 0
