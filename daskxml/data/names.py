"""Names of features and labels: one a line, in the order of their ids."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import fsspec

from daskxml.core.errors import InputError

Names = str | tuple[str, ...]  # the path of a file with a name on each line, or the names


@lru_cache(maxsize=4)
def ids_by_name(names: Names) -> Mapping[str, int]:
    """Return the ids of names; they are read once in a process.

    Examples
    --------
    >>> ids_by_name(("red", "green"))["green"]
    1
    """
    listed = read_names(names) if isinstance(names, str) else names
    return {name: number for number, name in enumerate(listed)}


def read_names(path: str) -> tuple[str, ...]:
    """Return the names in a text file, of which line ``i`` names column ``i - 1``.

    Parameters
    ----------
    path
        A file or an fsspec URL, UTF-8; gzipped if it ends in ``.gz``.

    Raises
    ------
    InputError
        If it cannot be read, is empty, or a line is empty or occurs twice; with the line.

    Examples
    --------
    >>> import fsspec
    >>> fsspec.filesystem("memory").pipe("/names.txt", "red\\ngreen\\n".encode())
    >>> read_names("memory://names.txt")
    ('red', 'green')
    """
    try:
        with fsspec.open(path, "rt", encoding="utf-8", compression="infer") as file:
            names = tuple(line.rstrip("\r\n") for line in file)
    except UnicodeDecodeError as error:
        raise InputError("is no UTF-8 text; give a name on each line", path) from error
    except OSError as error:
        problem = error.strerror or str(error)
        raise InputError(f"cannot be read ({problem}); give a name on each line", path) from error
    if not names:
        raise InputError("is empty; give a name on each line", path)
    first: dict[str, int] = {}
    for line, name in enumerate(names, 1):
        if not name:
            raise InputError("an empty line; give a name on each line", path, line)
        if name in first:
            problem = f"the name {name!r} is that of line {first[name]} too; names must differ"
            raise InputError(problem, path, line)
        first[name] = line
    return names
