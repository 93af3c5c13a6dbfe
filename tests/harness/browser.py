"""Chromium without a window, driven over its DevTools protocol."""

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
START_S, ANSWER_S, MESSAGE_BYTES = 30.0, 20.0, 2**28
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--remote-debugging-port=0", "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip


class Browser:
    """One page of a browser that can reach nothing but this machine.

    Attributes
    ----------
    pid
        Of its first process.
    problems
        What the console says of errors, and exceptions that nobody caught.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, pid: int) -> None:
        self.loop, self.pid = loop, pid
        self.problems: list[str] = []
        self._numbers = itertools.count(1)
        self._socket: WebSocketClientConnection

    def connect(self, port: int) -> None:
        """Take over the page that the browser has opened."""
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
            pages = [it for it in json.load(answer) if it["type"] == "page"]
        self._socket = self._wait(self._connect(pages[0]["webSocketDebuggerUrl"]))
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def open(self, url: str, *, width: int = 1440, height: int = 1000, dark: bool = False) -> None:
        """Show a page."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        self.send("Emulation.setScrollbarsHidden", hidden=True)  # a screenshot has none
        pattern = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[pattern])
        self.send("Page.navigate", url=url)

    def evaluate(self, code: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=code, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, code: str, within_s: float = 30.0) -> Any:
        """Return the value of an expression once it is true; it may fail before."""
        deadline_s = time.monotonic() + within_s
        guarded = f"(() => {{ try {{ return ({code.strip()}) }} catch {{ return null }} }})()"
        while not (found := self.evaluate(guarded)):
            assert time.monotonic() < deadline_s, f"not in time: {code}; {self.problems}"
        return found

    def screenshot(self, path: Path) -> None:
        """Write a PNG of the whole page."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.send("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def send(self, method: str, **parameters: Any) -> Any:
        """Send a command; return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        return self._wait(self._ask(number, json.dumps(message)))

    async def _connect(self, url: str) -> WebSocketClientConnection:
        return await websocket_connect(url, max_message_size=MESSAGE_BYTES)

    async def _ask(self, number: int, message: str) -> Any:
        await self._socket.write_message(message)
        while True:
            answer = json.loads(await self._socket.read_message() or "{}")
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "assert"):
                self.problems.append(json.dumps(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, ANSWER_S))

    def close(self) -> None:
        """Close the connection; the browser goes on."""
        self._wait(self._disconnect())

    async def _disconnect(self) -> None:
        self._socket.close()  # outside of a loop Tornado would make another one


@contextlib.contextmanager
def opened_browser() -> Iterator[Browser]:
    """Start Chromium, and end it."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [CHROMIUM, *OPTIONS, f"--user-data-dir={folder}", "about:blank"]
        null = subprocess.DEVNULL
        process = subprocess.Popen(command, stdout=null, stderr=null)
        loop = asyncio.new_event_loop()
        try:
            browser = Browser(loop, process.pid)
            browser.connect(_port(Path(folder) / "DevToolsActivePort"))
            yield browser
            browser.close()
        finally:
            process.terminate()
            process.wait(START_S)
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()


def _port(path: Path) -> int:
    deadline_s = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError, IndexError, ValueError):
            return int(path.read_text().splitlines()[0])
        assert time.monotonic() < deadline_s, "the browser does not start"
