"""What is on its way out of an endpoint: one queue and one thread for each link.

So sending overlaps receiving and arithmetic, and a slow receiver holds up nobody but itself. Nor
can two endpoints hold up each other, each waiting for the other to receive before it goes on to
receive: `Outbox.flush` takes a copy of what a receiver leaves lying.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from daskxml.runtime.link_protocol import OutLink
from daskxml.runtime.payloads import Payload, duplicate


class Outbox:
    """Sends arrays to one other endpoint, in order, from where they lie.

    Parameters
    ----------
    link_of
        Waits for the link, and returns it.
    failed
        Called once with what went wrong, from the sending thread.
    patience_s
        How long the receiver may take nothing, in seconds.
    link
        The link, if it is open already.
    """

    def __init__(
        self,
        link_of: Callable[[], OutLink],
        failed: Callable[[OSError], None],
        patience_s: float,
        link: OutLink | None = None,
    ) -> None:
        self._link_of, self._failed, self._patience_s = link_of, failed, patience_s
        self._link = link
        self._queue: deque[Payload] = deque()
        self._copies = 0  # at the front of the queue; the others are the program's own arrays
        self._is_flushing = self._is_closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, data: Payload) -> None:
        """Let these bytes leave; returns before they have."""
        with self._changed:
            link = self._link
            if link and not self._queue and len(data) <= link.quick_bytes:
                data = data[link.send_now(data) :]
                if not len(data):
                    return
            self._queue.append(data)
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="daskxml-out", daemon=True)
            self._thread.start()

    def flush(self) -> None:
        """Wait until every array may be overwritten (or nothing more is sent)."""
        with self._changed:
            self._is_flushing = True
            self._changed.wait_for(lambda: self._is_closed or len(self._queue) == self._copies)
            self._is_flushing = False
            link = self._link
        if link and not self._is_closed:
            link.flush()

    def drain(self) -> None:
        """Wait until everything has left (or nothing more is sent)."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or not self._queue)
            link = self._link
        if link and not self._is_closed:
            link.drain()

    def close(self) -> None:
        """Send nothing more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def join(self) -> None:
        """Wait for the thread to end, after `close`; the link must be aborted if it is stuck."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._send_all(self._link_of())
        except OSError as error:
            self._failed(error)

    def _send_all(self, link: OutLink) -> None:
        moved_s = time.monotonic()
        while (data := self._next()) is not None:
            sent = link.send(data)
            with self._changed:
                self._link = link
                self._book(data, sent)
            now_s = time.monotonic()
            if sent:
                moved_s = now_s
            elif now_s - moved_s > self._patience_s:
                raise TimeoutError

    def _next(self) -> Payload | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closed)
            return None if self._is_closed else self._queue[0]

    def _book(self, data: Payload, sent: int) -> None:
        if sent < len(data):
            self._queue[0] = data[sent:]
            if self._is_flushing and not sent:
                self._queue = deque(map(_copy, self._queue))
                self._copies = len(self._queue)
        else:
            self._queue.popleft()
            self._copies -= self._copies > 0
        self._changed.notify_all()


def _copy(payload: Payload) -> Payload:
    copied = duplicate(payload)
    return memoryview(copied) if isinstance(copied, bytes) else copied
