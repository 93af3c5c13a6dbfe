"""The stages of a pipeline: handles of what they make, which is made when it is first needed.

A stage's key is a hash of its settings, of the source of the user's functions in it, and of the
keys of the stages that it takes. So a key stands for one result: a stage that is described again,
in the same process or a later one, is the same.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from dask.base import tokenize
from distributed import Client, Future, wait
from distributed.scheduler import KilledWorker

from daskxml.api.collections import RowsOnWorkers
from daskxml.api.stage_tasks import Function
from daskxml.cluster.event_log import explained
from daskxml.core.errors import ClusterError, DaskxmlError, InputError
from daskxml.core.stages import StageRecord

FAN_IN = 8  # of the tree in which what was found in each partition is merged


def key_of(*made_of: Any) -> str:
    """Return a hash of settings, functions and keys, the same in every process.

    Examples
    --------
    >>> key_of("drop", {"least": 3}) == key_of("drop", {"least": 3})
    True
    >>> key_of("drop", {"least": 3}) == key_of("drop", {"least": 4})
    False
    """
    return sha256("".join(map(_text, made_of)).encode()).hexdigest()[:16]


def _text(value: Any) -> str:
    if callable(value) and hasattr(value, "__code__"):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        try:
            source = inspect.getsource(value)
        except (OSError, TypeError):  # typed at a prompt
            source = value.__code__.co_code.hex() + repr(value.__code__.co_consts)
        made_of = (value.__qualname__, source, value.__defaults__, value.__kwdefaults__)
        return _text([*made_of, *cells])
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_text(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    if value is None or isinstance(value, str | int | float | bool):
        return json.dumps(value)
    return str(tokenize(value))


class Stage:
    """What a stage makes.

    Attributes
    ----------
    name
        As the journal calls it.
    key
        See the head of this module.
    record
        What became of it when it was first needed; None before.
    """

    def __init__(
        self, name: str, key: str, make: Callable[[], Any], again: Callable[[StageRecord], None]
    ) -> None:
        self.name, self.key = name, key
        self._make: Callable[[], Any] | None = make
        self._again = again  # called with its record where it is needed once more
        self._made: Any = None
        self.record: StageRecord | None = None

    def made(self) -> Any:
        """Return what it makes; make it, unless that is done."""
        if self._make is not None:
            self._made = self._make()
            self._make = None  # and with it the stages before, whose rows nobody else may need
        elif self.record is not None:
            self._again(self.record)
        return self._made

    def __repr__(self) -> str:
        state = "not needed yet" if self.record is None else self.record.outcome
        return f"<{type(self).__name__} {self.name!r}, {state}>"


class Rows(Stage):
    """Rows in partitions that stay on the workers as long as this object is referenced.

    A partition is a pair ``(X, Y)``: two matrices, or anything else of which a later stage makes
    them, such as a list of texts and a list of names.

    Attributes
    ----------
    names
        Of the columns, and what made rows of texts, where that is known: they are stored with
        models that are trained on the rows.
    """

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
    """Start ``function(partition, *args)`` for each partition, under names that stand for them."""
    return [
        client.submit(function, part, *args, key=f"{name}-{key}-{number}", pure=False)
        for number, part in enumerate(partitions)
    ]


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
