"""The messages of a collective operation, as values that a program yields.

A collective (a ring all-reduce, Adasum's tree, a parameter server) is written once: as a generator
for each rank, its *program*, which yields the operations below and returns its result. A program
knows no sockets and no clock. The cluster drives one program over its connections
(`daskxml.transport`), the simulator drives all of them on a virtual clock, and a test runs them in
one process (`run_together`). So all three give the same bits.

Messages between two ranks arrive in the order in which they were sent. Both sides know each
message's size, so an array is all that travels. Ranks count from 0; a server, where there is one,
has the rank behind the last worker's.

A program ends, and continues after a `Flush`, once others have received what it has sent. So no two
ranks may both wait for that before they receive each other's messages: `run_together` refuses it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from daskxml.core.arrays import Array

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Send:
    """Send ``array`` to a rank; continues at once, so it must not change before a `Flush`."""

    to: int
    array: Array


@dataclass(frozen=True, slots=True)
class Flush:
    """Wait until every array that was sent may be overwritten."""


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for a rank's next message, and write it ``into`` an array of its size and dtype."""

    source: int
    into: Array


@dataclass(frozen=True, slots=True)
class Borrow(Receive):
    """As `Receive`, but the message may stay where it is: in the sender's memory, say.

    The answer is the array that holds it, or None where that is ``into``. It is read-only, and
    valid until the program's next operation.
    """


@dataclass(frozen=True, slots=True)
class ReceiveAny:
    """Wait for the next message of any rank; the answer is that rank.

    Only ranks of which a `Receive` has taken a message before are considered.
    """

    into: Array


@dataclass(frozen=True, slots=True)
class Worked:
    """A batch of ``rows`` rows with ``nonzeros`` stored features has been computed.

    A simulator advances its virtual clock by it; a cluster ignores it. Where a batch is computed
    between messages, ``share`` is what part of its work this was.
    """

    rows: int
    nonzeros: int
    share: float = 1.0


Op = Send | Flush | Receive | ReceiveAny | Worked
Program = Generator[Op, Any, Result]
Queues = defaultdict[tuple[int, int], deque[Array]]  # in flight, by sender and receiver


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramResult(Generic[Result]):
    """What a program returned, and its cost.

    Attributes
    ----------
    result
        The return value.
    busy_s
        Seconds inside the program, without waiting for others.
    sent_bytes
        Bytes of the arrays that it sent.
    """

    result: Result
    busy_s: float
    sent_bytes: int


def run_together(programs: Sequence[Program[Any]]) -> list[Any]:
    """Drive one program per rank to its end, always in the same order.

    Every rank runs until it must wait for a message, the lowest first. `ReceiveAny` takes the
    lowest rank that has sent a message, once no other rank can run.

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
    queues: Queues = defaultdict(deque)
    ranks = [_Rank(rank, program, queues) for rank, program in enumerate(programs)]
    while sum(rank.run() for rank in ranks) or any(rank.run_any() for rank in ranks):
        pass
    if waiting := [rank for rank in ranks if not rank.is_over]:
        raise RuntimeError("deadlock: " + ", ".join(map(str, waiting)))
    for (source, to), queue in queues.items():
        if queue:
            raise RuntimeError(f"{len(queue)} messages of rank {source} never reached rank {to}")
    return [rank.result for rank in ranks]


class _Rank:
    def __init__(self, rank: int, program: Program[Any], queues: Queues) -> None:
        self.rank, self.is_over, self.result = rank, False, None
        self._program, self._queues = program, queues
        self._known: set[int] = set()  # ranks of which a message was received
        self._waits: Receive | ReceiveAny | Flush | None = None

    def __str__(self) -> str:
        match self._waits:
            case Receive(source):
                return f"rank {self.rank} waits for rank {source}"
            case Flush():
                return f"rank {self.rank} waits until its messages are received"
        return f"rank {self.rank} waits for anyone"

    def run(self) -> bool:
        """Continue until a message is missing; return whether anything happened."""
        moved = False
        while not self.is_over and self._can_continue():
            self._continue(None)
            moved = True
        return moved

    def run_any(self) -> bool:
        """Take a message for a `ReceiveAny`, and continue; return whether there was one."""
        if self.is_over or not isinstance(self._waits, ReceiveAny):
            return False
        source = next((s for s in sorted(self._known) if self._queues[s, self.rank]), None)
        if source is None:
            return False
        self._take(source, self._waits.into)
        self._continue(source)
        return True

    def _can_continue(self) -> bool:
        if isinstance(self._waits, ReceiveAny):
            return False
        if isinstance(self._waits, Flush):
            return not any(
                queue for (source, _), queue in self._queues.items() if source == self.rank
            )
        if isinstance(self._waits, Receive):
            if not self._queues[self._waits.source, self.rank]:
                return False
            self._take(self._waits.source, self._waits.into)
            self._known.add(self._waits.source)
        return True

    def _take(self, source: int, into: Array) -> None:
        array = self._queues[source, self.rank].popleft()
        if array.shape != into.shape or array.dtype != into.dtype:
            raise RuntimeError(
                f"rank {source} sent {array.dtype} {array.shape} to rank {self.rank}, "
                f"which waits for {into.dtype} {into.shape}"
            )
        into[...] = array

    def _continue(self, answer: int | None) -> None:
        self._waits = None
        try:
            op = self._program.send(answer)
        except StopIteration as end:
            self.is_over, self.result = True, end.value
            return
        if isinstance(op, Send):
            self._queues[self.rank, op.to].append(op.array.copy())
        elif isinstance(op, Receive | ReceiveAny | Flush):
            self._waits = op
