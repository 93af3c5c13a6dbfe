"""Requests whose bodies are too large, or do not come to an end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class BodyLimit:
    """An ASGI application in front of another: it reads the body, in bounds of size and time.

    Parameters
    ----------
    app
        Gets requests whose bodies are whole.
    most_bytes
        A longer body is answered with 413.
    within_s
        One that is not there in time is answered with 408.
    """

    def __init__(self, app: App, most_bytes: int, within_s: float) -> None:
        self._app, self._most_bytes, self._within_s = app, most_bytes, within_s

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._within_s):
                body = await self._body(receive)
        except TimeoutError:
            await _refuse(send, 408, f"the body was not whole within {self._within_s:g} s")
            return
        if body is None:
            await _refuse(send, 413, f"the body is larger than {self._most_bytes:,} bytes")
            return
        is_read = False

        async def whole() -> Message:
            nonlocal is_read
            if is_read:
                return await receive()  # the client goes
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, whole, send)

    async def _body(self, receive: Receive) -> bytes | None:
        """Return the whole body; None if it is too large."""
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return b""
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._most_bytes:
                return None
            if not message.get("more_body", False):
                return b"".join(parts)


async def _refuse(send: Send, status: int, problem: str) -> None:
    body = json.dumps({"error": problem}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
