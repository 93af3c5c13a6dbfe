"""Where comms of other endpoints wait until the local side of their round has started."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from distributed.comm import Comm


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundKey:
    """Which round: one go of a merge or of a gang.

    Attributes
    ----------
    run, number
        Rounds of a run are numbered in the order in which they are begun.
    what
        What it is, for messages.
    """

    run: str
    number: int
    what: str = field(default="round", compare=False)

    def __str__(self) -> str:
        return f"{self.what} (round {self.number}) of run {self.run}"


@dataclass(frozen=True, slots=True)
class Line:
    """Who calls whom in a round; endpoints are numbers."""

    key: RoundKey
    caller: int
    callee: int


@dataclass(kw_only=True, slots=True, eq=False)
class Caller:
    """Another endpoint's comm, and the pipe that it offers (see `token_pipe`).

    Its handler keeps the comm until ``released``, which whoever takes it out sets in the end.
    """

    comm: Comm
    line: Line
    pipe: Mapping[str, Any] | None = None
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
    """Callers by their line; used on one event loop only.

    Examples
    --------
    >>> async def meet():
    ...     mailbox, line = Mailbox(), Line(RoundKey(run="a", number=1), caller=0, callee=1)
    ...     assert mailbox.put(Caller(comm="a comm", line=line))
    ...     return (await mailbox.take(line)).comm
    >>> asyncio.run(meet())
    'a comm'
    """

    def __init__(self) -> None:
        self._slots: dict[Line, asyncio.Future[Caller]] = {}

    def __len__(self) -> int:
        """Callers that wait, and callers waited for."""
        return len(self._slots)

    def put(self, caller: Caller) -> bool:
        """Leave a comm for its round; False if one is there already."""
        slot = self._slot(caller.line)
        if slot.done():
            return False
        slot.set_result(caller)
        return True

    async def take(self, line: Line) -> Caller:
        """Wait for a caller and take it out."""
        try:
            caller = await self._slot(line)
        finally:
            self._slots.pop(line, None)
        caller.taken = True
        return caller

    def withdraw(self, caller: Caller) -> None:
        """Remove a caller whom nobody took."""
        slot = self._slots.get(caller.line)
        if slot is not None and slot.done() and slot.result() is caller:
            del self._slots[caller.line]

    def _slot(self, line: Line) -> asyncio.Future[Caller]:
        if line not in self._slots:
            self._slots[line] = asyncio.get_running_loop().create_future()
        return self._slots[line]
