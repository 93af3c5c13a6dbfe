"""Programs of a collective in one process, slow and obvious: what the loop of clocks must equal."""

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from daskxml.collectives.messages import Flush, Program, Receive, ReceiveAny, Send
from daskxml.core.arrays import Array

Queues = defaultdict[tuple[int, int], deque[Array]]  # in flight, by sender and receiver


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
