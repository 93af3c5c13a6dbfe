"""One run, resolved: every section of its run file with every value."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, get_type_hints

from daskxml.collectives.combine import CombineConfig
from daskxml.config.sections import (
    VECTORIZE,
    CheckpointSection,
    ClusterSection,
    DashboardSection,
    EvaluationSection,
    GpuSection,
    PipelineSection,
    RunSection,
    TrainingSection,
)
from daskxml.config.toml import Source, decode, encode, one_line_lists, read_source, suggestion
from daskxml.core.errors import ConfigError
from daskxml.data.settings import DataSection, TextSettings, load_card
from daskxml.models.kinds import TRAINED, trained_kind
from daskxml.models.network.sampling import SamplingConfig
from daskxml.models.protocol import DEFAULT_KIND, Spec, TrainedKind
from daskxml.optim import OptimizerConfig, ScheduleConfig
from daskxml.strategies import STRATEGIES
from daskxml.strategies.megabatch import Strategy

_FROM_DATA = ("features", "labels")  # fields of a model that no run file contains
DEFAULT_STRATEGY = "adaptive-sgd"


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides a run, in the sections of its run file.

    Attributes
    ----------
    model
        The model's shape, with 1 feature and 1 label: `model_spec` has those of the data.
    strategy_name, strategy
        The key in `daskxml.strategies.STRATEGIES`, and that strategy's ``Config``.
    """

    run: RunSection = field(default_factory=RunSection)
    data: DataSection = field(default_factory=DataSection)
    pipeline: PipelineSection = field(default_factory=PipelineSection)
    text: TextSettings = field(default_factory=TextSettings)
    model: Spec = field(default_factory=lambda: TRAINED[DEFAULT_KIND].Spec(features=1, labels=1))
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    combine: CombineConfig = field(default_factory=CombineConfig)
    strategy_name: str = DEFAULT_STRATEGY
    strategy: Any = field(default_factory=lambda: STRATEGIES[DEFAULT_STRATEGY].Config())
    training: TrainingSection
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    cluster: ClusterSection = field(default_factory=ClusterSection)
    gpu: GpuSection = field(default_factory=GpuSection)
    dashboard: DashboardSection = field(default_factory=DashboardSection)

    def __post_init__(self) -> None:
        strategy = self.make_strategy()
        for is_wrong, problem in chain(
            self.kind.needs(self),
            self._conflicts(strategy),
            self._needs(strategy),
        ):
            if is_wrong:
                raise ConfigError(problem)

    @property
    def kind(self) -> TrainedKind[Any]:
        """The model's kind."""
        return TRAINED[self.model.kind]

    @property
    def has_strategy(self) -> bool:
        """Whether a strategy says how workers train together; else the model is fitted in tasks."""
        return self.kind.strategy is not None

    def _conflicts(self, strategy: Strategy) -> Iterator[tuple[bool, str]]:
        """Yield combinations of sections that are invalid, with what to do about them."""
        name, combine, on_merge = self.strategy_name, self.combine, self.optimizer.on_merge
        merges = not (strategy.is_joint or strategy.shares_model)
        training, rank = self.training, self.training.target_rank
        needs_metric = training.target or training.patience or training.keep_best is True
        yield (
            self.text != TextSettings() and VECTORIZE not in self.pipeline.stages,
            f"[text] is for documents: add {VECTORIZE!r} to [pipeline] stages",
        )
        yield (
            bool(needs_metric) and rank not in self.evaluation.k,
            f"[training] target_metric = {training.target_metric!r} is never measured: "
            f"add {rank} to [evaluation] k = {list(self.evaluation.k)}",
        )
        yield (
            combine.rule not in ("auto", *strategy.rules),
            f"[combine] rule = {combine.rule!r}: strategy {name!r} takes "
            f"auto, {', '.join(strategy.rules)}",
        )
        yield (
            combine.outer != "none" and not (merges and self.rule == "mean"),
            f"[combine] outer = {combine.outer!r}: needs a strategy that merges models by "
            "their mean, like adaptive-sgd or elastic",
        )
        yield (
            combine.overlap and not merges,
            f"[combine] overlap = true: the workers of strategy {name!r} share "
            "one model between merges; take one that merges replicas, like adaptive-sgd, "
            "elastic or static by mega-batch",
        )
        yield (
            combine.overlap and on_merge == "average",
            "[combine] overlap = true: [optimizer] on_merge = 'average' would merge moments "
            "that steps change meanwhile; take 'keep' or 'reset'",
        )
        yield (
            strategy.shares_model and on_merge != "keep",
            f"[optimizer] on_merge = {on_merge!r}: strategy {name!r} updates one shared model and "
            "merges nothing; leave it at 'keep'",
        )
        yield (
            strategy.is_joint and bool(self.cluster.pools),
            f"[cluster] pools = {self.cluster.pools}: the workers of strategy {name!r} step "
            "together, which pools do not; take one that leases batches, like adaptive-sgd or "
            "hogbatch",
        )

    def _needs(self, strategy: Strategy) -> Iterator[tuple[bool, str]]:
        """Yield the needs of sampling, of `[gpu]` and of the schedule, and which are not met."""
        name, gpu = self.strategy_name, self.gpu
        if self.has_weights:
            weights = "[training] class_weight" if not self.data.weights else "[data] weights"
            on_gpu = self.cluster.device == "cuda" and self.has_strategy
            yield on_gpu, f"{weights}: needs a CPU: give [cluster] device"
            yield self.sampling.is_on, f"{weights}: needs all labels: leave [sampling] out"
        sampling = f"[sampling] method = {self.sampling.method!r}: needs"
        if self.sampling.is_on:
            yield self.cluster.device == "cuda", f"{sampling} a CPU: give [cluster] device"
            yield (
                strategy.is_joint,
                f"{sampling} a strategy that leases batches, which {name!r} does not: take one "
                "like adaptive-sgd or hogbatch",
            )
            yield (
                not self.optimizer.takes_rows("output.weight"),
                f"{sampling} an optimizer that changes some rows alone: [optimizer] clip_norm must "
                "be 0, and lamb not the output layer's",
            )
        yield (
            gpu != GpuSection() and self.cluster.device == "cpu",
            "[gpu] is for GPUs, but [cluster] device = 'cpu': leave the section out, or let "
            "device be 'auto' or 'cuda'",
        )
        output = f"[gpu] output_dtype = {gpu.output_dtype!r}: needs"
        if gpu.output_dtype != "float32":
            yield gpu.exact, f"{output} float32 products off, which [gpu] exact = true asks for"
            yield self.sampling.is_on, f"{output} all labels: leave [sampling] method at 'none'"
        yield (
            self.schedule.needs_epochs and not self.training.epochs,
            f"[schedule] name = {self.schedule.name!r} needs the length of the run: give "
            "[training] epochs",
        )

    @property
    def keeps_best(self) -> bool:
        """Whether the best model of all evaluations is the result: see ``training.keep_best``.

        Examples
        --------
        >>> load_run_config({"training": {"epochs": 2}}, ["data.validation=0.1"]).keeps_best
        True
        """
        if self.training.keep_best != "auto":
            return bool(self.training.keep_best)
        return self.data.validation > 0.0 and self.training.target_rank in self.evaluation.k

    @property
    def has_weights(self) -> bool:
        """Whether the run file gives rows or labels weights: networks with them need a CPU."""
        return bool(self.data.weights) or self.training.class_weight != "none"

    @property
    def needs_cpu(self) -> bool:
        """Whether workers that have a GPU compute on the CPU all the same.

        Examples
        --------
        >>> load_run_config("slide").needs_cpu, load_run_config("elastic").needs_cpu
        (True, False)
        """
        strategy = self.make_strategy()
        needs = self.sampling.is_on or (self.has_weights and self.has_strategy)
        return needs or strategy.shares_model

    @property
    def algorithm(self) -> str:
        """What trains the model, in words: the strategy's name, or that of a kind without one.

        Examples
        --------
        >>> load_run_config("tree").algorithm, load_run_config("elastic").algorithm
        ('label-trees', 'elastic')
        """
        return self.strategy_name if self.has_strategy else self.kind.title.replace(" ", "-")

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

    def model_spec(self, features: int, labels: int) -> Any:
        """Return the model, its kind's ``Spec``, for data with so many columns."""
        return dataclasses.replace(self.model, features=features, labels=labels)

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return every section with every value, as `load_run_config` takes them."""
        tables = {}
        for name in SECTIONS:
            skip = _FROM_DATA if name == "model" else ()
            tables[name] = encode(getattr(self, name), skip)
        for name, unset in (("pipeline", PipelineSection()), ("text", TextSettings())):
            if getattr(self, name) == unset:  # sections that older versions do not know
                del tables[name]
        tables["strategy"] = {"name": self.strategy_name} | tables["strategy"]
        if self.model.kind != DEFAULT_KIND:  # the only kind that older versions know
            tables["model"] = {"kind": self.model.kind} | tables["model"]
        if not self.has_strategy:
            del tables["strategy"]
        return tables

    def changes(self) -> dict[str, dict[str, Any]]:
        """Return the values that differ from the defaults, and the names of kinds, by section.

        Examples
        --------
        >>> load_run_config({"training": {"epochs": 2}}, ["model.hidden=[64]"]).changes()
        {'model': {'hidden': [64]}, 'strategy': {'name': 'adaptive-sgd'},
         'training': {'epochs': 2.0}}
        """
        found: dict[str, dict[str, Any]] = {}
        for name, table in self.as_dict().items():
            section = getattr(self, name)
            usual = {each.name: each.default for each in dataclasses.fields(section)}
            changed = {
                key: value
                for key, value in table.items()
                if key not in usual or getattr(section, key) != usual[key]
            }
            found |= {name: changed} if changed else {}
        return found

    def to_toml(self) -> str:
        """Return the resolved run as TOML; loading it gives an equal `RunConfig`.

        Examples
        --------
        >>> config = load_run_config({"training": {"epochs": 2}})
        >>> "epochs = 2.0" in config.to_toml()
        True
        """
        return as_toml(self.as_dict())


def as_toml(tables: Mapping[str, Any]) -> str:
    """Return sections as the text of a run file."""
    import tomli_w  # needed by writers of run files only

    return one_line_lists(tomli_w.dumps(tables))


_HINTS = get_type_hints(RunConfig)
SECTIONS = tuple(name for name in _HINTS if name != "strategy_name")


def load_run_config(
    source: str | Path | Mapping[str, Any] | RunConfig,
    overrides: Iterable[str] | Mapping[str, Any] = (),
) -> RunConfig:
    """Read and check a run file.

    Parameters
    ----------
    source
        A TOML file, the bare name of one that comes with daskxml (``"best"``), a
        dictionary of sections, or a resolved run.
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
    daskxml.core.errors.ConfigError: run configuration: [training] unknown key 'epoch', did you mean
    'epochs'?
    """
    read = read_source(source.as_dict() if isinstance(source, RunConfig) else source)
    read.override(overrides)
    for section in read.tables:
        if section not in SECTIONS:
            hint = suggestion(section, SECTIONS)
            raise ConfigError(f"{read.place(section)} is not a section{hint}")
    _apply_card(read)
    return _build_run(read)


def _apply_card(source: Source) -> None:
    """Use the dataset card's values where the run file gives none."""
    table = source.tables.get("data", {})
    if isinstance(table.get("card"), str) and table["card"]:
        with source.located("data"):
            card = load_card(table["card"])
        source.tables["data"] = card.data_values() | table


def _build_run(source: Source) -> RunConfig:
    built = {name: _section(source, name) for name in SECTIONS if name != "strategy"}
    name, config = _strategy(source)
    try:
        return RunConfig(**built, strategy_name=name, strategy=config)
    except ConfigError as error:
        raise ConfigError(f"{source.name}: {error}") from error


def _section(source: Source, name: str) -> Any:
    table = source.tables.get(name, {})
    with source.located(name):
        if name == "model":
            for key in _FROM_DATA:
                if key in table:
                    raise ConfigError(f"unknown key {key!r}: it is [data] {key}", key)
            kind = trained_kind(table.get("kind", DEFAULT_KIND)).Spec
            own = {key: value for key, value in table.items() if key != "kind"}
            return decode(kind, {**own, "features": 1, "labels": 1})
        section = decode(_HINTS[name], table)
        if name == "training":
            section.check_end()
        return section


def _strategy(source: Source) -> tuple[str, Any]:
    table = dict(source.tables.get("strategy", {}))
    model = source.tables.get("model", {})
    with source.located("model"):
        usual = trained_kind(model.get("kind", DEFAULT_KIND)).strategy
    if usual is None and table:
        raise ConfigError(
            f"{source.place('strategy')}: [model] kind = {model['kind']!r} has none, and is cut "
            "into pieces by the number of workers: leave the section out"
        )
    name = table.pop("name", usual or DEFAULT_STRATEGY)
    with source.located("strategy"):
        if not isinstance(name, str) or name not in STRATEGIES:
            hint = suggestion(str(name), STRATEGIES)
            raise ConfigError(f"name = {name!r}: no such strategy{hint}", "name")
        return name, decode(STRATEGIES[name].Config, table)
