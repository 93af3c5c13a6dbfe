"""What a rank of a collective operation does, as values: messages that leave and arrive.

A collective (a ring all-reduce, Adasum's tree, a parameter server) is written once: a generator for
each rank, which yields these and returns its result. It knows no sockets and no clock: the cluster
drives one generator over its connections, the simulator drives all of them on a virtual clock, and
a test runs them in one process (`daskxml.combine.lockstep`). So all three give the same bits.

Messages between two ranks arrive in the order in which they were sent; both sides know each
message's size, so an array is all that travels. Ranks count from 0; a server, where there is one,
has the number behind the last rank.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from daskxml.types import Array

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Send:
    """Let ``array`` travel to a rank; goes on at once, so it must not change before a `Flush`."""

    to: int
    array: Array


@dataclass(frozen=True, slots=True)
class Flush:
    """Wait until every array that was sent may be overwritten."""


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for the next message of a rank, and put it ``into`` an array of its size and dtype."""

    source: int
    into: Array


@dataclass(frozen=True, slots=True)
class Borrow(Receive):
    """As `Receive`, but the message may stay where it lies: in the sender's memory, say.

    What is sent back is the array that holds it, or None where that is ``into``. It must not be
    changed, and is there until the program's next operation.
    """


@dataclass(frozen=True, slots=True)
class ReceiveAny:
    """Wait for the next message of whichever rank is first; what is sent back is that rank.

    Only ranks that have been heard from before, by `Receive`, are listened to.
    """

    into: Array


@dataclass(frozen=True, slots=True)
class Worked:
    """A batch has been computed: ``rows`` rows with ``nonzeros`` stored features.

    It tells a simulator how much virtual time has passed; a cluster needs no telling.
    """

    rows: int
    nonzeros: int


Op = Send | Flush | Receive | ReceiveAny | Worked
Program = Generator[Op, Any, Result]
