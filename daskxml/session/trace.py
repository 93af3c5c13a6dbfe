"""The trace of a run: every event that its strategy received, and what it decided on it.

Each row of the history has the entries of its mega-batch under ``trace``, in order. An entry is a
list: the event, then the strategy's commands. Events and commands are those of
`daskxml.strategies.protocol`; each is a list of its name and the values of its fields in their
order::

    [["WorkDone", 0.025, {"0": 640}, {"0": 10}, {"0": 0.0231}],
     ["Work", {"0": ["Part", 320, 64, 1.0]}, null]]

Wherever a run begins, or continues from a checkpoint, a `Setup` stands before `Started`. So a
strategy that is given the same events must decide the same: `daskxml.records.verification` asks it.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, Union, get_args, get_origin

from daskxml.core.fields import type_hints
from daskxml.strategies import protocol

FORMAT = 8  # of traces
LARGEST_INTEGER = 2**63 - 1  # that a history may hold


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run begins with, or continues from a checkpoint with.

    Attributes
    ----------
    format
        `FORMAT`.
    strategy
        The run file's section ``[strategy]``, with its name; empty if it is not known.
    stream_rows
        Rows of each stream of the ledger.
    parameters
        Number of model parameters.
    quorum
        `Strategy.quorum`.
    state
        The checkpoint's state of the strategy, as `Strategy.plain` returns it; None at the
        beginning.
    """

    format: int
    strategy: Mapping[str, Any]
    stream_rows: tuple[int, ...]
    parameters: int
    quorum: float
    state: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Entry:
    """An event, and the commands that a strategy returned; none for a `Setup`."""

    event: protocol.Event | Setup
    commands: tuple[protocol.Command, ...] = ()


_KINDS: dict[str, type] = {
    kind.__name__: kind for kind in (Setup, *get_args(protocol.Event), *get_args(protocol.Command))
}


def plain_entry(
    event: protocol.Event | Setup, commands: Sequence[protocol.Command] = ()
) -> list[Any]:
    """Return an entry as JSON values.

    Examples
    --------
    >>> plain_entry(protocol.BatchLimited("a", 32), [protocol.Work.alone("a", 32, 32, 0.1)])
    [['BatchLimited', 'a', 32], ['Work', {'a': ['Part', 32, 32, 0.1]}, None]]
    """
    return [plain(part) for part in (event, *commands)]


def plain(value: Any) -> Any:
    """Return a value as JSON values; a dataclass begins with its name."""
    if is_dataclass(kind := type(value)):
        return [kind.__name__, *(plain(getattr(value, name)) for name in type_hints(kind))]
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple | list) else value


def read_entry(entry: Any) -> Entry:
    """Return the entry that `plain_entry` made.

    Raises
    ------
    ValueError
        If it is not an entry of this version.

    Examples
    --------
    >>> read_entry([["WorkerLost", "a"]])
    Entry(event=WorkerLost(worker='a'), commands=())
    >>> read_entry([["BatchLimited", "a", "many"]])
    Traceback (most recent call last):
    ValueError: BatchLimited.rows = 'many'
    """
    if not isinstance(entry, list) or not entry:
        raise ValueError(f"{_shown(entry)}: no entry of a trace")
    if isinstance(entry[0], list) and entry[0][:1] == ["Setup"] and entry[0][1:2] != [FORMAT]:
        raise ValueError(f"a trace of format {_shown(entry[0][1:2])}; this daskxml has [{FORMAT}]")
    event, *commands = (_read_part(part) for part in entry)
    is_event = isinstance(event, (*get_args(protocol.Event), Setup))
    if not is_event or not all(isinstance(c, get_args(protocol.Command)) for c in commands):
        raise ValueError(f"{_shown(entry)}: no event with commands")
    return Entry(event, tuple(commands))


def _read_part(part: Any) -> Any:
    name = part[0] if isinstance(part, list) and part else None
    if not isinstance(name, str) or name not in _KINDS:
        raise ValueError(f"{_shown(part)}: no event or command of this version")
    return _read_dataclass(_KINDS[name], part)


def _read_dataclass(kind: type, value: Any) -> Any:
    hints = type_hints(kind)
    if not isinstance(value, list) or value[:1] != [kind.__name__] or len(value) > len(hints) + 1:
        raise ValueError(f"{_shown(value)}: no {kind.__name__}")
    values = {}
    for (name, hint), item in zip(hints.items(), value[1:], strict=False):
        try:
            values[name] = _read(hint, item)
        except TypeError:
            raise ValueError(f"{kind.__name__}.{name} = {_shown(item)}") from None
    try:
        return kind(**values)  # fields that came later have a default
    except TypeError:
        raise ValueError(f"{_shown(value)}: fields of {kind.__name__} are missing") from None


def _read(hint: Any, value: Any) -> Any:
    """Return ``value`` in the type of ``hint``; a TypeError if it is of another."""
    kind, items = get_origin(hint), get_args(hint)
    if kind is tuple and type(value) is list:
        return tuple(_read(items[0], item) for item in value)
    if kind is Mapping and type(value) is dict:
        return {name: _read(items[1], item) for name, item in value.items()}
    if kind in (Union, types.UnionType):
        for each in items:
            with contextlib.suppress(TypeError, ValueError):
                return _read(each, value)
    if is_dataclass(hint):
        return _read_dataclass(hint, value)  # type: ignore[arg-type]
    is_large = type(value) is int and abs(value) > LARGEST_INTEGER
    is_kind = hint is Any or type(value) is hint or (hint is float and type(value) is int)
    if is_large or not is_kind:
        raise TypeError
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
