"""From the values of a TOML table to a dataclass, each checked against its annotation."""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from daskxml.config.fields import parse_size, size_text
from daskxml.errors import ConfigError

Section = TypeVar("Section")

_NOUNS = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}


class FieldError(ConfigError):
    """A wrong key or value, with the key, so that a reader can find its line."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(key, problem)
        self.key = key

    def __str__(self) -> str:
        return str(self.args[1])


def decode(kind: type[Section], table: Mapping[str, Any], skip: Iterable[str] = ()) -> Section:
    """Build the dataclass `kind` from a table.

    Parameters
    ----------
    kind
        A dataclass whose fields are annotated with the types that TOML has, tuples, literals
        and unions of them.
    table
        Its values; fields that are absent keep their defaults.
    skip
        Fields that a run file may not name.

    Raises
    ------
    ConfigError
        For an unknown key (with the nearest valid one), a wrong type, or a value that the
        dataclass itself refuses.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True, kw_only=True)
    ... class Oven:
    ...     trays: tuple[int, ...] = (1,)
    >>> decode(Oven, {"trays": [2, 3]})
    Oven(trays=(2, 3))
    >>> decode(Oven, {"tray": [2, 3]})
    Traceback (most recent call last):
    daskxml.config.decode.FieldError: unknown key 'tray', did you mean 'trays'?
    """
    hidden = frozenset(skip)
    fields = {f.name: f for f in dataclasses.fields(kind) if f.name not in hidden}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    values = {}
    for key, value in table.items():
        if key not in fields:
            raise FieldError(key, f"unknown key {key!r}{suggestion(key, fields)}")
        values[key] = _decode_field(fields[key], hints[key], value)
    return kind(**values)


def encode(section: Any, skip: Iterable[str] = ()) -> dict[str, Any]:
    """Return the table that `decode` turns into `section` again, in the order of its fields.

    Examples
    --------
    >>> from daskxml.config.sections import CheckpointSection
    >>> encode(CheckpointSection(keep=3))
    {'every': 10, 'keep': 3}
    """
    hidden = frozenset(skip)
    table = {}
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if field.name in hidden or value is None:  # TOML has no null: absent is the default
            continue
        if field.metadata.get("unit") == "bytes" and isinstance(value, int):
            value = size_text(value)
        table[field.name] = list(value) if isinstance(value, tuple) else value
    return table


def suggestion(name: str, valid: Iterable[str]) -> str:
    """Return how an error about an unknown `name` ends: the nearest valid name, or all of them.

    Examples
    --------
    >>> suggestion("wokers", ["workers", "threads"])
    ", did you mean 'workers'?"
    >>> suggestion("gpu", ["workers", "threads"])
    '; valid are workers, threads'
    """
    names = list(valid)
    nearest = difflib.get_close_matches(name, names, n=1)
    return f", did you mean {nearest[0]!r}?" if nearest else "; valid are " + ", ".join(names)


def _decode_field(field: dataclasses.Field[Any], hint: Any, value: Any) -> Any:
    words = field.metadata.get("words", ())
    if field.metadata.get("unit") == "bytes" and isinstance(value, str) and value not in words:
        try:
            return parse_size(value)
        except ConfigError as error:
            others = "".join(f", or {word}" for word in words)
            raise FieldError(field.name, f"{field.name}: {error}{others}") from error
    try:
        return _convert(hint, value)
    except TypeError as error:
        problem = f"{field.name} = {_shown(value)}: must be {error}"
        if isinstance(value, str) and get_origin(hint) is Literal:
            choices = [choice for choice in get_args(hint) if isinstance(choice, str)]
            if difflib.get_close_matches(value, choices):
                problem += suggestion(value, choices)
        raise FieldError(field.name, problem) from error


def _convert(hint: Any, value: Any) -> Any:
    """Return `value` as `hint` has it; a TypeError says what it must be."""
    convert = _CONVERTERS.get(get_origin(hint))
    if convert is not None:
        return convert(get_args(hint), value)
    if hint is float and type(value) is int:  # `minutes = 2`, but never `workers = 2.0`
        return float(value)
    if type(value) is not hint:
        raise TypeError(_NOUNS.get(hint, str(hint)))
    return value


def _convert_literal(choices: tuple[Any, ...], value: Any) -> Any:
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return value
    raise TypeError("one of " + ", ".join(_shown(choice) for choice in choices))


def _convert_tuple(items: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    item = items[0]
    if item is str and isinstance(value, str):  # train = "one.txt"
        return (value,)
    noun = f"a list, each item {_NOUNS.get(item, item)}"
    if not isinstance(value, list | tuple):
        raise TypeError(noun)
    try:
        return tuple(_convert(item, part) for part in value)
    except TypeError as error:
        raise TypeError(noun) from error


def _convert_union(kinds: tuple[Any, ...], value: Any) -> Any:
    nouns = []
    for kind in kinds:
        if kind is type(None):
            continue
        try:
            return _convert(kind, value)
        except TypeError as error:
            nouns.append(str(error))
    raise TypeError(" or ".join(nouns))


_CONVERTERS: dict[Any, Callable[[tuple[Any, ...], Any], Any]] = {
    Literal: _convert_literal,
    tuple: _convert_tuple,
    Union: _convert_union,
    types.UnionType: _convert_union,
}


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 60 else text[:57] + "..."


def one_line_lists(toml: str) -> str:
    """Join the lists that tomli-w writes with a line for each item; texts hold no line breaks.

    Examples
    --------
    >>> one_line_lists("k = [\\n    1,\\n    3,\\n]")
    'k = [1, 3]'
    """

    def join(match: re.Match[str]) -> str:
        lines = match[1][:-1].split("\n")
        return "[" + ", ".join(line.strip().removesuffix(",") for line in lines) + "]"

    return re.sub(r"(?<== )\[\n((?:    .*,\n)+)\]$", join, toml, flags=re.MULTILINE)
