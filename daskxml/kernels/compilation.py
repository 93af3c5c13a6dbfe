"""Tells when kernels are compiled: once after an installation, as Numba caches their code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

TEXT = "compiling kernels, once after an installation or an update"


@contextmanager
def telling_of_compilation(tell: Callable[[], Any]) -> Iterator[None]:
    """Call ``tell`` before this process compiles the first kernel of the context, if it does.

    A kernel that comes from the cache is not compiled. As a decorator it is for every call.

    Examples
    --------
    >>> from numba import njit
    >>> with telling_of_compilation(lambda: print(TEXT)):
    ...     njit(lambda x: x + 1)(1), njit(lambda x: x + 2)(1)
    compiling kernels, once after an installation or an update
    (2, 3)
    """
    from numba.core import event

    class Listener(event.Listener):
        is_told = False

        def on_start(self, event: Any) -> None:
            if not self.is_told:
                self.is_told = True
                tell()

        def on_end(self, event: Any) -> None:
            pass

    listener = Listener()
    event.register("numba:compile", listener)
    try:
        yield
    finally:
        event.unregister("numba:compile", listener)
