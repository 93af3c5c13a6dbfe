"""Where comms of neighbours wait until the local side of their ring has started."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from distributed.comm import Comm


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class RingKey:
    """Which ring: a merge may be tried again, so it has attempts."""

    run: str
    generation: int
    attempt: int

    @property
    def turn(self) -> tuple[int, int]:
        """The order among the rings of one run: (generation, attempt)."""
        return self.generation, self.attempt

    def __str__(self) -> str:
        return f"merge {self.generation} (attempt {self.attempt}) of run {self.run}"


@dataclass(kw_only=True, slots=True, eq=False)
class Caller:
    """A neighbour's comm, and the ring and rank that it calls for.

    Its handler keeps the comm until ``released``, which whoever takes it out sets in the end.
    """

    comm: Comm
    key: RingKey
    rank: int
    released: asyncio.Event = field(default_factory=asyncio.Event)
    taken: bool = False

    async def until_released(self, patience_s: float) -> None:
        """Wait for the release; without limit once taken, else for ``patience_s`` seconds."""
        try:
            await asyncio.wait_for(self.released.wait(), patience_s)
        except TimeoutError:
            if self.taken:
                await self.released.wait()


class Mailbox:
    """Callers by ring and rank; used on one event loop only.

    Examples
    --------
    >>> async def meet():
    ...     mailbox, key = Mailbox(), RingKey(run="a", generation=1, attempt=0)
    ...     assert mailbox.put(Caller(comm="a comm", key=key, rank=1))
    ...     return (await mailbox.take(key, 1)).comm
    >>> asyncio.run(meet())
    'a comm'
    """

    def __init__(self) -> None:
        self._slots: dict[tuple[RingKey, int], asyncio.Future[Caller]] = {}

    def __len__(self) -> int:
        """Callers that wait, and callers waited for."""
        return len(self._slots)

    def put(self, caller: Caller) -> bool:
        """Leave a comm for its ring; False if one is there already."""
        slot = self._slot(caller.key, caller.rank)
        if slot.done():
            return False
        slot.set_result(caller)
        return True

    async def take(self, key: RingKey, rank: int) -> Caller:
        """Wait for the caller of a rank and take it out."""
        try:
            caller = await self._slot(key, rank)
        finally:
            self._slots.pop((key, rank), None)
        caller.taken = True
        return caller

    def withdraw(self, caller: Caller) -> None:
        """Remove a caller whom nobody took."""
        slot = self._slots.get((caller.key, caller.rank))
        if slot is not None and slot.done() and slot.result() is caller:
            del self._slots[caller.key, caller.rank]

    def _slot(self, key: RingKey, rank: int) -> asyncio.Future[Caller]:
        if (key, rank) not in self._slots:
            self._slots[key, rank] = asyncio.get_running_loop().create_future()
        return self._slots[key, rank]
