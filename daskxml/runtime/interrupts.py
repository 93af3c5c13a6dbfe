"""Ctrl-C at moments that must not be cut in two."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def postponed() -> Iterator[None]:
    """Let Ctrl-C, and SIGTERM where it has a handler, wait for the end of the block.

    Examples
    --------
    >>> import os
    >>> try:
    ...     with postponed():
    ...         os.kill(os.getpid(), signal.SIGINT)
    ...         print("done")
    ... except KeyboardInterrupt:
    ...     print("interrupted")
    done
    interrupted
    """
    if threading.current_thread() is not threading.main_thread():  # signals are not for it
        yield
        return
    came: list[int] = []
    found = {number: signal.getsignal(number) for number in _SIGNALS}
    handlers = {number: handler for number, handler in found.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for heard in came:
        handlers[signal.Signals(heard)](heard, None)


@contextlib.contextmanager
def deaf_children() -> Iterator[None]:
    """Let processes that are started in the block, and theirs, not hear Ctrl-C."""
    resource_tracker.ensure_running()  # which would let the first child hear again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
