"""The messages of a collective operation, as values that a program yields.

A collective (a ring all-reduce, Adasum's tree, a parameter server) is written once: as a generator
for each rank, its *program*, which yields the operations below and returns its result. A program
knows no sockets and no clock. The cluster drives one program over its connections
(`daskxml.transport`), and the simulator all of them on a virtual clock
(`daskxml.local.clock`), as a run in one process does. So all give the same bits.

Messages between two ranks arrive in the order in which they were sent. Both sides know each
message's size, so an array is all that travels. Ranks count from 0; a server, where there is one,
has the rank behind the last worker's.

A program ends, and continues after a `Flush`, once others have received what it has sent. So no two
ranks may both wait for that before they receive each other's messages: the tests' naive loop
(`tests/harness/together.py`) refuses it.
"""

from __future__ import annotations

from collections.abc import Generator
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

    A simulator advances its virtual clock by it; a cluster ignores it.
    """

    rows: int
    nonzeros: int


Op = Send | Flush | Receive | ReceiveAny | Worked
Program = Generator[Op, Any, Result]


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
