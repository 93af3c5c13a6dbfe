"""`daskxml` commands as processes: many side by side, or watched, interrupted and killed.

They are forked from the process that the workers of the tests are forked from, which has imported
what they need (see `conftest`). All else is as from a terminal: ``python -m daskxml`` runs as
``__main__`` in a directory with empty input, leads a process group of its own, writes to pipes,
forks its own workers from a process that it starts itself, and ends with Python's exit functions.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import multiprocessing.process
import os
import queue
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import IO

import psutil
import pytest

from daskxml.cli.main import main

MODULE = "daskxml"
WITHIN_S = 120.0  # far more than any of them needs, as other processes may load the machine


class Command:
    """A `daskxml` command under way; what is left of it is killed at the end of the block.

    Parameters
    ----------
    arguments
        Those of ``daskxml``.
    folder
        Its working directory; None for this process's.

    Attributes
    ----------
    lines
        What `wait_for` has read of its output.
    """

    def __init__(self, *arguments: object, folder: Path | None = None) -> None:
        context = multiprocessing.get_context("forkserver")
        (out, its_out), (errors, its_errors) = (context.Pipe(duplex=False) for _ in range(2))
        given = (list(map(str, arguments)), folder or Path.cwd(), its_out, its_errors)
        self.process = context.Process(target=_become, args=given)
        self.process.start()
        # Whoever starts the next process would else ask how this one ended, which only one learns.
        multiprocessing.process._children.discard(self.process)  # type: ignore[attr-defined]
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

    def wait_for(self, *words: str) -> None:
        """Read what it prints up to a line that starts with one of the words."""
        while (line := self._coming.get(timeout=WITHIN_S)) is not None:
            self.lines.append(line)
            if line.startswith(words):
                return
        raise AssertionError(f"none of {words}: {self.lines} {self.end()}")

    def error(self, words: str) -> str:
        """Read what it prints on stderr up to a line that starts with the words; return that."""
        while not (line := self._errors.get(timeout=WITHIN_S)).startswith(words):
            pass
        return line

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


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the one line with which a command is refused in this process."""
    assert main(list(map(str, arguments))) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("daskxml: error: ")
    assert err.count("\n") == 1
    return err


Done = subprocess.CompletedProcess[str]


def run_all(
    cases: Mapping[str, Sequence[str]], folder: Path, started: Collection[str]
) -> dict[str, Done]:
    """Run commands in a folder to their ends, several at a time.

    Those that are named in ``started`` are processes of their own from their first line on.
    """
    with ThreadPoolExecutor(1 + len(os.sched_getaffinity(0))) as pool:
        done = {
            name: pool.submit(_start if name in started else _fork, given, folder)
            for name, given in cases.items()
        }
    return {name: future.result() for name, future in done.items()}


def _fork(arguments: Sequence[str], folder: Path) -> Done:
    with Command(*arguments, folder=folder) as command:
        return Done(arguments, *command.end())


def _start(arguments: Sequence[str], folder: Path) -> Done:
    called = [sys.executable, "-m", MODULE, *arguments]
    return subprocess.run(called, cwd=folder, capture_output=True, text=True, timeout=WITHIN_S)


def _become(arguments: list[str], folder: Path, out: Connection, errors: Connection) -> None:
    """Be ``python -m daskxml``, which ends with `SystemExit`."""
    os.setsid()
    os.chdir(folder)
    # The process that forks may have been started by a cluster, whose workers ignore Ctrl-C.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for pipe, stream in ((out, sys.stdout), (errors, sys.stderr)):
        _replace(stream, pipe)
    sys.argv = [MODULE, *arguments]
    try:
        runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # a process of `multiprocessing` leaves them out


def _replace(stream: IO[str], pipe: Connection) -> None:
    os.dup2(pipe.fileno(), stream.fileno())
    pipe.close()
