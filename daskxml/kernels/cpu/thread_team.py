"""A fixed number of threads, each with its own share of a range.

The shares depend on the range and on the number of threads only, so that sums are always formed in
the same order.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from daskxml.core.shared import Shared


@functools.cache
def _libraries() -> list[Any]:
    """Return SciPy's own BLAS, or every BLAS where NumPy and SciPy share one."""
    import scipy.linalg  # which loads it
    from threadpoolctl import ThreadpoolController

    assert scipy.linalg
    found = ThreadpoolController().select(user_api="blas").lib_controllers
    return [lib for lib in found if "scipy.libs" in (lib.filepath or "")] or list(found)


@contextlib.contextmanager
def _blas_on_one_thread() -> Iterator[None]:
    before = [(library, library.get_num_threads()) for library in _libraries()]
    for library, _ in before:
        library.set_num_threads(1)
    try:
        yield
    finally:
        for library, threads in before:
            library.set_num_threads(threads)


ONE_THREAD = Shared(_blas_on_one_thread)  # for BLAS that each thread of a team calls by itself
ROW_GRAIN = 1 << 18  # floats: below, waking a thread costs more than it saves


def row_grain(width: int) -> int:
    """How many rows of so many floats make waking a thread worthwhile."""
    return max(1, ROW_GRAIN // max(1, width))


class ThreadTeam:
    """``count`` threads, the caller's own among them.

    Parameters
    ----------
    count
        At least 1; 1 starts no thread at all.

    Examples
    --------
    >>> team, calls = ThreadTeam(2), []
    >>> team.run(10, 3, lambda *call: calls.append(call))
    2
    >>> sorted(calls)
    [(0, 0, 5), (1, 5, 10)]
    >>> team.close()
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._start()

    def _start(self) -> None:
        self._process, others = os.getpid(), self.count - 1
        self._pool = ThreadPoolExecutor(others, "daskxml-kernel") if others else None

    def run(self, items: int, grain: int, work: Callable[[int, int, int], object]) -> int:
        """Call ``work(thread, start, stop)`` over ``range(items)``, at least ``grain`` items each.

        Returns how many threads had a share (one, the caller's, for few items).
        """
        used = max(1, min(self.count, items // max(1, grain)))
        cuts = [items * thread // used for thread in range(used + 1)]
        if self._pool is None or used == 1:
            work(0, 0, items)
            return 1
        if self._process != os.getpid():  # forked, without the threads
            self._start()
        others = [
            self._pool.submit(work, thread, cuts[thread], cuts[thread + 1])
            for thread in range(1, used)
        ]
        try:
            work(0, 0, cuts[1])
        finally:  # never return while another thread still writes
            errors = [future.exception() for future in others]
        for error in errors:
            if error is not None:
                raise error
        return used

    def close(self) -> None:
        """Let the threads end, each after what it does now."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)
