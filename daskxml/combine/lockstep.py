"""All programs of a collective in one process, one after the other, without sockets or clocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from daskxml.combine.messages import Program, Receive, ReceiveAny, Send
from daskxml.types import Array


def run_together(programs: Sequence[Program[Any]]) -> list[Any]:
    """Drive one program per rank to its end, always in the same order.

    Every rank runs until it must wait for a message, the lowest first. `ReceiveAny` takes the
    lowest rank that has a message, once nobody else can run.

    Parameters
    ----------
    programs
        One for each rank, and one for a server where there is one.

    Returns
    -------
    list
        What the programs return.

    Raises
    ------
    RuntimeError
        When all wait for each other, a message does not fit, or one is left over: the programs
        do not belong together.

    Examples
    --------
    >>> import numpy as np
    >>> def swap(rank, value):
    ...     theirs = np.empty(1)
    ...     yield Send(1 - rank, np.array([value]))
    ...     yield Receive(1 - rank, theirs)
    ...     return float(theirs[0])
    >>> run_together([swap(0, 3.0), swap(1, 4.0)])
    [4.0, 3.0]
    """
    mail = _Mail()
    players = [_Player(rank, program, mail) for rank, program in enumerate(programs)]
    while sum(player.run() for player in players) or any(p.run_any() for p in players):
        pass
    if waiting := [player for player in players if not player.is_over]:
        raise RuntimeError("deadlock: " + ", ".join(player.complaint() for player in waiting))
    mail.check_empty()
    return [player.result for player in players]


class _Mail:
    """Messages under way, from each rank to each other, in their order."""

    def __init__(self) -> None:
        self._boxes: dict[tuple[int, int], deque[Array]] = {}

    def post(self, source: int, to: int, array: Array) -> None:
        self._boxes.setdefault((source, to), deque()).append(array.copy())

    def has(self, source: int, to: int) -> bool:
        return bool(self._boxes.get((source, to)))

    def take(self, source: int, to: int, into: Array) -> None:
        array = self._boxes[source, to].popleft()
        if array.shape != into.shape or array.dtype != into.dtype:
            raise RuntimeError(
                f"rank {source} sent {array.dtype} {array.shape} to rank {to}, "
                f"which waits for {into.dtype} {into.shape}"
            )
        into[...] = array

    def check_empty(self) -> None:
        for (source, to), box in self._boxes.items():
            if box:
                raise RuntimeError(f"{len(box)} messages of rank {source} never reached rank {to}")


class _Player:
    def __init__(self, rank: int, program: Program[Any], mail: _Mail) -> None:
        self.rank, self.is_over, self.result = rank, False, None
        self._program, self._mail = program, mail
        self._heard: set[int] = set()
        self._waits: Receive | ReceiveAny | None = None

    def run(self) -> bool:
        """Go on until a message is missing; whether anything happened."""
        moved = False
        while not self.is_over and self._may_go_on():
            self._go_on(None)
            moved = True
        return moved

    def run_any(self) -> bool:
        """Take a message from anyone, if that is what it waits for, and if there is one."""
        if self.is_over or not isinstance(self._waits, ReceiveAny):
            return False
        source = next((s for s in sorted(self._heard) if self._mail.has(s, self.rank)), None)
        if source is None:
            return False
        self._mail.take(source, self.rank, self._waits.into)
        self._go_on(source)
        return True

    def complaint(self) -> str:
        """Return who waits for whom."""
        source = f"rank {self._waits.source}" if isinstance(self._waits, Receive) else "anyone"
        return f"rank {self.rank} waits for {source}"

    def _may_go_on(self) -> bool:
        if isinstance(self._waits, ReceiveAny):
            return False
        if isinstance(self._waits, Receive):
            if not self._mail.has(self._waits.source, self.rank):
                return False
            self._mail.take(self._waits.source, self.rank, self._waits.into)
            self._heard.add(self._waits.source)
        return True

    def _go_on(self, answer: int | None) -> None:
        self._waits = None
        try:
            op = self._program.send(answer)
        except StopIteration as end:
            self.is_over, self.result = True, end.value
            return
        if isinstance(op, Send):
            self._mail.post(self.rank, op.to, op.array)
        elif isinstance(op, Receive | ReceiveAny):
            self._waits = op
