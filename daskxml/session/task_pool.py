"""Tasks that take each other's results, and which worker computes which of them.

A pool decides when a task begins, and on which worker: as soon as the tasks are done whose results
it takes, and a worker has room. Pieces begin in their order, and all else before them.
How tasks are computed is that of a subclass: as Dask's, by threads, or on virtual clocks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

PIECE = "piece"  # the name of the tasks that wait for others
HERE = object()  # among a task's arguments: what returns the `Fitter` of its process


@dataclass(eq=False)
class Task:
    """A call of a function.

    Attributes
    ----------
    what
        Its name on a dashboard.
    args
        A task among them, or in a list of them, stands for its result.
    work
        Of a piece, in products of a pass.
    is_wanted
        Whether ``value`` is to be known here, not only to other tasks.
    then
        Called with the value, once.
    worker, busy_s, begun_s, end_s
        Who computes it, or did; for how long, since when and until when.
    result
        Its value, or what stands for that in the arguments of Dask's tasks.
    """

    what: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    work: float = 0.0
    is_wanted: bool = False
    then: Callable[[Any], None] | None = None
    worker: str = ""
    busy_s: float = 0.0
    begun_s: float = math.inf
    end_s: float = math.inf
    result: Any = None
    value: Any = None
    is_done: bool = False

    @property
    def is_piece(self) -> bool:
        """Whether it is a piece."""
        return self.what == PIECE

    def needs(self) -> Iterator[Task]:
        """Yield the tasks whose results it takes."""
        for arg in self.args:
            values = arg if isinstance(arg, list) else [arg]
            yield from (value for value in values if isinstance(value, Task))


class TaskPool:
    """The tasks of a run that wait or are under way.

    Parameters
    ----------
    slots
        Tasks that each worker computes at a time, by name.

    Attributes
    ----------
    busy_s
        Seconds of each worker in tasks that were no pieces; who reads them sets them back.
    changed
        Called with "joined" or "lost" and the name of a worker.
    here, on_gpus
        What stands for `HERE`; whether a worker computes on a GPU.
    """

    here: Any
    on_gpus = False

    def __init__(self, slots: Mapping[str, int]) -> None:
        self.slots = dict(slots)
        self.waiting: list[Task] = []
        self.under_way: dict[Task, None] = {}
        self.busy_s = defaultdict[str, float](float)
        self.changed: Callable[[str, str], None] = lambda kind, worker: None

    @property
    def now_s(self) -> float:
        """The time."""
        raise NotImplementedError

    def choose(self, task: Task) -> str | None:
        """Return the worker that is to compute a task now; None if nobody has room."""
        raise NotImplementedError

    def begin(self, task: Task) -> None:
        """Begin to compute a task on its worker; `done` follows."""
        raise NotImplementedError

    def submit(
        self, what: str, function: Callable[..., Any], *args: Any, work: float = 0.0,
        is_wanted: bool = False, then: Callable[[Any], None] | None = None,
    ) -> Task:  # fmt: skip
        """Add a task; see `Task`."""
        task = Task(what, function, args, work, is_wanted or then is not None, then)
        self.waiting.append(task)
        return task

    def fill(self) -> None:
        """Begin all that can begin."""
        for task in sorted(self.waiting, key=lambda task: task.is_piece):
            if not all(needed.is_done for needed in task.needs()):
                continue
            worker = self.choose(task)
            if worker is not None:
                self.waiting.remove(task)
                self.under_way[task] = None
                task.worker, task.begun_s = worker, self.now_s
                self.begin(task)
            elif task.is_piece:
                return

    def resolved(self, args: Iterable[Any]) -> list[Any]:
        """Return arguments with the results of tasks in place of these."""
        return [
            self.resolved(arg) if isinstance(arg, list)
            else arg.result if isinstance(arg, Task)
            else self.here if arg is HERE
            else arg
            for arg in args
        ]  # fmt: skip

    def done(self, task: Task, worker: str, busy_s: float, value: Any = None) -> None:
        """Count the result of a task, unless it was dropped; it may come again after a loss."""
        if not (task.is_done or task in self.under_way):
            return
        self.under_way.pop(task, None)
        task.is_done, task.value, task.end_s = True, value, self.now_s
        task.worker, task.busy_s = worker, busy_s
        if not task.is_piece:
            self.busy_s[worker] += busy_s
        if task.then is not None:
            then, task.then = task.then, None
            then(value)

    def drop(self, tasks: Iterable[Task]) -> None:
        """Forget tasks and their results."""
        for task in tasks:
            self.under_way.pop(task, None)
            if task in self.waiting:
                self.waiting.remove(task)
