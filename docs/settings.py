"""The references of all settings and of all commands, as Markdown, from the code.

Settings are the fields of the dataclasses that are a run file's sections; meanings are those of the
docstrings, under ``Attributes`` of a class or of the one that it extends. Commands are what
``--help`` prints.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import Field, fields
from functools import partial
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from daskxml.cli.arguments import build_parser
from daskxml.config import RunConfig
from daskxml.core.fields import range_text, size_text
from daskxml.models.kinds import TRAINED
from daskxml.strategies import STRATEGIES

_FROM_DATA = ("features", "labels")  # fields of a model that no run file has
_TYPES = {bool: "true or false", int: "whole number", float: "number", str: "text", dict: "table"}
_ATTRIBUTES = re.compile(r"^Attributes\n-+\n(.*?)(?=^\S[^\n]*\n-+\n|\Z)", re.MULTILINE | re.DOTALL)


def fill(text: str) -> str:
    """Return a page with its marks replaced by the references."""
    for mark, made in (("<!-- settings -->", reference), ("<!-- commands -->", commands)):
        if mark in text:
            text = text.replace(mark, made())
    return text


def commands() -> str:
    """Return the help of each command."""
    actions = build_parser()._subparsers._group_actions
    made = []
    for name, command in actions[0].choices.items():
        command.formatter_class = partial(command.formatter_class, width=96)
        made.append(f"## `daskxml {name}`\n\n```text\n{command.format_help()}```\n")
    return "\n".join(made)


def sections() -> Iterator[tuple[str, type]]:
    """Yield the heading and the class of each section."""
    for name, section in get_type_hints(RunConfig).items():
        if name == "model":
            yield from ((f'[model] kind = "{key}"', kind.Spec) for key, kind in TRAINED.items())
        elif name == "strategy":
            for key, strategy in STRATEGIES.items():
                yield f'[strategy] name = "{key}"', strategy.Config
        elif section is not str:
            yield f"[{name}]", section


def meanings(section: type) -> dict[str, tuple[tuple[str, ...], str]]:
    """Return what each key means, with the keys that share the text."""
    found: dict[str, tuple[tuple[str, ...], str]] = {}
    for described in reversed(section.__mro__):
        match = _ATTRIBUTES.search(inspect.getdoc(described) or "")
        for entry in re.split(r"\n(?=\S)", match[1].strip() if match else ""):
            names, _, text = entry.partition("\n")
            keys = tuple(name.strip() for name in names.split(","))
            found |= {key: (keys, textwrap.dedent(text)) for key in keys}
    return found


def keys_of(section: type) -> dict[str, Field[Any]]:
    """Return the fields of a section that a run file may have."""
    hidden = _FROM_DATA if section in [kind.Spec for kind in TRAINED.values()] else ()
    return {field.name: field for field in fields(section) if field.name not in hidden}


def reference() -> str:
    """Return a heading and a table for each section."""
    return "\n".join(f"## `{heading}`\n\n{_table(section)}" for heading, section in sections())


def _table(section: type) -> str:
    keys, known, rows = keys_of(section), meanings(section), []
    while keys:
        key = next(iter(keys))
        if key not in known:
            raise LookupError(f"{section.__qualname__}.{key}: no entry under Attributes")
        shared, meaning = known[key]
        lines = [
            line for name in shared if name in keys for line in _lines(section, keys.pop(name))
        ]
        left = "\n".join(f"| {line}" for line in lines)
        rows.append(f"* - {_cell(left)}\n  - {_cell(meaning)}\n")
    table = ".. list-table::\n   :widths: 40 60\n\n" + textwrap.indent("".join(rows), "   ")
    return f"```{{eval-rst}}\n{table}```\n"


def _cell(text: str) -> str:
    return textwrap.indent(text, "    ").strip()


def _lines(section: type, field: Field[Any]) -> tuple[str, str]:
    """Return a key with its default, and what it may be."""
    default = field.default
    if field.metadata.get("unit") and isinstance(default, int):
        default = size_text(default)
    hint = get_type_hints(section)[field.name]
    limits = range_text(field.metadata) if "low" in field.metadata else ""
    return f"**{field.name}** ``= {_toml(default)}``", f"{_words(hint)} {limits}".strip()


def _words(hint: Any) -> str:
    """Return what values of a type are, in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(f"``{_toml(value)}``" for value in inner)
    if origin in (Union, UnionType):
        return ", or ".join(map(_words, inner))
    if origin is tuple:
        return f"list of {_words(inner[0])}s"
    return _TYPES[origin or hint]


def _toml(value: Any) -> str:
    """Return a value as a run file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)
