"""A folder for compiled kernels that nobody else may write: what Numba finds there it unpickles.

An image serves users of any number, so its folder is open to all; each user has a folder in it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from daskxml.core.errors import ConfigError

ROOT = "DASKXML_KERNEL_CACHE"


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
    root = os.environ.get(ROOT)
    if not root or "NUMBA_CACHE_DIR" in os.environ:
        return
    folder = Path(root) / str(os.getuid())
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError as error:
        raise ConfigError(f"{ROOT}={root}: {error.strerror}; name a folder to write to") from error
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_own or found.st_mode & 0o022:
        raise ConfigError(
            f"{folder}: others may write there, and compiled kernels are run; remove it, or set "
            "NUMBA_CACHE_DIR to a folder of your own"
        )
    os.environ["NUMBA_CACHE_DIR"] = str(folder)
