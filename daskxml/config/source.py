"""Where a run file's values come from: TOML text, options of the command line, or a dictionary."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daskxml.config.decode import suggestion
from daskxml.errors import ConfigError

Tables = dict[str, dict[str, Any]]


@dataclass
class Source:
    """The tables of one run, and the place each value was written at.

    Attributes
    ----------
    name
        The file, or what stands in its place, for messages.
    tables
        Section by section, as TOML has them.
    text
        The file's text, to find lines in; empty for a dictionary.
    overridden
        ``(section, key)`` to the option that set it.
    """

    name: str
    tables: Tables
    text: str = ""
    overridden: dict[tuple[str, str], str] = field(default_factory=dict)

    def place(self, section: str, key: str = "") -> str:
        """Return ``file:line: [section]`` or the option that a value was given by."""
        if (section, key) in self.overridden:
            return self.overridden[section, key]
        line = find_line(self.text, section, key)
        return f"{self.name}{f':{line}' if line else ''}: [{section}]"

    def override(self, overrides: Iterable[str] | Mapping[str, Any]) -> None:
        """Set ``section.key`` to values, given as ``"section.key=value"`` or as a mapping."""
        if isinstance(overrides, str):
            overrides = [overrides]
        given = overrides.items() if isinstance(overrides, Mapping) else map(_split, overrides)
        for dotted, value in given:
            section, dot, key = dotted.partition(".")
            if not (section and dot and key) or "." in key:
                raise ConfigError(f"--set {dotted}: must be section.key=value")
            if section not in self.tables:
                self.tables[section] = {}
                self.overridden[section, ""] = f"--set {dotted}: [{section}]"
            self.tables[section][key] = value
            self.overridden[section, key] = f"--set {dotted}:"


def read_source(given: str | Path | Mapping[str, Any]) -> Source:
    """Read a run file, a packaged run file by its bare name, or a dictionary of sections.

    Raises
    ------
    ConfigError
        If there is no such file, if it is not TOML, or if a section is not a table.

    Examples
    --------
    >>> read_source({"training": {"epochs": 2}}).tables
    {'training': {'epochs': 2}}
    """
    if isinstance(given, Mapping):
        name, text, tables = "run configuration", "", dict(given)
    else:
        name, text = str(given), _read_text(_find_file(given))
        tables = _parse(name, text)
    for section, table in tables.items():
        if not isinstance(table, Mapping):
            raise ConfigError(f"{name}: {section!r} stands outside a section like [training]")
    return Source(name, {section: dict(table) for section, table in tables.items()}, text)


def read_toml(path: Path) -> dict[str, Any]:
    """Read any TOML file.

    Raises
    ------
    ConfigError
        If it cannot be read, or with the line where it is not TOML.
    """
    return _parse(str(path), _read_text(path))


def packaged_run_files() -> dict[str, Path]:
    """Return the run files that come with daskxml, by name.

    Examples
    --------
    >>> "quickstart" in packaged_run_files()
    True
    """
    package = Path(__file__).parents[1]
    # In the wheel they lie inside the package, in a source tree beside it.
    for folder in (package / "pipelines", package.parent / "pipelines"):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.toml"))}
    return {}


def find_line(text: str, section: str, key: str = "") -> int | None:
    """Return the line, counted from 1, of a key in a section, or of the section itself.

    Examples
    --------
    >>> find_line("[a]\\nx = 1\\n[b]\\nx = 2", "b", "x"), find_line("[a]", "b")
    (4, None)
    """
    current, found = "", None
    for number, line in enumerate(text.split("\n"), start=1):
        if header := re.match(r"\s*\[\s*([\w-]+)\s*\]", line):
            current = header[1]
            found = number if current == section else found
        elif key and current == section and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            return number
    return found


def _find_file(given: str | Path) -> Path:
    path, packaged = Path(given), packaged_run_files()
    if path.is_file():
        return path
    if path.is_dir():
        raise ConfigError(f"{given}: a directory, not a run file; give the TOML file in it")
    bare = str(given).removesuffix(".toml")
    if bare in packaged:
        return packaged[bare]
    hint = suggestion(path.stem, packaged)
    raise ConfigError(f"{given}: no such run file{hint} (the run files that come with daskxml)")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file in UTF-8, so not TOML") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def _parse(name: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        place = f"{name}:{line[1]}" if line else name
        raise ConfigError(f"{place}: not valid TOML: {error}") from error


def _split(option: str) -> tuple[str, Any]:
    dotted, equals, text = option.partition("=")
    if not equals:
        raise ConfigError(f"--set {option}: must be section.key=value")
    return dotted.strip(), parse_value(text.strip())


def parse_value(text: str) -> Any:
    """Return a TOML value, or the text itself where it is none (``adam`` needs no quotes).

    Examples
    --------
    >>> parse_value("[1, 3]"), parse_value("2e-3"), parse_value("adam")
    ([1, 3], 0.002, 'adam')
    """
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return table["value"] if set(table) == {"value"} else text
