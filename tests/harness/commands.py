"""`daskxml` commands as processes that are watched, interrupted and killed while they run.

They are forked from the process that the workers of the tests are forked from, which has imported
what they need (see `conftest`): all else is as from a terminal. Each leads a process group of its
own, its outputs are pipes, and its own workers are forked from a process that it starts itself.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import runpy
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from types import TracebackType
from typing import IO

import psutil

MODULE = "daskxml.cli"
WITHIN_S = 120.0  # far more than any of them needs, as other processes may load the machine


class Command:
    """A `daskxml` command under way; what is left of it is killed at the end of the block.

    Attributes
    ----------
    lines
        What `wait_for` has read of its output.
    """

    def __init__(self, *arguments: object) -> None:
        context = multiprocessing.get_context("forkserver")
        (out, its_out), (errors, its_errors) = (context.Pipe(duplex=False) for _ in range(2))
        given = (list(map(str, arguments)), its_out, its_errors)
        self.process = context.Process(target=_become, args=given)
        self.process.start()
        its_out.close()
        its_errors.close()
        self.lines: list[str] = []
        self._coming, self._reader = _lines_of(out)
        self._errors, self._error_reader = _lines_of(errors)

    @property
    def pid(self) -> int:
        """Of the process, which leads its group."""
        assert self.process.pid is not None
        return self.process.pid

    def wait_for(self, word: str) -> None:
        """Read what it prints up to a line that starts with a word."""
        while (line := self._coming.get(timeout=WITHIN_S)) is not None:
            self.lines.append(line)
            if line.startswith(word):
                return
        raise AssertionError(f"no {word!r}: {self.lines} {self.end()}")

    def interrupt(self) -> None:
        """Do what Ctrl-C does: the signal goes to every process of the group."""
        os.killpg(self.pid, signal.SIGINT)

    def end(self) -> tuple[int, str, str]:
        """Wait for its end; return the exit status, the output after `lines`, and stderr."""
        self.process.join(WITHIN_S)
        assert self.process.exitcode is not None, "still under way"
        for reader in (self._reader, self._error_reader):
            reader.join(WITHIN_S)
        rest, errors = ("".join(filter(None, _rest(it))) for it in (self._coming, self._errors))
        return self.process.exitcode, rest, errors

    def family(self) -> list[psutil.Process]:
        """All processes that it has started."""
        return list(psutil.Process(self.pid).children(recursive=True))

    def __enter__(self) -> Command:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.end()
        self.process.close()


def _lines_of(pipe: Connection) -> tuple[queue.SimpleQueue[str | None], threading.Thread]:
    """Read a pipe in a thread, since nobody may wait for who does not read; None is its end."""
    found: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        with pipe, open(os.dup(pipe.fileno()), encoding="utf-8") as file:  # noqa: PTH123
            for line in file:
                found.put(line)
        found.put(None)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return found, thread


def _rest(lines: queue.SimpleQueue[str | None]) -> Iterator[str | None]:
    with contextlib.suppress(queue.Empty):
        while True:
            yield lines.get_nowait()


def _become(arguments: list[str], out: Connection, errors: Connection) -> None:
    """Be ``python -m daskxml.cli``, which ends with `SystemExit`."""
    os.setsid()
    for pipe, stream in ((out, sys.stdout), (errors, sys.stderr)):
        _replace(stream, pipe)
    sys.argv = [MODULE, *arguments]
    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)


def _replace(stream: IO[str], pipe: Connection) -> None:
    os.dup2(pipe.fileno(), stream.fileno())
    pipe.close()
