"""Space files: which keys of a run file a search varies, between which values.

A space file has the sections and keys of run files, with a range or with choices in the place of
values, and ``[search]`` for the search itself::

    [search]
    trials = 30

    [strategy]
    lr = { low = 0.01, high = 1.0, log = true }

    [model]
    hidden = { choices = [[128], [512], [512, 256]] }
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from daskxml.config.run import SECTIONS, RunConfig, load_run_config
from daskxml.config.toml import Source, Tables, decode, encode, read_source, suggestion
from daskxml.core.errors import ConfigError
from daskxml.core.fields import bounded, check_ranges

SEARCH = "search"
_FIXED = (  # the same in all trials
    "run", "data", "pipeline", "text", "evaluation", "checkpoint", "cluster",
)  # fmt: skip
_LIKE = "like { low = 0.01, high = 1.0, log = true } or { choices = [1, 2] }"


@dataclass(frozen=True, kw_only=True)
class SearchSection:
    """``[search]`` of a space file.

    Attributes
    ----------
    trials
        Runs in all, those that are ended early among them.
    parallel
        Trials side by side on one cluster: each steps on all its workers, in turn with the others.
    sampler
        How settings are chosen: ``tpe``, by what the trials before have reached (Bergstra et al.,
        NeurIPS 2011), or ``random``.
    pruner
        Which trials are ended early: ``halving``, asynchronous successive halving (Li et al.,
        MLSys 2020); ``hyperband`` (Li et al., JMLR 2018); or ``none``.
    min_evaluations, reduction_factor
        A trial is compared with the others after so many evaluations, and again after as many
        times the factor; each time about one of so many as the factor says goes on.
    seed
        Of the sampler.
    """

    trials: int = bounded(20, low=1, high=1_000_000)
    parallel: int = bounded(2, low=1, high=1_000)
    sampler: Literal["tpe", "random"] = "tpe"
    pruner: Literal["halving", "hyperband", "none"] = "halving"
    min_evaluations: int = bounded(2, low=1, high=1_000_000)
    reduction_factor: int = bounded(3, low=2, high=1_000)
    seed: int = bounded(0, low=0, high=2**32 - 1)

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A range of numbers: of integers if ``low`` is one.

    Attributes
    ----------
    low, high
        Both may be chosen.
    log
        Choose by the logarithm.
    step
        Between the values; None: 1 for integers, else any value.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    @property
    def is_integer(self) -> bool:
        """Whether only integers are valid."""
        return isinstance(self.low, int)


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Values of any type, one of which is chosen."""

    values: tuple[Any, ...]

    @property
    def names(self) -> dict[str, Any]:
        """The values by a text for each.

        Examples
        --------
        >>> Choices(values=([64, 32], "adam", 0.5)).names
        {'[64, 32]': [64, 32], '"adam"': 'adam', '0.5': 0.5}
        """
        return {json.dumps(value): value for value in self.values}


Dimension = Interval | Choices


@dataclass(frozen=True, kw_only=True)
class Space:
    """A checked space file.

    Attributes
    ----------
    search
        How it is searched.
    dimensions
        By ``section.key`` of the run file.
    """

    search: SearchSection
    dimensions: Mapping[str, Dimension]

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return the tables that `load_space` turns into this space again."""
        tables: dict[str, dict[str, Any]] = {SEARCH: encode(self.search)}
        for key, dimension in self.dimensions.items():
            section, _, name = key.partition(".")
            given = encode(dimension)
            if isinstance(dimension, Choices):
                given = {"choices": list(dimension.values)}
            tables.setdefault(section, {})[name] = given
        return tables


def load_space(
    source: str | Path | Mapping[str, Any],
    run_file: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
) -> Space:
    """Read and check a space file.

    Parameters
    ----------
    source
        A TOML file, or a dictionary of its sections.
    run_file
        The sections of the run file: every bound and every choice must be valid in it.
    settings
        Values of ``[search]``, which win over the file's.

    Raises
    ------
    ConfigError
        One line with the place, what is wrong there, and what is allowed.

    Examples
    --------
    >>> run_file = {"training": {"epochs": 2}}
    >>> space = load_space({"strategy": {"lr": {"low": 0.01, "high": 1, "log": True}}}, run_file)
    >>> space.dimensions["strategy.lr"]
    Interval(low=0.01, high=1.0, log=True, step=None)
    >>> load_space({"strategy": {"lr": {"low": 2.0, "high": 1.0}}}, run_file)
    Traceback (most recent call last):
    daskxml.core.errors.ConfigError: space: [strategy] lr: low = 2.0 is not below high = 1.0
    """
    read = _read(source)
    given = {**read.tables.get(SEARCH, {}), **(settings or {})}
    with read.located(SEARCH):
        search = decode(SearchSection, given)
    dimensions = {
        f"{section}.{key}": _dimension(read, section, key, run_file)
        for section, table in read.tables.items()
        for key in table
        if section != SEARCH
    }
    if not dimensions:
        raise ConfigError(f"{read.name}: nothing to search: give [strategy] lr, {_LIKE}")
    return Space(search=search, dimensions=dimensions)


def _read(source: str | Path | Mapping[str, Any]) -> Source:
    if not isinstance(source, Mapping) and not Path(source).is_file():
        raise ConfigError(f"{source}: no such space file")
    read = read_source(source)
    if isinstance(source, Mapping):
        read.name = "space"
    for section in read.tables:
        place = read.place(section)
        if section not in (*SECTIONS, SEARCH):
            raise ConfigError(f"{place} is not a section{suggestion(section, SECTIONS)}")
        if section in _FIXED:
            raise ConfigError(f"{place} is the same in all trials: give it in the run file")
    return read


def _dimension(read: Source, section: str, key: str, run_file: Mapping[str, Any]) -> Dimension:
    place, table = f"{read.place(section, key)} {key}", read.tables[section][key]
    if not isinstance(table, Mapping):
        raise ConfigError(f"{place} = {table!r}: must be a range or choices, {_LIKE}")
    known = ("choices",) if "choices" in table else ("low", "high", "log", "step")
    for name in table:
        if name not in known:
            raise ConfigError(f"{place}: unknown key {name!r}{suggestion(name, known)}")

    def decoded(value: Any) -> Any:
        return _decoded(f"{section}.{key}", value, run_file, place)

    if "choices" in table:
        return _choices(table["choices"], place, decoded)
    return _interval(table, place, decoded)


def _choices(values: Any, place: str, decoded: Any) -> Choices:
    if not isinstance(values, list | tuple) or not values:
        raise ConfigError(f"{place}: choices = {values!r}: must be a list of values")
    for value in values:
        decoded(value)
    found = Choices(values=tuple(values))
    if len(found.names) < len(values):
        raise ConfigError(f"{place}: choices = {list(values)!r}: has a value twice")
    return found


def _interval(table: Mapping[str, Any], place: str, decoded: Any) -> Interval:
    for name in ("low", "high"):
        if type(table.get(name)) not in (int, float):
            problem = f"{name} = {table[name]!r} is no number" if name in table else f"no {name}"
            raise ConfigError(f"{place}: {problem}: must be a range or choices, {_LIKE}")
    low, high = decoded(table["low"]), decoded(table["high"])  # 1 is 1.0 where numbers are meant
    log, step = table.get("log", False), table.get("step")
    kind = type(low)
    if not low < high:
        raise ConfigError(f"{place}: low = {low} is not below high = {high}")
    if not isinstance(log, bool):
        raise ConfigError(f"{place}: log = {log!r}: must be true or false")
    if log and low <= 0:
        raise ConfigError(f"{place}: log = true, but low = {low} is not above 0")
    if log and step is not None:
        raise ConfigError(f"{place}: log and step exclude each other: leave one out")
    if step is not None and (type(step) not in (int, kind) or not 0 < step <= high - low):
        noun = "an integer" if kind is int else "a number"
        raise ConfigError(f"{place}: step = {step!r}: must be {noun} from 0 to {high - low}")
    return Interval(low=low, high=high, log=log, step=None if step is None else kind(step))


def _decoded(key: str, value: Any, run_file: Mapping[str, Any], place: str) -> Any:
    """Return a value as the run file has it; refuse one that it does not take."""
    try:
        config = load_run_config(run_file, {key: value})
    except ConfigError as error:
        problem = str(error).removeprefix(f"--set {key}: ").removeprefix("run configuration: ")
        raise ConfigError(f"{place}: {problem}") from error
    section, _, name = key.partition(".")
    found = config.as_dict()[section].get(name)
    return found if type(found) in (int, float) else value  # sizes are texts there


def run_file_tables(
    source: str | Path | Mapping[str, Any] | RunConfig,
    overrides: Iterable[str] | Mapping[str, Any] = (),
) -> Tables:
    """Return the sections of a valid run file, with only the values that it gives.

    Trials may so take another strategy, whose other settings are its own defaults.

    Raises
    ------
    ConfigError
        As `load_run_config`.

    Examples
    --------
    >>> run_file_tables({"training": {"epochs": 2}}, ["run.seed=3"])
    {'training': {'epochs': 2}, 'run': {'seed': 3}}
    """
    load_run_config(source, overrides)
    read = read_source(source.as_dict() if isinstance(source, RunConfig) else source)
    read.override(overrides)
    return read.tables
