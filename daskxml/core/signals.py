"""Code that Ctrl-C must not interrupt or only asks to end, and children that ignore it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Defer Ctrl-C, and SIGTERM where it has a handler, to the end of the block.

    Threads other than the main one receive no signals: there the block just runs.

    Examples
    --------
    >>> import os
    >>> try:
    ...     with defer_signals():
    ...         os.kill(os.getpid(), signal.SIGINT)
    ...         print("done")
    ... except KeyboardInterrupt:
    ...     print("interrupted")
    done
    interrupted
    """
    pending, handlers = list[int](), _handlers()
    for number in handlers:
        signal.signal(number, lambda number, frame: pending.append(number))
    try:
        yield
    finally:  # also where the block fails: perhaps only because its children got the signal too
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for received in pending:
            handlers[received](received, None)


@dataclass(slots=True)
class Request:
    """Whether Ctrl-C was pressed since somebody has set this to False."""

    is_made: bool = False


@contextlib.contextmanager
def first_signal_asks() -> Iterator[Request]:
    """Make a request of the first Ctrl-C, or SIGTERM that has a handler; the next is as usual.

    An exception in the middle of a lock's own code could leave it locked, and one between two
    statements would be outside of both. In other threads than the main one nothing is requested.

    Examples
    --------
    >>> import os
    >>> with first_signal_asks() as request:
    ...     os.kill(os.getpid(), signal.SIGINT)
    ...     print(request.is_made)
    True
    """
    request, came, handlers = Request(), list[int](), _handlers()

    def ask(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            handlers[number](number, frame)
        request.is_made = True

    for number in handlers:
        signal.signal(number, ask)
    try:
        yield request
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def shield_children() -> Iterator[None]:
    """Make processes that are started in the block, and their children, ignore Ctrl-C."""
    resource_tracker.ensure_running()  # started later, it would unblock SIGINT for the first child
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _handlers() -> dict[int, Callable[[int, FrameType | None], Any]]:
    """Return the signals' handlers; empty in other threads than the main one, which gets none."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    found = {number: signal.getsignal(number) for number in _SIGNALS}
    return {number: handler for number, handler in found.items() if callable(handler)}
