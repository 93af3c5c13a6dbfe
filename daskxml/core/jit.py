"""Numba's compiler for kernels that are compiled once, and loaded quickly ever after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba.core.caching import FunctionCache
from numba.core.runtime import rtsys


class QuickCache(FunctionCache):
    """Loads compiled kernels without the declarations of all functions that Numba can compile.

    Numba reads these before it looks into a cache, which takes longer than all kernels of a run;
    it reads them again before it compiles.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return a kernel of the cache for arguments of such types; None if it has none."""
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function of a file, and caches what was compiled.

    ``options`` are those of ``numba.njit``.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        compiled = numba.njit(cache=True, **options)(function)
        compiled._cache = QuickCache(function)
        return compiled

    return decorate
