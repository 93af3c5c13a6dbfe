"""Settings in TOML: files and options to tables, tables to checked dataclasses, and back."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import re
import tomllib
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from daskxml.core.errors import ConfigError
from daskxml.core.fields import parse_size, size_text, type_hints
from daskxml.core.files import packaged

Section = TypeVar("Section")
Tables = dict[str, dict[str, Any]]

DEFAULT_RUN_FILE = "best"  # of every way to train, where none is named
_INTEGERS = 2**63  # TOML's integers are below
_NOUNS = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}
_NO_PARTS = "output layers are no longer divided among workers: every worker holds all labels"
_NO_SHORTLISTS = "negatives by chance are as good as a shortlist"
REMOVED = {  # run files, strategies, keys by class and values, and what takes their place
    "quickstart": "take 'best', the same four label trees",
    "trees": "take 'best', the same four label trees",
    "mixture": "train two runs or more, then `daskxml mix RUN RUN --valid FILE`",
    "partitioned": f"{_NO_PARTS}; take another strategy, like adaptive-sgd",
    "ClusterSection.push_pull": "a shared model's workers are on one machine; leave it out",
    "pipeline": "files are inspected for documents; call daskxml.Pipeline.map with functions of "
    "yours; leave the section out",
    "dashboard": "a run is ended by `daskxml stop`; leave the section out",
    "label-tree": "label trees are tasks; take [model] kind = 'trees' and leave [strategy] out",
    "BatchConfig.pieces": "label trees are cut by the number of workers; leave it out",
    "ModelSpec.output": f"{_NO_PARTS}; leave it out",
    "SamplingConfig.model": f"{_NO_SHORTLISTS}; leave it out",
    "SamplingConfig.shortlist": f"{_NO_SHORTLISTS}; leave it out",
    "SamplingConfig.sets": "'random' draws labels for a batch, 'simhash' and 'dwta' for each row; "
    "leave it out",
    "SamplingConfig.weighted": "drawn labels count 1, which ranks better; leave it out",
    "CombineConfig.overlap": "merges by a `quorum` do not wait either; leave it out",
    "Config.restart_every": "replicas go on from mega-batch to mega-batch; leave it out",
    "TreeSpec.solver": "nodes are fitted by dual coordinate descent; leave it out",
    "TreeSpec.lr": "nodes are fitted by dual coordinate descent; leave it out",
    "TreeSpec.last_lr": "nodes are fitted by dual coordinate descent; leave it out",
    "Spec.hard_negatives": "no measurable gain on two data sets; leave it out",
    "output_dtype = 'bfloat16'": "take 'float16', which is faster and has smaller logits",
    "rule = 'changed-mean'": "take 'mean'",
    "rule = 'geometric'": "take 'speed', which ends nearer to equal updates",
    "rule = 'sign'": "take 'speed', which ends nearer to equal updates, or 'paper'",
    "method = 'tree'": "negatives by chance are as good; take 'random'",
    "scale_every = 'auto'": "give it as a number; rule 'speed' damps by itself",
}


def decode(
    kind: type[Section], table: Mapping[str, Any], unused: Iterable[str] = (), chosen_by: str = ""
) -> Section:
    """Build the dataclass `kind` from a table.

    Parameters
    ----------
    kind
        A dataclass whose fields are annotated with the types that TOML has, tuples, literals
        and unions of them.
    table
        Values by field; absent fields keep their defaults.
    unused
        Fields that errors about another key do not offer.
    chosen_by
        A key of the table that is no field, as it has chosen `kind`.

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
    daskxml.core.errors.ConfigError: unknown key 'tray', did you mean 'trays'?
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints, values = type_hints(kind), {}  # type: ignore[arg-type]
    for key, value in table.items():
        if key in fields:
            values[key] = _decode_field(fields[key], hints[key], value)
        elif key != chosen_by:
            valid = [name for name in (chosen_by, *fields) if name and name not in unused]
            of = f" for {table[chosen_by]!r}" if chosen_by in table else ""
            raise ConfigError(f"unknown key {key!r}{suggestion(key, valid, kind, of)}", key)
    return kind(**values)


def encode(section: Any, skip: Collection[str] = ()) -> dict[str, Any]:
    """Return the table that `decode` turns into `section` again, in the order of its fields.

    Examples
    --------
    >>> from daskxml.config.sections import CheckpointSection
    >>> encode(CheckpointSection(keep=3))
    {'every': 10, 'keep': 3}
    """
    table = {}
    for field in dataclasses.fields(section):
        if field.name in skip:
            continue
        value = getattr(section, field.name)
        if field.metadata.get("unit") == "bytes" and isinstance(value, int):
            value = size_text(value)
        table[field.name] = list(value) if isinstance(value, tuple) else value
    return table


def suggestion(
    name: str, valid: Iterable[str], section: type | None = None, where: str = ""
) -> str:
    """Return how an error about an unknown `name` ends: the nearest valid name, or all of them.

    Of what was removed, a key from the class ``section``, it says what to do instead; ``where``
    says for what all of them are valid.

    Examples
    --------
    >>> suggestion("wokers", ["workers", "threads"]), suggestion("learning_rate", ["rule", "lr"])
    (", did you mean 'workers'?", ", did you mean 'lr'?")
    >>> suggestion("gpu", ["workers", "threads"])
    '; valid are workers, threads'
    """
    keys = [f"{owner.__name__}.{name}" for owner in section.__mro__] if section else [name]
    for key in keys:
        if key in REMOVED:
            return f"; removed: {REMOVED[key]}"
    names = list(valid)
    initials = "".join(word[:1] for word in name.split("_"))  # learning_rate is lr
    nearest = difflib.get_close_matches(name, names, n=1) or [n for n in names if n == initials]
    return (
        f", did you mean {nearest[0]!r}?" if nearest else f"; valid{where} are " + ", ".join(names)
    )


def _decode_field(field: dataclasses.Field[Any], hint: Any, value: Any) -> Any:
    words = field.metadata.get("words", ())
    if field.metadata.get("unit") == "bytes" and isinstance(value, str) and value not in words:
        try:
            return parse_size(value)
        except ConfigError as error:
            others = "".join(f", or {word}" for word in words)
            raise ConfigError(f"{field.name}: {error}{others}", field.name) from error
    try:
        return _convert(hint, value)
    except TypeError as error:
        given = f"{field.name} = {_shown(value)}"
        problem = f"{given}: must be {error}"
        choices = [choice for choice in get_args(hint) if isinstance(choice, str)]
        if given in REMOVED:
            problem += suggestion(given, choices)
        elif isinstance(value, str) and difflib.get_close_matches(value, choices):
            problem += suggestion(value, choices)
        raise ConfigError(problem, field.name) from error


def _convert(hint: Any, value: Any) -> Any:
    """Return `value` in the type of `hint`; a TypeError says what it must be."""
    convert = _CONVERTERS.get(get_origin(hint))
    if convert is not None:
        return convert(get_args(hint), value)
    if type(value) is int and not -_INTEGERS <= value < _INTEGERS:
        raise TypeError("a number of 64 bits")
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
    has_words = any(get_origin(kind) is Literal for kind in kinds)
    for kind in kinds:
        if has_words and isinstance(value, str) and get_origin(kind) is tuple:
            nouns.append("a list")  # of a text that is none of the words
            continue
        try:
            return _convert(kind, value)
        except TypeError as error:
            nouns.append(str(error))
    raise TypeError(" or ".join(nouns))


def _convert_dict(kinds: tuple[Any, ...], value: Any) -> dict[Any, Any]:
    noun = f"a table of names, each {_NOUNS[kinds[1]]}"
    if not isinstance(value, Mapping):
        raise TypeError(noun)
    try:
        return {str(name): _convert(kinds[1], item) for name, item in value.items()}
    except TypeError as error:
        raise TypeError(noun) from error


_CONVERTERS: dict[Any, Callable[[tuple[Any, ...], Any], Any]] = {
    Literal: _convert_literal,
    tuple: _convert_tuple,
    dict: _convert_dict,
    Union: _convert_union,
    types.UnionType: _convert_union,
}


def _shown(value: Any) -> str:
    value = list(value) if isinstance(value, tuple) else value
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 60 else text[:57] + "..."


def one_line_lists(toml: str) -> str:
    """Join the lists that tomli-w writes with a line for each item; texts have no line breaks.

    Examples
    --------
    >>> one_line_lists("k = [\\n    1,\\n    3,\\n]")
    'k = [1, 3]'
    """

    def join(match: re.Match[str]) -> str:
        lines = match[1][:-1].split("\n")
        return "[" + ", ".join(line.strip().removesuffix(",") for line in lines) + "]"

    return re.sub(r"(?<== )\[\n((?:    .*,\n)+)\]$", join, toml, flags=re.MULTILINE)


@dataclass
class Source:
    """The tables of one run, and where each value was given.

    Attributes
    ----------
    name
        The file, or a substitute for messages.
    tables
        Values by section and key.
    text
        The file's text, for line numbers; empty for a dictionary.
    overridden
        ``(section, key)`` to the option that set it.
    """

    name: str
    tables: Tables
    text: str = ""
    overridden: dict[tuple[str, str], str] = dataclasses.field(default_factory=dict)

    def place(self, section: str, key: str = "") -> str:
        """Return ``file:line: [section]``, or the option that gave a value."""
        key = key if key in self.tables.get(section, {}) else ""
        if (section, key) in self.overridden:
            return self.overridden[section, key]
        line = find_line(self.text, section, key)
        return f"{self.name}{f':{line}' if line else ''}: [{section}]"

    def refusal(self, section: str, key: str, value: Any, why: str) -> ConfigError:
        """Return the error about a value, or without a key about a section."""
        given = f" {key} = {_shown(value)}:" if key else ""
        return ConfigError(f"{self.place(section, key)}{given} {why}")

    @contextlib.contextmanager
    def located(self, section: str) -> Iterator[None]:
        """Prefix the errors of a block with the place of the key that they carry."""
        try:
            yield
        except ConfigError as error:
            problem = str(error).removeprefix(f"{section}.")
            raise ConfigError(f"{self.place(section, error.key)} {problem}") from error

    def override(self, overrides: Iterable[str] | Mapping[str, Any]) -> None:
        """Set ``section.key`` to values, given as ``"section.key=value"`` or as a mapping."""
        if isinstance(overrides, Mapping):
            given, place = [*overrides.items()], "overrides: "
        else:
            texts = [overrides] if isinstance(overrides, str) else overrides
            given, place = [*map(_split, texts)], "--set "
        for dotted, value in given:
            section, dot, key = dotted.partition(".")
            if not (section and dot and key) or "." in key:
                raise ConfigError(f"{place}{dotted}: must be section.key=value")
            if section not in self.tables:
                self.tables[section] = {}
                self.overridden[section, ""] = f"{place}{dotted}: [{section}]"
            self.tables[section][key] = value
            self.overridden[section, key] = f"{place}{dotted}:"


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
    >>> "best" in packaged_run_files()
    True
    """
    return packaged("pipelines")


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
    if str(given) in packaged:  # also beside a file or a directory of this name
        return packaged[str(given)]
    if path.is_file():
        return path
    if path.is_dir():
        raise ConfigError(f"{given}: a directory, not a run file; give the TOML file in it")
    bare = str(given).removesuffix(".toml")
    if bare in packaged:
        return packaged[bare]
    hint = suggestion(path.stem, packaged)
    raise ConfigError(f"{given}: no such run file{hint}")


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
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{name}: {_too_much(error)}") from error


def _too_much(error: Exception) -> str:
    """Say what the TOML parser of Python cannot read although it is TOML."""
    nested = isinstance(error, RecursionError)
    return "lists are nested too deeply" if nested else "a number has too many digits"


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
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"--set: {_shown(text)}: {_too_much(error)}") from error
    return table["value"] if set(table) == {"value"} else text
