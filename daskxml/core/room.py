"""How much memory this process may still take: by its own limits, its group's, and the machine's.

The limits of the process are those of ``ulimit -d`` and ``ulimit -v``; those of its control groups
are what a batch system or a container sets. The memory of the machine, and of the groups, is shared
with the other workers there.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

from daskxml.core.hardware import free_memory_bytes

_LIMITS = {"VmData": resource.RLIMIT_DATA, "VmSize": resource.RLIMIT_AS}
_GROUPS = Path("/sys/fs/cgroup")
_FILES = {  # of a control group: the limit, and what is in use; of version 2, and 1
    "": ("memory.max", "memory.current"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes"),
}


def room_bytes(sharing: int = 1, limit_bytes: int = 0) -> int:
    """Return the bytes that this process may still take.

    Parameters
    ----------
    sharing
        Workers that take from the machine's free memory alike, this one included.
    limit_bytes
        A limit of the process that somebody else enforces; 0: none.

    Examples
    --------
    >>> 0 < room_bytes(sharing=2) <= room_bytes()
    True
    >>> room_bytes(limit_bytes=1)
    0
    """
    status = _kibibytes(Path("/proc/self/status"))
    rooms = [room // sharing for room in (free_memory_bytes(), *_group_rooms())]
    for name, limit in _LIMITS.items():
        most, _ = resource.getrlimit(limit)
        if most != resource.RLIM_INFINITY:
            rooms.append(most - status[name])
    if limit_bytes:
        rooms.append(limit_bytes - status["VmRSS"])
    return max(0, min(rooms))


def _kibibytes(path: Path) -> dict[str, int]:
    """Return the sizes in a file of /proc, in bytes."""
    lines = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    return {line[0].rstrip(":"): int(line[1]) << 10 for line in lines if line[2:] == ["kB"]}


def _group_rooms() -> Iterator[int]:
    """Yield what each control group of this process has left; pages of files give way."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, place = line.split(":", 2)
        if controllers not in _FILES:
            continue
        folder = _GROUPS / controllers / place.strip("/")
        for group in (folder, *folder.parents):
            yield from _group_room(group, *_FILES[controllers])
            if group == _GROUPS:
                break


def _group_room(group: Path, limit: str, usage: str) -> Iterator[int]:
    try:
        most, used = (group / limit).read_text().strip(), int((group / usage).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return
    if most.isdecimal() and int(most) < 1 << 60:
        pages = int(stat.get("inactive_file", stat.get("total_inactive_file", 0)))
        yield int(most) - used + pages
