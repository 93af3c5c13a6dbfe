"""A series of any length in bounded memory: every so many-th point, and the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Point = TypeVar("Point")


class Thinned(Generic[Point]):
    """Points of a series, thinned evenly: when they become too many, every second one goes.

    Iterating gives the points whose number, counted from 0, is a multiple of `stride`, a power of
    two, and then the last one of all if that is none of them.

    Parameters
    ----------
    bound
        Of the points kept, at least 2; the last one comes on top.

    Examples
    --------
    >>> series = Thinned(4)
    >>> for number in range(11):
    ...     series.append(number)
    >>> list(series), series.stride
    ([0, 4, 8, 10], 4)
    """

    def __init__(self, bound: int) -> None:
        self.bound, self.stride, self.seen = max(2, bound), 1, 0
        self._kept: list[tuple[int, Point]] = []  # with their numbers
        self._last: tuple[int, Point] | None = None

    def append(self, point: Point) -> None:
        """Add a point at the end."""
        self._last = self.seen, point
        if self.seen % self.stride == 0:
            self._kept.append(self._last)
        self.seen += 1
        if len(self._kept) > self.bound:
            self.stride *= 2
            self._kept = [kept for kept in self._kept if kept[0] % self.stride == 0]

    def drop(self, is_gone: Callable[[Point], bool]) -> None:
        """Forget points at the end; those that follow are counted on from the last that is kept."""
        kept = [kept for kept in self._all() if not is_gone(kept[1])]
        self._last = kept[-1] if kept else None
        self.seen = kept[-1][0] + 1 if kept else 0
        self._kept = [kept for kept in kept if kept[0] % self.stride == 0]

    def _all(self) -> list[tuple[int, Point]]:
        is_kept = self._last is None or (bool(self._kept) and self._kept[-1] is self._last)
        return self._kept if is_kept or self._last is None else [*self._kept, self._last]

    def __iter__(self) -> Iterator[Point]:
        return (point for _, point in self._all())

    def __len__(self) -> int:
        return len(self._all())
