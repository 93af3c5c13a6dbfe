"""Rows on the workers that several runs share: read once, and held as long as anybody uses them.

Runs of one scheduler with the same files, the same ``[data]`` section and the same seed have the
same partitions. The first of them reads the rows, the others take its futures, so that the rows
are on the workers once. They are released with the last holder: a run, or a client that keeps
rows between its runs (`daskxml.api.runs.keep_rows`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar


class Placed(Protocol):
    """Rows on the workers."""

    @property
    def is_intact(self) -> bool:
        """Whether they have not been cancelled."""

    def release(self) -> None:
        """Release them."""


Rows = TypeVar("Rows", bound=Placed)


@dataclass(eq=False)
class _Entry:
    """Rows that are there, or that one of the holders is reading."""

    rows: Placed | None = None
    holders: set[str] = field(default_factory=set)
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


class SharedRows:
    """The rows of all runs of a scheduler, by what they were made of.

    Examples
    --------
    >>> class Ten:
    ...     is_intact = True
    ...     def release(self):
    ...         print("released")
    >>> async def read():
    ...     print("read")
    ...     return Ten()
    >>> async def two_runs():
    ...     shared = SharedRows()
    ...     for run in ("first", "second"):
    ...         await shared.acquire("rows", [run], read, lambda rows: True)
    ...     shared.release("first")
    ...     shared.release("second")
    >>> asyncio.run(two_runs())
    read
    released
    """

    def __init__(self) -> None:
        self._entries: dict[str, list[_Entry]] = {}

    async def acquire(
        self,
        name: str,
        holders: Collection[str],
        read: Callable[[], Awaitable[Rows]],
        fit: Callable[[Rows], bool],
    ) -> tuple[Rows, bool]:
        """Return the rows of this name, and whether they were there; else read them.

        Whoever comes while they are read waits. If reading fails, the next one reads for itself.

        Parameters
        ----------
        name
            The same for the same rows.
        holders
            Runs and clients, each of which keeps the rows until its `release`.
        read
            Reads them.
        fit
            Whether rows of this name can be used: their partitions may be too few.
        """
        for entry in self._candidates(name):
            entry.holders.update(holders)
            try:
                async with entry.reading:
                    if entry.rows is None:
                        entry.rows = await read()
                        return entry.rows, False
                    if entry.rows.is_intact and fit(entry.rows):  # type: ignore[arg-type]
                        return entry.rows, True  # type: ignore[return-value]
            except BaseException:
                self._leave(name, entry, holders)
                raise
            self._leave(name, entry, holders)
        raise AssertionError("the last candidate is a new one")

    def _candidates(self, name: str) -> Iterator[_Entry]:
        """Yield the entries of a name, and then a new one."""
        yield from list(self._entries.get(name, []))
        fresh = _Entry()
        self._entries.setdefault(name, []).append(fresh)
        yield fresh

    def release(self, holder: str) -> None:
        """Release the rows that nobody else holds."""
        for name, entries in list(self._entries.items()):
            for entry in list(entries):
                self._leave(name, entry, [holder])

    def _leave(self, name: str, entry: _Entry, holders: Collection[str]) -> None:
        entry.holders.difference_update(holders)
        if entry.holders or entry not in self._entries.get(name, []):
            return
        self._entries[name].remove(entry)
        if not self._entries[name]:
            del self._entries[name]
        if entry.rows is not None:
            entry.rows.release()
