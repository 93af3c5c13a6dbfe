"""Files that are replaced whole or not at all, and folders that one process at a time writes to.

A file is written under another name beside its place, flushed to the disk, and renamed. Whatever
happens before the rename, a full disk or a killed process, leaves the old file as it was; the
unfinished one ends in ``.partial``, is never read, and is overwritten by the next attempt.

Compiled kernels are in a folder that nobody else may write: what Numba finds there it unpickles. An
image serves any number of users, so its folder is open to all; each user has a folder in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from daskxml.core.errors import ConfigError, ModelError
from daskxml.core.text import parse_json

LOCK_FILE = ".lock"
KERNEL_CACHE = "DASKXML_KERNEL_CACHE"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to; the file there replaces ``path`` when the block ends well.

    The directory of ``path`` must exist. Where ``path`` is a link, what it leads to is replaced.

    Raises
    ------
    ModelError
        If the disk is full or the directory cannot be written to, or ``path`` is something else
        than a file, such as a pipe or a device; it is as it was.

    Examples
    --------
    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "greeting"
    >>> with replacing(target) as partial:
    ...     _ = partial.write_text("hello")
    >>> target.read_text()
    'hello'
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise ModelError(f"{path}: cannot be written, as it is no file; choose another name")
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        replace_durably(partial, path)
    except OSError as error:
        raise unwritten(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def replace_text(path: Path, text: str) -> None:
    """Write a text in UTF-8 to a file that is replaced whole; see `replacing`."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def replace_durably(source: Path, target: Path) -> None:
    """Rename a file over another so that not even a power cut leaves half of it.

    Raises
    ------
    ModelError
        If the disk is full or the directory cannot be written to.
    """
    try:
        flush(source)
        source.replace(target)
        flush(target.parent)
    except OSError as error:
        raise unwritten(target, error) from error


def unwritten(path: Path, error: OSError) -> ModelError:
    """Return the error of a file that cannot be written; what was there is unchanged."""
    is_there, reason = path.parent.is_dir(), error.strerror or error
    hint = "its directory has been removed"
    if is_there:
        hint = "what was there is unchanged: free space, or choose another directory"
    return ModelError(f"{path}: cannot be written ({reason}); {hint}")


def flush(path: Path) -> None:
    """Wait until a file's bytes, or a directory's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path, kind: type = dict) -> Any:
    """Return what a JSON file holds; None where it cannot be read, or is not of this kind."""
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, kind) else None


def check_folder(folder: Path) -> None:
    """Refuse what is neither a file nor a folder in the folder of a run: reading may have no end.

    Raises
    ------
    ModelError
        Naming the first, such as a pipe, or a link to a device.
    """
    for path in sorted((*folder.glob("*"), *folder.glob("checkpoints/*"))):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ModelError(f"{path}: neither a file nor a folder; remove it")


def lock_folder(folder: Path, busy: str) -> IO[str]:
    """Create a folder, and lock it until the returned file is closed or the process ends.

    Parameters
    ----------
    busy
        The message of the error if another process holds the lock.

    Raises
    ------
    ModelError
        If the folder cannot be created or written to, or is locked.

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
    """Explain why a folder that the user named cannot be written to."""
    file = next((part for part in (path, *path.parents) if part.is_file()), None)
    if file is not None:
        return f"{path}: cannot be made, {file} is a file; choose another --out"
    return f"{path}: cannot be written to ({error.strerror}); choose another --out"


def packaged(kind: str) -> dict[str, Path]:
    """Return the TOML files of a kind that come with daskxml, by name.

    Examples
    --------
    >>> "delicious" in packaged("datasets")
    True
    """
    package = Path(__file__).parents[1]
    # In the wheel they are inside the package, in a source tree beside it.
    folders = (package / kind, package.parent / kind, package.parent / "benchmarks" / kind)
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}


def keep_private() -> None:
    """Let Numba cache in this user's own folder below ``DASKXML_KERNEL_CACHE``, if that is set.

    To be called before Numba is loaded. ``NUMBA_CACHE_DIR`` is left as it is where it is set.

    Raises
    ------
    ConfigError
        If the folder is somebody else's, or others may write there.

    Examples
    --------
    >>> keep_private()
    """
    root = os.environ.get(KERNEL_CACHE)
    if not root or "NUMBA_CACHE_DIR" in os.environ:
        return
    folder = Path(root) / str(os.getuid())
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError as error:
        problem = f"{KERNEL_CACHE}={root}: {error.strerror}; name a folder to write to"
        raise ConfigError(problem) from error
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_own or found.st_mode & 0o022:
        raise ConfigError(
            f"{folder}: others may write there, and compiled kernels are run; remove it, or set "
            "NUMBA_CACHE_DIR to a folder of your own"
        )
    os.environ["NUMBA_CACHE_DIR"] = str(folder)
