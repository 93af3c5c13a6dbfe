"""One cell's processes, from their start to their end within the cell's budgets."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from daskxml.bench.plan import Limits
from daskxml.bench.processes import MARK, end, group_members, marked_members, memory_bytes
from daskxml.config.fields import size_text

DONE, FAILED, OVER_TIME, OVER_MEMORY = "done", "failed", "over time", "over memory"
LOOK_S = 0.5
_TAIL_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a cell ended.

    Attributes
    ----------
    status
        `DONE`, `FAILED`, `OVER_TIME` or `OVER_MEMORY`.
    reason
        One line where it is not done.
    seconds
        By the clock, from the start of the process to its end.
    peak_bytes
        The most memory that all its processes together were seen to have, twice a second.
    """

    status: str
    reason: str = ""
    seconds: float
    peak_bytes: int


def perform(command: Sequence[str], folder: Path, limits: Limits) -> Ending:
    """Run Python with a command in a process group of its own, and wait for it.

    What it prints goes to ``output.txt`` in the folder. It is killed with all of its processes once
    it exceeds its time or its memory, or if this call is interrupted.

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
            env={**os.environ, MARK: str(folder), "DASKXML_RESULTS": str(folder)},
        )
    try:
        over, peak_bytes = _watch(process, begun_s, limits)
    finally:
        end(lambda: marked_members(folder))
        process.wait()
    seconds = time.monotonic() - begun_s
    status = over or (FAILED if process.returncode else DONE)
    reason = _reason(status, limits, process.returncode, output)
    return Ending(status=status, reason=reason, seconds=seconds, peak_bytes=peak_bytes)


def _watch(process: subprocess.Popen[bytes], begun_s: float, limits: Limits) -> tuple[str, int]:
    """Wait for the end; return the budget that was exceeded, if one was, and the peak memory."""
    peak_bytes = 0
    while True:
        left_s = begun_s + limits.seconds - time.monotonic()
        try:
            process.wait(timeout=max(0.0, min(LOOK_S, left_s)))
            return "", peak_bytes
        except subprocess.TimeoutExpired:
            peak_bytes = max(peak_bytes, memory_bytes(group_members(process.pid)))
        if peak_bytes > limits.memory_bytes:
            return OVER_MEMORY, peak_bytes
        if time.monotonic() - begun_s >= limits.seconds:
            return OVER_TIME, peak_bytes


def _reason(status: str, limits: Limits, code: int | None, output: Path) -> str:
    if status == OVER_TIME:
        return f"ended after its {limits.seconds / 60:g} minutes"
    if status == OVER_MEMORY:
        return f"ended for having more memory than its {size_text(limits.memory_bytes)}"
    if status == DONE:
        return ""
    return f"exit status {code}: {last_line(output) or 'it said nothing'}"


def last_line(output: Path) -> str:
    """Return the last line that a cell printed, which is the error where it failed."""
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
