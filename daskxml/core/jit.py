"""Numba's compiler for kernels that are compiled once, and loaded quickly ever after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.runtime import rtsys


class QuickCache(FunctionCache):
    """Loads compiled kernels without the declarations of all functions that Numba can compile.

    Numba reads these before it looks into a cache, which takes longer than all kernels of a run;
    it reads them again before it compiles. A kernel is looked for in the cache of this user, and
    then among those that were compiled when daskxml was installed, whoever did that.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        folder = str(Path(function.__code__.co_filename).parent / "__pycache__")
        names = self._impl.filename_base, self._impl.locator.get_source_stamp()
        self._files = self._cache_file, IndexDataCacheFile(folder, *names)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return a kernel of the cache for arguments of such types; None if it has none."""
        rtsys.initialize(target_context)
        key = self._index_key(sig, target_context.codegen())
        with self._guard_against_spurious_io_errors():
            for file in self._files:
                if (found := file.load(key)) is not None:
                    return self._impl.rebuild(target_context, found)
        return None


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function of a file, and caches what was compiled.

    ``options`` are those of ``numba.njit``.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        compiled = numba.njit(cache=True, **options)(function)
        compiled._cache = QuickCache(function)
        return compiled

    return decorate


def writable_view(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a view of an array's memory with the type that Numba has for arrays of one's own.

    Numba compiles a kernel again for read-only arrays, as those of mapped files are: seconds, for
    the same code. A kernel must not write to the view.
    """
    if array.flags.writeable:
        return array
    described = array.__array_interface__ | {"data": (array.ctypes.data, False)}
    return np.asarray(SimpleNamespace(__array_interface__=described, owner=array))
