"""A fixed number of threads, each with its own share of a range: no queue, so no surprises.

The shares depend on the range and on the number of lanes only, so that sums are always formed in
the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class Lanes:
    """``count`` threads, the caller's own among them.

    Parameters
    ----------
    count
        At least 1; 1 makes no thread at all.

    Examples
    --------
    >>> lanes = Lanes(2)
    >>> seen = []
    >>> lanes.run(10, 3, lambda lane, start, stop: seen.append((lane, start, stop)))
    2
    >>> sorted(seen)
    [(0, 0, 5), (1, 5, 10)]
    >>> lanes.close()
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count - 1, "daskxml-lane") if count > 1 else None

    def run(self, items: int, grain: int, work: Callable[[int, int, int], object]) -> int:
        """Call ``work(lane, start, stop)`` over ``range(items)``, at least ``grain`` a lane.

        Returns how many lanes had a share (one, that of the caller, for few items).
        """
        used = max(1, min(self.count, items // max(1, grain)))
        cuts = [items * lane // used for lane in range(used + 1)]
        if self._pool is None or used == 1:
            work(0, 0, items)
            return 1
        others = [
            self._pool.submit(work, lane, cuts[lane], cuts[lane + 1]) for lane in range(1, used)
        ]
        try:
            work(0, 0, cuts[1])
        finally:  # never leave while another thread still writes
            errors = [future.exception() for future in others]
        for error in errors:
            if error is not None:
                raise error
        return used

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
