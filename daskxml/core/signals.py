"""Blocks of code that Ctrl-C must not interrupt, and child processes that ignore it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker

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
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    found = {number: signal.getsignal(number) for number in _SIGNALS}
    handlers = {number: handler for number, handler in found.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, lambda number, frame: pending.append(number))
    try:
        yield
    finally:  # also where the block fails: perhaps only because its children got the signal too
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for received in pending:
            handlers[signal.Signals(received)](received, None)


@contextlib.contextmanager
def shield_children() -> Iterator[None]:
    """Make processes that are started in the block, and their children, ignore Ctrl-C."""
    resource_tracker.ensure_running()  # started later, it would unblock SIGINT for the first child
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
