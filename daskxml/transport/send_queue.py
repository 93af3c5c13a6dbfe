"""What an endpoint sends to another one: a queue and a thread for each channel.

So sending overlaps receiving and arithmetic, and a slow receiver delays nobody but itself. Nor can
two endpoints deadlock that both wait for the other to receive: `SendQueue.flush` copies what the
receiver does not take.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from daskxml.transport.channels.protocol import Payload, Sender, copy_payload


class SendQueue:
    """Sends arrays over one channel, in order, from their own memory.

    Parameters
    ----------
    connect
        Waits for the channel, and returns it.
    on_failure
        Called once with the error, from the sending thread.
    timeout_s
        How long the receiver may take nothing, in seconds.
    channel
        The channel, if it is open already.
    """

    def __init__(
        self,
        connect: Callable[[], Sender],
        on_failure: Callable[[OSError], None],
        timeout_s: float,
        channel: Sender | None = None,
    ) -> None:
        self._connect, self._on_failure, self._timeout_s = connect, on_failure, timeout_s
        self._channel = channel
        self._queue: deque[Payload] = deque()
        self._copies = 0  # at the front of the queue; the others are the program's own arrays
        self._is_flushing = self._is_closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, data: Payload) -> None:
        """Send these bytes; returns before they have left."""
        with self._changed:
            channel = self._channel
            if channel and not self._queue and len(data) <= channel.inline_bytes:
                data = data[channel.send_now(data) :]
                if not len(data):
                    return
            self._queue.append(data)
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="daskxml-out", daemon=True)
            self._thread.start()

    def flush(self) -> None:
        """Wait until every array may be overwritten (or the queue is closed)."""
        with self._changed:
            self._is_flushing = True
            self._changed.wait_for(lambda: self._is_closed or len(self._queue) == self._copies)
            self._is_flushing = False
            channel = self._channel
        if channel and not self._is_closed:
            channel.flush()

    def drain(self) -> None:
        """Wait until everything has left (or the queue is closed)."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or not self._queue)
            channel = self._channel
        if channel and not self._is_closed:
            channel.drain()

    def close(self) -> None:
        """Send nothing more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def join(self) -> None:
        """Wait for the thread to end, after `close`; a blocked channel must be aborted first."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._send_all(self._connect())
        except OSError as error:
            self._on_failure(error)

    def _send_all(self, channel: Sender) -> None:
        moved_s = time.monotonic()
        while (data := self._next()) is not None:
            sent = channel.send(data)
            with self._changed:
                self._channel = channel
                self._remove_sent(data, sent)
            now_s = time.monotonic()
            if sent:
                moved_s = now_s
            elif now_s - moved_s > self._timeout_s:
                raise TimeoutError

    def _next(self) -> Payload | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closed)
            return None if self._is_closed else self._queue[0]

    def _remove_sent(self, data: Payload, sent: int) -> None:
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
    copied = copy_payload(payload)
    return memoryview(copied) if isinstance(copied, bytes) else copied
