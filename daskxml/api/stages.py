"""The stages of a pipeline: handles of what they make, which is made when it is first needed.

A stage's key is a hash of its settings, of the source of the user's functions in it, and of the
keys of the stages that it takes; its tasks have it in their names. So Dask does nothing twice: a
stage that is described again while its partitions are there is the same tasks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from dask.base import tokenize
from distributed import Client, Future, wait
from distributed.scheduler import KilledWorker

from daskxml.api.collections import RowsOnWorkers
from daskxml.api.stage_tasks import Function
from daskxml.cluster.event_log import explained
from daskxml.core.errors import ClusterError, DaskxmlError, InputError
from daskxml.core.work_stats import StageRecord

FAN_IN = 8  # of the tree in which what was found in each partition is merged

NUMBER = object()  # an argument of tasks: the number of their partition


def key_of(*made_of: Any) -> str:
    """Return a hash of settings, functions and keys, the same in every process.

    Dask's tokens of functions are their names: a function is known here by its source.

    Examples
    --------
    >>> key_of("drop", {"least": 3}) == key_of("drop", {"least": 3})
    True
    >>> key_of("drop", {"least": 3}) == key_of("drop", {"least": 4})
    False
    """
    return str(tokenize(*map(_known_by, made_of)))[:16]


def _known_by(value: Any) -> Any:
    if not hasattr(value, "__code__"):
        return value
    cells = [_known_by(cell.cell_contents) for cell in value.__closure__ or ()]
    try:
        source = inspect.getsource(value)
    except (OSError, TypeError):  # typed at a prompt
        source = value.__code__.co_code.hex() + repr(value.__code__.co_consts)
    return [value.__qualname__, source, value.__defaults__, value.__kwdefaults__, *cells]


class Stage:
    """What a stage makes.

    Attributes
    ----------
    name
        As events call it.
    key
        See the head of this module.
    """

    def __init__(self, name: str, key: str, make: Callable[[], Any]) -> None:
        self.name, self.key = name, key
        self._make: Callable[[], Any] | None = make
        self._made: Any = None

    def made(self) -> Any:
        """Return what it makes; make it, unless that is done."""
        if self._make is not None:
            self._made = self._make()
            self._make = None  # and with it the stages before, whose rows nobody else may need
        return self._made

    def __repr__(self) -> str:
        state = "made" if self._make is None else "not needed yet"
        return f"<{type(self).__name__} {self.name!r}, {state}>"


class Rows(Stage):
    """Rows in partitions that stay on the workers as long as this object is referenced.

    A partition is a pair ``(X, Y)``: two matrices, or anything else of which a later stage makes
    them, such as a list of texts and a list of names.

    Attributes
    ----------
    record
        Their sizes, and the time that they took; None before they are made.
    names
        Of the columns, and what made rows of texts, where that is known: they are stored with
        models that are trained on the rows.
    """

    record: StageRecord | None = None
    names: Value | None = None

    @property
    def partitions(self) -> list[Future]:
        """A future of each partition; they are made now, if they are not there."""
        return list(self.made())

    def on_workers(self) -> RowsOnWorkers:
        """Return what `daskxml.train` takes as rows."""
        partitions, names = self.partitions, self.names
        return RowsOnWorkers(
            partitions,
            names=[names.made()] if names else (),
            stages=(self.record,) if self.record else (),
        )

    def named(self, names: Value | None) -> Rows:
        """Return these rows, whose columns have such names."""
        self.names = names
        return self


class Value(Stage):
    """A single object that a stage makes: what was learnt, a run, metrics."""

    def result(self) -> Any:
        """Return it; make it now, if that is not done."""
        made = self.made()
        return made.result() if isinstance(made, Future) else made


def submit_each(
    client: Client,
    name: str,
    key: str,
    partitions: Sequence[Future],
    function: Function,
    *args: Any,
) -> list[Future]:
    """Start ``function(partition, *args)`` for each partition, under names that stand for them.

    ``NUMBER`` among the arguments is the partition's number.
    """
    return [
        client.submit(
            function, part, *[number if arg is NUMBER else arg for arg in args],
            key=f"{name}-{key}-{number}", pure=False,
        )
        for number, part in enumerate(partitions)
    ]  # fmt: skip


def submit_merges(
    client: Client, name: str, key: str, found: Sequence[Future], merge: Function
) -> Future:
    """Start the merges of what was found, in a tree; return the future of its root."""
    level, futures = 0, list(found)
    while len(futures) > 1 or level == 0:
        groups = [futures[i : i + FAN_IN] for i in range(0, len(futures), FAN_IN)]
        futures = [
            client.submit(merge, group, key=f"{name}-merge-{key}-{level}-{number}", pure=False)
            for number, group in enumerate(groups)
        ]
        level += 1
    return futures[0]


def await_stage(name: str, futures: Sequence[Future]) -> None:
    """Wait for a stage's tasks, those that failed before again.

    Raises
    ------
    DaskxmlError
        Of the first partition that failed, in one line.
    """
    for future in futures:
        if future.status == "error":
            future.retry()
    if futures:
        with futures[0].client.as_current():  # a user may have another one open
            wait(futures)
    for number, future in enumerate(futures):
        if future.status != "finished":
            place = f"stage {name!r}, partition {number}"
            raise _one_line(place, future.exception()) from None


def _one_line(place: str, error: BaseException) -> DaskxmlError:
    if isinstance(error, InputError):
        return InputError(f"{place}: {error.problem}", error.path, error.line)
    if isinstance(error, DaskxmlError):
        return type(error)(f"{place}: {error}")
    known = explained(error) if isinstance(error, MemoryError | KilledWorker) else None
    if known is not None:
        return ClusterError(f"{place}: {known}")
    return InputError(f"{place}: {type(error).__name__}: {error}")
