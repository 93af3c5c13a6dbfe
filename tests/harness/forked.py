"""The command in processes that have imported already what it needs, by forking one that has.

What a case sees is what ``python -m daskxml.cli`` gives it: a process of its own with arguments, a
directory and empty input, the module run as ``__main__``, and an exit through the whole of Python's
end, with its status. Only what is imported is there before; who wants that in it, too, starts the
command itself.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

MODULE = "daskxml.cli"
IMPORTED = ("api.runs", "api.train", "cli.data", "cli.scheduler", "observe.dashboard")
LONGEST_S = 100  # that a case may take
Done = subprocess.CompletedProcess[str]


class ForkServer:
    """A process that forks for every call; one call at a time."""

    def __init__(self) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen([sys.executable, __file__], text=True, **pipes)

    def call(self, arguments: Sequence[str], folder: Path) -> Done:
        """Run the command in a folder, to its end."""
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answers is not None
        print(json.dumps([list(arguments), str(folder)]), file=asked, flush=True)
        return Done(list(arguments), **json.loads(answers.readline()))

    def close(self) -> None:
        """End the process, which has no others then."""
        self._process.communicate(timeout=20)


class Commands:
    """Runs several commands at a time, each in a process of its own."""

    def __init__(self) -> None:
        self._idle: SimpleQueue[ForkServer] = SimpleQueue()
        self._servers = [ForkServer() for _ in range(1 + len(os.sched_getaffinity(0)))]
        for server in self._servers:
            self._idle.put(server)

    def fork(self, arguments: Sequence[str], folder: Path) -> Done:
        """Run one by forking."""
        server = self._idle.get()
        try:
            return server.call(arguments, folder)
        finally:
            self._idle.put(server)

    def start(self, arguments: Sequence[str], folder: Path) -> Done:
        """Run one from its first line on."""
        called = [sys.executable, "-m", MODULE, *arguments]
        return subprocess.run(called, cwd=folder, capture_output=True, text=True, timeout=LONGEST_S)

    def all(
        self, cases: Mapping[str, Sequence[str]], folder: Path, started: Collection[str]
    ) -> dict[str, Done]:
        """Run those that are named in ``started`` from their first line on, and fork the others."""
        with ThreadPoolExecutor(len(self._servers)) as pool:
            done = {
                name: pool.submit(self.start if name in started else self.fork, given, folder)
                for name, given in cases.items()
            }
        return {name: future.result() for name, future in done.items()}

    def close(self) -> None:
        """End the processes."""
        for server in self._servers:
            server.close()


def serve() -> list[str] | None:
    """Answer calls; return in the parent at their end, in a child with its arguments."""
    for name in IMPORTED:
        importlib.import_module(f"daskxml.{name}")
    gc.freeze()  # or every child copies all that its end goes through
    for line in sys.stdin:
        arguments, folder = json.loads(line)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
            child = os.fork()
            if not child:
                take_place(folder, out, error)
                return list(arguments)
            told = {
                "returncode": status_of(child),
                "stdout": content(out),
                "stderr": content(error),
            }
        print(json.dumps(told), flush=True)
    return None


def status_of(child: int) -> int:
    """Wait for a process; one that takes too long is killed, and has that status."""
    handle = os.pidfd_open(child)
    if not select.select([handle], [], [], LONGEST_S)[0]:
        os.kill(child, signal.SIGKILL)
    os.close(handle)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def take_place(folder: str, out: IO[bytes], error: IO[bytes]) -> None:
    """Let this process have its own directory, input and outputs."""
    os.chdir(folder)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for file, number in ((nothing, 0), (out.fileno(), 1), (error.fileno(), 2)):
        os.dup2(file, number)


def content(file: IO[bytes]) -> str:
    """Return what a process has written."""
    file.seek(0)
    return file.read().decode()


def become(arguments: list[str]) -> Any:
    """Be ``python -m daskxml.cli``, which ends with `SystemExit`."""
    sys.argv[1:] = arguments
    return runpy.run_module(MODULE, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    given = serve()
    if given is not None:
        become(given)
