"""Work that is no task of Dask's, on Dask's own task stream: without it merges would be gaps."""

from __future__ import annotations

import itertools

from distributed import Scheduler
from distributed.diagnostics.task_stream import TaskStreamPlugin

from daskxml.runtime.activity import Work

_numbers = itertools.count()


def draw_work(scheduler: Scheduler, run: str, address: str, work: Work) -> None:
    """Draw a piece of work where the worker's tasks are, if anybody has opened the task stream.

    Parameters
    ----------
    run
        Name of the run; part of the key, as in tasks.
    address
        Of the worker.
    """
    stream = scheduler.plugins.get(TaskStreamPlugin.name)
    if not isinstance(stream, TaskStreamPlugin):
        return
    tasks = (told for told in reversed(stream.buffer) if told.get("worker") == address)
    thread = next((told["thread"] for told in tasks if "thread" in told), 0)  # its line on the page
    span = {"action": "compute", "start": work.begin_s, "stop": work.end_s}
    key = f"daskxml-{work.what}-{run}-message-{next(_numbers)}"
    told = {"worker": address, "thread": thread, "status": "OK", "startstops": [span]}
    stream.transition(key, "processing", "memory", **told)
