"""``daskxml serve``: a model's answers over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import sys
from dataclasses import fields
from typing import Any
from weakref import WeakSet

from daskxml.cli.arguments import Options
from daskxml.core.errors import ConfigError, InputError

_HEADER_BYTES = 1 << 16  # of a request
_GRACE_S = 30  # for requests under way at the end
# At most, for Python's lock: a thread that has ranked rows waits for the one that reads.
_SWITCH_S = 2e-4


def serve(options: Options) -> int:
    """Answer requests until SIGTERM or Ctrl-C; those under way are answered first."""
    try:
        import uvicorn
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

        from daskxml.cli.asgi import ServingSettings, create_app
    except ImportError as error:
        need = "serving needs FastAPI and uvicorn: pip install 'daskxml[serve]'"
        raise ConfigError(need) from error
    sys.setswitchinterval(_SWITCH_S)
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("daskxml.cli.asgi").setLevel(logging.INFO)
    given = {field.name: getattr(options, field.name, None) for field in fields(ServingSettings)}
    settings = ServingSettings(**{n: value for n, value in given.items() if value is not None})
    with _listening(options.host, options.port) as listener:
        print(f"loading {options.model}", flush=True)
        app = create_app(options.model, settings)
        config = uvicorn.Config(
            app, log_config=None, access_log=False, server_header=False, ws="none",
            http=_bounded(HttpToolsProtocol, settings.request_s),
            timeout_graceful_shutdown=_GRACE_S,
        )  # fmt: skip
        answering = _answer(uvicorn.Server(config), app.state.server, listener)
        with (
            contextlib.suppress(KeyboardInterrupt),  # the signal that it has ended for
            asyncio.Runner(loop_factory=config.get_loop_factory()) as runner,
        ):
            runner.run(answering)
    return 0


def _bounded(protocol: Any, within_s: float) -> Any:
    """Return uvicorn's protocol of a connection, with headers in bounds of size and time.

    So is the time to take an answer. Connections whose request is not whole, or answer not taken,
    take half of the files that may be open at most: of more, the one that has taken longest is cut
    off.
    """
    unfinished: dict[tuple[Any, str], None] = {}  # longest first

    class Bounded(protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transport.set_write_buffer_limits(0)  # else a short rest would wait for ever
            self.cycles: WeakSet[Any] = WeakSet()
            self.await_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            unfinished.pop((self, "request"), None)
            unfinished.pop((self, "answer"), None)
            for cycle in self.cycles:  # uvicorn tells the last one only
                cycle.disconnected = True
            super().connection_lost(exc)

        def await_headers(self) -> None:
            self.left_bytes = _HEADER_BYTES
            self.awaited = self.await_client("request")

        def await_client(self, what: str) -> asyncio.TimerHandle:
            unfinished[self, what] = None
            may_open, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if may_open != resource.RLIM_INFINITY and len(unfinished) > may_open // 2:
                longest = next(iter(unfinished))
                del unfinished[longest]
                longest[0].transport.abort()
            return self.loop.call_later(within_s, self.transport.abort)

        def pause_writing(self) -> None:
            self.untaken = self.await_client("answer")
            super().pause_writing()

        def resume_writing(self) -> None:
            self.untaken.cancel()
            unfinished.pop((self, "answer"), None)
            super().resume_writing()

        def data_received(self, data: bytes) -> None:
            last = self.cycle  # None before the first request
            is_over = last is not None and (last.response_complete or not last.more_body)
            if is_over and self.awaited.cancelled():
                self.await_headers()
            super().data_received(data)
            self.left_bytes -= len(data)
            is_waiting = not (self.awaited.cancelled() or self.transport.is_closing())
            if is_waiting and self.left_bytes < 0:
                self.send_400_response(f"The headers are larger than {_HEADER_BYTES:,} bytes.")

        def on_headers_complete(self) -> None:
            self.awaited.cancel()
            if sum(len(name) + len(value) for name, value in self.headers) > _HEADER_BYTES:
                raise ValueError("the headers came at once")  # uvicorn answers 400
            super().on_headers_complete()
            self.cycles.add(self.cycle)

        def on_message_complete(self) -> None:
            unfinished.pop((self, "request"), None)
            super().on_message_complete()

    return Bounded


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that a server listens on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{host}:{port}: nobody can listen there ({reason})") from error


async def _answer(server: Any, app: Any, listener: socket.socket) -> None:
    """Answer until a signal; SIGHUP takes the model that is in the directory then."""
    host, port = listener.getsockname()[:2]
    at = f"[{host}]" if ":" in host else host
    tasks = set()

    def reload() -> None:
        tasks.add(task := asyncio.ensure_future(app.reload()))
        task.add_done_callback(tasks.discard)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    print(f"answering at http://{at}:{port}/predict (what may be asked: /docs)", flush=True)
    await server.serve(sockets=[listener])
