"""A folder that one process at a time may write to: of a run, or of a bench."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from daskxml.errors import ModelError

LOCK_FILE = ".lock"


def lock_folder(folder: Path, busy: str) -> IO[str]:
    """Make a folder, and lock it until the file that is returned is closed, or the process ends.

    Parameters
    ----------
    busy
        What the error says if another process has it.

    Raises
    ------
    ModelError
        If it cannot be made or written to, or is locked.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name, lock_folder(Path(name), "in use"):
    ...     is_locked(Path(name))
    True
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK_FILE).open("w")
    except OSError as error:
        raise ModelError(_cannot_write(folder, error)) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise ModelError(f"{folder}: {busy}") from None
    return lock


def is_locked(folder: Path) -> bool:
    """Whether a process on this machine has locked a folder."""
    try:
        with (folder / LOCK_FILE).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock, or a file system without locks
        return False
    return False


def _cannot_write(path: Path, error: OSError) -> str:
    """Say why a folder that a user has named cannot be written to."""
    file = next((part for part in (path, *path.parents) if part.is_file()), None)
    if file is not None:
        return f"{path}: cannot be made, {file} is a file; choose another --out"
    return f"{path}: cannot be written to ({error.strerror}); choose another --out"
