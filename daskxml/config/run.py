"""One run, resolved: every section of its run file with every value."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from daskxml.combine import CombineConfig
from daskxml.config.decode import FieldError, decode, encode, one_line_lists, suggestion
from daskxml.config.gpu import GpuSection, check_gpu
from daskxml.config.sections import (
    CheckpointSection,
    ClusterSection,
    DataSection,
    EvaluationSection,
    RunSection,
    TrainingSection,
)
from daskxml.config.source import Source, read_source
from daskxml.data.cards import load_card
from daskxml.errors import ConfigError
from daskxml.model.sampling import SamplingConfig
from daskxml.model.spec import ModelSpec
from daskxml.optim import OptimizerConfig, ScheduleConfig
from daskxml.strategies import STRATEGIES
from daskxml.strategies.protocol import Strategy

Built = TypeVar("Built")

_SECTIONS: dict[str, type[Any]] = {
    "run": RunSection,
    "data": DataSection,
    "model": ModelSpec,
    "optimizer": OptimizerConfig,
    "sampling": SamplingConfig,
    "schedule": ScheduleConfig,
    "combine": CombineConfig,
    "strategy": object,  # the Config of the strategy that it names
    "training": TrainingSection,
    "evaluation": EvaluationSection,
    "checkpoint": CheckpointSection,
    "cluster": ClusterSection,
    "gpu": GpuSection,
}
_FROM_DATA = ("features", "labels")  # fields of a ModelSpec that no run file holds
DEFAULT_STRATEGY = "adaptive-sgd"


def _default_strategy() -> Any:
    return STRATEGIES[DEFAULT_STRATEGY].Config()


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides a run, in the sections of its run file.

    Attributes
    ----------
    model
        The model's shape, with 1 feature and 1 label until `model_spec` is told the data's.
    strategy_name, strategy
        The key in `daskxml.strategies.STRATEGIES`, and that strategy's ``Config``.
    """

    training: TrainingSection
    run: RunSection = field(default_factory=RunSection)
    data: DataSection = field(default_factory=DataSection)
    model: ModelSpec = field(default_factory=lambda: ModelSpec(features=1, labels=1))
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    combine: CombineConfig = field(default_factory=CombineConfig)
    strategy_name: str = DEFAULT_STRATEGY
    strategy: Any = field(default_factory=_default_strategy)
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    cluster: ClusterSection = field(default_factory=ClusterSection)
    gpu: GpuSection = field(default_factory=GpuSection)

    def __post_init__(self) -> None:
        rank = int(self.training.target_metric.partition("@")[2])
        if self.training.target and rank not in self.evaluation.k:
            raise ConfigError(
                f"[training] target_metric = {self.training.target_metric!r} is never measured: "
                f"add {rank} to [evaluation] k = {list(self.evaluation.k)}"
            )
        self._check_combination()

    def _check_combination(self) -> None:
        strategy, combine = self.make_strategy(), self.combine
        if combine.rule not in ("auto", *strategy.rules):
            raise ConfigError(
                f"[combine] rule = {combine.rule!r}: strategy {self.strategy_name!r} takes "
                f"auto, {', '.join(strategy.rules)}"
            )
        merges = not (strategy.is_joint or strategy.shares_model)
        if combine.outer != "none" and not (merges and self.rule == "mean"):
            raise ConfigError(
                f"[combine] outer = {combine.outer!r}: needs a strategy that merges models by "
                "their mean, like adaptive-sgd or elastic"
            )
        if combine.overlap:
            self._check_overlap(is_of_replicas=merges)
        if strategy.shares_model and self.optimizer.on_merge != "keep":
            raise ConfigError(
                f"[optimizer] on_merge = {self.optimizer.on_merge!r}: strategy "
                f"{self.strategy_name!r} updates one shared model and merges nothing; leave it at "
                "'keep'"
            )
        if strategy.is_joint and self.cluster.pools:
            raise ConfigError(
                f"[cluster] pools = {self.cluster.pools}: the workers of strategy "
                f"{self.strategy_name!r} step together, which pools do not; take one that leases "
                "batches, like adaptive-sgd or hogbatch"
            )
        if self.sampling.is_on:
            self._check_sampling(strategy)
        check_gpu(self, strategy)
        if self.schedule.needs_epochs and not self.training.epochs:
            raise ConfigError(
                f"[schedule] name = {self.schedule.name!r} needs the length of the run: give "
                "[training] epochs"
            )

    def _check_overlap(self, *, is_of_replicas: bool) -> None:
        if not is_of_replicas:
            raise ConfigError(
                f"[combine] overlap = true: the workers of strategy {self.strategy_name!r} share "
                "one model between merges; take one that merges replicas, like adaptive-sgd, "
                "elastic or static by mega-batch"
            )
        if self.optimizer.on_merge == "average":
            raise ConfigError(
                "[combine] overlap = true: [optimizer] on_merge = 'average' would merge moments "
                "that steps change meanwhile; take 'keep' or 'reset'"
            )

    def _check_sampling(self, strategy: Strategy) -> None:
        needs = {
            "a CPU: give [cluster] device": self.cluster.device == "cuda",
            f"a strategy that leases batches, which {self.strategy_name!r} does not: take one like "
            "adaptive-sgd or hogbatch": strategy.is_joint,
            "an optimizer that changes some rows alone: [optimizer] clip_norm must be 0, and lamb "
            "not the output layer's": not self.optimizer.takes_rows("output.weight"),
        }
        for need, is_missing in needs.items():
            if is_missing:
                raise ConfigError(f"[sampling] method = {self.sampling.method!r}: needs {need}")

    def make_strategy(self) -> Strategy:
        """Return the strategy, ready to run."""
        strategy: Strategy = STRATEGIES[self.strategy_name](self.strategy)
        return strategy

    @property
    def rule(self) -> str:
        """How arrays of workers are combined: ``combine.rule``, or what the strategy's paper does.

        Examples
        --------
        >>> load_run_config({"training": {"epochs": 2}}).rule
        'mean'
        """
        rule: str = self.combine.rule
        return self.make_strategy().rules[0] if rule == "auto" else rule

    def model_spec(self, features: int, labels: int) -> ModelSpec:
        """Return the model for data of so many columns."""
        return dataclasses.replace(self.model, features=features, labels=labels)

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return every section with every value, as `load_run_config` takes them."""
        tables = {}
        for name in _SECTIONS:
            skip = _FROM_DATA if name == "model" else ()
            tables[name] = encode(getattr(self, name), skip)
        tables["strategy"] = {"name": self.strategy_name} | tables["strategy"]
        return tables

    def to_toml(self) -> str:
        """Return the resolved run as TOML; loading it gives an equal `RunConfig`.

        Examples
        --------
        >>> config = load_run_config({"training": {"epochs": 2}})
        >>> "epochs = 2.0" in config.to_toml()
        True
        """
        return one_line_lists(tomli_w.dumps(self.as_dict()))


def load_run_config(
    source: str | Path | Mapping[str, Any] | RunConfig,
    overrides: Iterable[str] | Mapping[str, Any] = (),
) -> RunConfig:
    """Read and check a run file.

    Parameters
    ----------
    source
        A TOML file, the bare name of one that comes with daskxml (``"quickstart"``), a
        dictionary of sections, or a run that is resolved already.
    overrides
        ``"section.key=value"`` texts, or a mapping of ``"section.key"`` to values; they win.

    Raises
    ------
    ConfigError
        One line with the place, what is wrong there, and what is allowed.

    Examples
    --------
    >>> config = load_run_config({"training": {"epochs": 2}}, ["model.hidden=[64, 32]"])
    >>> config.training.epochs, config.model.hidden
    (2.0, (64, 32))
    >>> load_run_config({"training": {"epoch": 2}})
    Traceback (most recent call last):
    daskxml.errors.ConfigError: run configuration: [training] unknown key 'epoch', did you mean
    'epochs'?
    """
    read = read_source(source.as_dict() if isinstance(source, RunConfig) else source)
    read.override(overrides)
    for section in read.tables:
        if section not in _SECTIONS:
            hint = suggestion(section, _SECTIONS)
            raise ConfigError(f"{read.place(section)} is not a section{hint}")
    _apply_card(read)
    return _build_run(read)


def _apply_card(source: Source) -> None:
    """Let the dataset card speak where the run file is silent."""
    table = source.tables.get("data", {})
    if isinstance(table.get("card"), str) and table["card"]:
        card = _located(source, "data", lambda: load_card(table["card"]), key="card")
        source.tables["data"] = card.data_values() | table


def _build_run(source: Source) -> RunConfig:
    built = {name: _section(source, name) for name in _SECTIONS if name != "strategy"}
    name, config = _strategy(source)
    try:
        return RunConfig(**built, strategy_name=name, strategy=config)
    except ConfigError as error:
        raise ConfigError(f"{source.name}: {error}") from error


def _section(source: Source, name: str) -> Any:
    table = source.tables.get(name, {})
    if name != "model":
        return _located(source, name, lambda: decode(_SECTIONS[name], table))

    def build() -> ModelSpec:
        for key in _FROM_DATA:
            if key in table:
                raise FieldError(key, f"unknown key {key!r}: it is [data] {key}")
        return decode(ModelSpec, {**table, "features": 1, "labels": 1})

    return _located(source, name, build)


def _strategy(source: Source) -> tuple[str, Any]:
    table = dict(source.tables.get("strategy", {}))
    name = table.pop("name", DEFAULT_STRATEGY)

    def build() -> Any:
        if name not in STRATEGIES:
            hint = suggestion(str(name), STRATEGIES)
            raise FieldError("name", f"name = {name!r}: no such strategy{hint}")
        return decode(STRATEGIES[name].Config, table)

    return name, _located(source, "strategy", build)


def _located(source: Source, section: str, build: Callable[[], Built], key: str = "") -> Built:
    """Return what `build` makes; its errors gain the place of the key that they name."""
    try:
        return build()
    except ConfigError as error:
        problem = str(error).removeprefix(f"{section}.")
        if isinstance(error, FieldError):
            key = error.key
        for named in source.tables.get(section, {}) if not key else ():
            key = named if re.match(rf"{re.escape(named)}\b", problem) else key
        raise ConfigError(f"{source.place(section, key)} {problem}") from error
