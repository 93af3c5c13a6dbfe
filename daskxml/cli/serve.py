"""``daskxml serve``: a model's answers over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from dataclasses import fields
from typing import Any

from daskxml.cli.arguments import Options
from daskxml.core.errors import ConfigError, InputError

_GRACE_S = 30  # for requests under way at the end
_SWITCH_S = (
    2e-4  # at most, for Python's lock: a thread that ranked rows waits for the one that reads
)


def serve(options: Options) -> int:
    """Answer requests until SIGTERM or Ctrl-C; those under way are answered first."""
    try:
        import uvicorn

        from daskxml.cli.serving import ServingSettings, create_app
    except ImportError as error:
        need = "serving needs FastAPI and uvicorn: pip install 'daskxml[serve]'"
        raise ConfigError(need) from error
    sys.setswitchinterval(_SWITCH_S)
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("daskxml.cli.serving").setLevel(logging.INFO)
    names = {field.name for field in fields(ServingSettings)}
    given = {name: value for name, value in vars(options).items() if name in names}
    settings = ServingSettings(**{n: value for n, value in given.items() if value is not None})
    with _listening(options.host, options.port) as listener:
        print(f"loading {options.model}", flush=True)
        app = create_app(options.model, settings)
        config = uvicorn.Config(
            app, log_config=None, access_log=False, server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
        )  # fmt: skip
        answering = _answer(uvicorn.Server(config), app.state.server, listener)
        with (
            contextlib.suppress(KeyboardInterrupt),  # the signal that it has ended for
            asyncio.Runner(loop_factory=config.get_loop_factory()) as runner,
        ):
            runner.run(answering)
    return 0


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
        tasks.add(task := asyncio.ensure_future(app.reload_or_tell()))
        task.add_done_callback(tasks.discard)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    print(f"answering at http://{at}:{port}/predict (what may be asked: /docs)", flush=True)
    await server.serve(sockets=[listener])
