"""A directory on a disk that fills up and loses what was not flushed, whose writers may die.

The product's own file operations run, on real files: an audit hook sees each before it happens.
What has reached the disk is what ``os.fsync`` was called for; after `Disk.lose_power` every other
change is there, or not, or in part.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from harness.faults.loop import PROCESS, Killed, pause, this_thread

_MUTATING = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod"}
_SPACE = {"open", "os.mkdir", "fsync"}  # what a full disk refuses
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_disk: Disk | None = None
_is_hooked = False


class Disk:
    """What is under a directory, and what of it would survive a loss of power.

    Parameters
    ----------
    root
        The directory.
    step
        Called before each operation that changes something, with its name.
    """

    def __init__(self, root: Path, step: Callable[[str], None]) -> None:
        self.root, self._step, self.is_full, self.flush_s = root, step, False, 0.0
        self._prefix = str(root) + "/"
        self._bytes: dict[int, bytes] = {}  # flushed, by inode
        self._names: dict[str, dict[str, int]] = {}  # flushed, by directory
        self._is_idle = False

    def check(self, what: str, path: Any) -> None:
        """Let an operation happen, or raise what happens instead."""
        if self._is_idle or not str(path).startswith(self._prefix):
            return
        process = PROCESS.get()
        if process is not None:
            self._step(f"{what.removeprefix('os.')} {Path(str(path)).name}")
            if process.is_dead:
                raise Killed
        if self.is_full and what in _SPACE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def fsync(self, handle: int) -> None:
        """Note what has reached the disk."""
        path = Path(f"/proc/self/fd/{handle}").readlink()
        self.check("fsync folder" if path.is_dir() else "fsync", path)
        if not str(path).startswith(str(self.root)):
            return
        if self.flush_s and this_thread() is not None:
            pause(self.flush_s)
        self.flush(path)

    def flush(self, path: Path) -> None:
        """Let a file's bytes, or a directory's names, reach the disk."""
        with self.idle():
            if path.is_dir():
                self._names[str(path)] = {it.name: it.stat().st_ino for it in path.iterdir()}
            else:
                self._bytes[path.stat().st_ino] = path.read_bytes()

    def lose_power(self, rng: random.Random) -> None:
        """Go back to what was flushed, with some of what was not."""
        with self.idle():
            for folder in sorted((it for it in self.root.rglob("*") if it.is_dir()), reverse=True):
                self._revert(folder, rng)

    def _revert(self, folder: Path, rng: random.Random) -> None:
        now = {it.name: it for it in sorted(folder.iterdir()) if it.is_file()}
        flushed = self._names.get(str(folder), {})
        keeps = rng.choice([True, False, None])  # the names as they are, as flushed, or a mixture
        kept: dict[str, bytes] = {}
        for name in sorted(now.keys() | flushed.keys()):
            is_now = rng.random() < 0.5 if keeps is None else keeps
            if is_now and name in now:
                path = now[name]
                kept[name] = self._content(path.stat().st_ino, path.read_bytes(), rng)
            elif not is_now and flushed.get(name) in self._bytes:
                kept[name] = self._bytes[flushed[name]]
            elif not is_now and name in now and name in flushed:
                path = now[name]
                kept[name] = self._content(path.stat().st_ino, path.read_bytes(), rng)
        for name in now.keys() - kept.keys():
            now[name].unlink()
        for name, content in kept.items():
            (folder / name).write_bytes(content)
            self._bytes[(folder / name).stat().st_ino] = content
        self._names[str(folder)] = {name: (folder / name).stat().st_ino for name in kept}

    def _content(self, inode: int, current: bytes, rng: random.Random) -> bytes:
        flushed = self._bytes.get(inode, b"")
        if current == flushed:
            return current
        if current.startswith(flushed):  # appended to
            return current[: rng.randint(len(flushed), len(current))]
        return rng.choice([flushed, current[: rng.randint(0, len(current))], current])

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Let the simulation itself read and write."""
        before, self._is_idle = self._is_idle, True
        try:
            yield
        finally:
            self._is_idle = before


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _disk is None:
        return
    if event == "open":
        if args[2] & _WRITES and isinstance(args[0], str):
            _disk.check("open", args[0])
    elif event in _MUTATING:
        _disk.check(event, args[0])
    elif event == "shutil.rmtree":
        _disk.check("rmtree", args[0])


@contextmanager
def virtual_disk(root: Path, step: Callable[[str], None]) -> Iterator[Disk]:
    """Watch a directory, which is removed at the end."""
    global _disk, _is_hooked
    if not _is_hooked:  # a hook stays as long as the process
        sys.addaudithook(_hook)
        _is_hooked = True
    root.mkdir(parents=True)
    disk = _disk = Disk(root, step)
    try:
        with mock.patch.object(os, "fsync", disk.fsync):
            yield disk
    finally:
        _disk = None
        shutil.rmtree(root)
