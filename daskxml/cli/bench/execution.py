"""Executing one cell in processes of its own, within its budget.

A cell is a process group, and all of its processes have its folder in their environment, so that
processes that left the group, or were left behind by a killed bench, are found as well.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from daskxml.cli.bench.cells import Budget
from daskxml.core.errors import ClusterError
from daskxml.core.fields import size_text

DONE, FAILED, OVER_TIME, OVER_MEMORY = "done", "failed", "over time", "over memory"
CELL_VARIABLE = "DASKXML_BENCH_CELL"
_CHECK_S = 0.5
_TAIL_BYTES = 4096
_KILL_TIMEOUT_S, _KILL_CHECK_S = 10.0, 0.02
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How the execution of a cell ended.

    Attributes
    ----------
    status
        `DONE`, `FAILED`, `OVER_TIME` or `OVER_MEMORY`.
    reason
        One line if it is not done.
    seconds
        Wall-clock time from the start of the process to its end.
    peak_bytes
        The peak memory of all its processes together, sampled twice a second.
    """

    status: str
    reason: str = ""
    seconds: float
    peak_bytes: int


def execute(command: Sequence[str], folder: Path, budget: Budget) -> Execution:
    """Run Python with a command in a process group of its own, and wait for it.

    Its output goes to ``output.txt`` in the folder. It is killed with all of its processes once it
    exceeds its budget, or if this call is interrupted.

    Parameters
    ----------
    command
        The interpreter's arguments.
    folder
        Of the cell; it exists.
    """
    output = folder / "output.txt"
    begun_s = time.monotonic()
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, CELL_VARIABLE: str(folder), "DASKXML_RESULTS": str(folder)},
        )
    try:
        exceeded, peak_bytes = _watch(process, begun_s, budget)
    finally:
        kill_all(lambda: cell_processes(folder))
        process.wait()
    seconds = time.monotonic() - begun_s
    status = exceeded or (FAILED if process.returncode else DONE)
    reason = _reason(status, budget, process.returncode, output)
    return Execution(status=status, reason=reason, seconds=seconds, peak_bytes=peak_bytes)


def _watch(process: subprocess.Popen[bytes], begun_s: float, budget: Budget) -> tuple[str, int]:
    """Wait for the end; return the status if the budget was exceeded, else "", and peak memory."""
    peak_bytes = 0
    while True:
        left_s = begun_s + budget.seconds - time.monotonic()
        try:
            process.wait(timeout=max(0.0, min(_CHECK_S, left_s)))
            return "", peak_bytes
        except subprocess.TimeoutExpired:
            peak_bytes = max(peak_bytes, memory_bytes(group_processes(process.pid)))
        if peak_bytes > budget.memory_bytes:
            return OVER_MEMORY, peak_bytes
        if time.monotonic() - begun_s >= budget.seconds:
            return OVER_TIME, peak_bytes


def _reason(status: str, budget: Budget, code: int | None, output: Path) -> str:
    if status == OVER_TIME:
        return f"ended after its {budget.seconds / 60:g} minutes"
    if status == OVER_MEMORY:
        return f"ended for having more memory than its {size_text(budget.memory_bytes)}"
    if status == DONE:
        return ""
    return f"exit status {code}: {_last_line(output) or 'it said nothing'}"


def _last_line(output: Path) -> str:
    """Return the last line of the output, which is the error of a failed cell."""
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def group_processes(group: int) -> list[psutil.Process]:
    """Return the running processes of a process group.

    Examples
    --------
    >>> os.getpid() in [process.pid for process in group_processes(os.getpgid(0))]
    True
    """
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() not in _ENDED:
                members.append(process)
    return members


def cell_processes(folder: Path) -> list[psutil.Process]:
    """Return the processes that were started for the cell of a folder."""
    return [
        process
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get(CELL_VARIABLE) == str(folder)
    ]


def memory_bytes(processes: Iterable[psutil.Process]) -> int:
    """Return the memory of processes; pages that they share count once.

    This is the sum of the proportional set sizes; of the resident sizes where the system denies
    those. Processes that have ended count 0.

    Examples
    --------
    >>> memory_bytes([psutil.Process()]) > 2**20
    True
    """
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            try:
                total += process.memory_full_info().pss
            except psutil.AccessDenied:
                total += process.memory_info().rss
    return total


def kill_all(find: Callable[[], list[psutil.Process]]) -> None:
    """Kill processes until none is found, including those that they start meanwhile.

    Raises
    ------
    ClusterError
        If some cannot be killed within ten seconds.
    """
    deadline_s = time.monotonic() + _KILL_TIMEOUT_S
    while processes := find():
        if time.monotonic() > deadline_s:
            pids = [process.pid for process in processes]
            raise ClusterError(f"processes {pids} cannot be killed: end them, then go on")
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(_KILL_CHECK_S)
