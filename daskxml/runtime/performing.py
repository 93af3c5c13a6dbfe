"""A program of messages (`daskxml.combine.messages`) driven over real lines, in a thread."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Generic, Protocol

from daskxml.combine.messages import Borrow, Flush, Op, Program, Receive, ReceiveAny, Result, Send
from daskxml.types import Array


class Lines(Protocol):
    """The way from one endpoint to all others; every method raises OSError when it is cut."""

    def send(self, to: int, array: Array) -> None:
        """Let an array leave; returns before it has."""

    def receive(self, source: int, into: Array) -> None:
        """Wait for an endpoint's next array."""

    def borrow(self, source: int, into: Array) -> Array:
        """Wait for an endpoint's next array; return it where it lies, until the next call."""

    def receive_any(self, into: Array) -> int:
        """Wait for the next array of any endpoint that was heard from; return which it is."""

    def flush(self) -> None:
        """Wait until everything that was sent may be overwritten."""

    def drain(self) -> None:
        """Wait until everything has left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Performed(Generic[Result]):
    """What a program returned, and what it cost.

    Attributes
    ----------
    result
        What it returned.
    busy_s
        Seconds inside the program, without waiting for others.
    sent_bytes
        Bytes of the arrays that it sent.
    """

    result: Result
    busy_s: float
    sent_bytes: int


def perform(program: Program[Result], lines: Lines) -> Performed[Result]:
    """Drive a program to its end; all that it sent has left then.

    Raises
    ------
    OSError
        When a line is cut; whatever the program raises.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.combine.messages import Worked
    >>> def alone():
    ...     yield Worked(rows=2, nonzeros=6)
    ...     return "done"
    >>> perform(alone(), None).result  # it needs no lines
    'done'
    """
    busy_s, sent_bytes, answer = 0.0, 0, None
    try:
        while True:
            begun_s = time.perf_counter()
            try:
                op = program.send(answer)
            except StopIteration as end:
                busy_s += time.perf_counter() - begun_s
                if sent_bytes:
                    lines.drain()
                return Performed(result=end.value, busy_s=busy_s, sent_bytes=sent_bytes)
            busy_s += time.perf_counter() - begun_s
            if isinstance(op, Send):
                sent_bytes += int(op.array.nbytes)
            answer = _carry_out(op, lines)
    finally:
        program.close()


def _carry_out(op: Op, lines: Lines) -> Any:
    match op:
        case Send(to, array):
            lines.send(to, array)
        case Borrow(source, into):
            return lines.borrow(source, into)
        case Receive(source, into):
            lines.receive(source, into)
        case ReceiveAny(into):
            return lines.receive_any(into)
        case Flush():
            lines.flush()
    return None
