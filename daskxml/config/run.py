"""One run, resolved: every section of its run file with every value."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daskxml.collectives.combine import CombineConfig
from daskxml.config import sections
from daskxml.config.toml import Source, decode, encode, one_line_lists, read_source, suggestion
from daskxml.core.errors import ConfigError
from daskxml.core.fields import type_hints
from daskxml.data.settings import DataSection, TextSettings, load_card
from daskxml.models.kinds import TRAINED, trained_kind
from daskxml.models.network.sampling import SamplingConfig
from daskxml.models.protocol import DEFAULT_KIND, Limit, Spec, TrainedKind
from daskxml.optim import OptimizerConfig, ScheduleConfig
from daskxml.strategies import STRATEGIES
from daskxml.strategies.megabatch import Strategy

_FROM_DATA = ("features", "labels")  # fields of a model that no run file contains
DEFAULT_STRATEGY = "adaptive-sgd"
DEFAULT_QUORUM = 0.75
_NO_STRATEGY = "is for networks: leave it out, or take a run file like adaptive-sgd"


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

    run: sections.RunSection = field(default_factory=sections.RunSection)
    data: DataSection = field(default_factory=DataSection)
    text: TextSettings = field(default_factory=TextSettings)
    model: Spec = field(default_factory=lambda: TRAINED[DEFAULT_KIND].Spec(features=1, labels=1))
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    combine: CombineConfig = field(default_factory=CombineConfig)
    strategy_name: str = DEFAULT_STRATEGY
    strategy: Any = field(default_factory=lambda: STRATEGIES[DEFAULT_STRATEGY].Config())
    training: sections.TrainingSection = field(default_factory=sections.TrainingSection)
    evaluation: sections.EvaluationSection = field(default_factory=sections.EvaluationSection)
    checkpoint: sections.CheckpointSection = field(default_factory=sections.CheckpointSection)
    cluster: sections.ClusterSection = field(default_factory=sections.ClusterSection)
    gpu: sections.GpuSection = field(default_factory=sections.GpuSection)

    @property
    def kind(self) -> TrainedKind[Any]:
        """The model's kind."""
        return TRAINED[self.model.kind]

    @property
    def has_strategy(self) -> bool:
        """Whether a strategy says how workers train together; else the model is fitted in tasks."""
        return self.kind.strategy is not None

    def problems(self) -> Iterator[tuple[str, str, Any, str]]:
        """Yield section, key and value of what the other sections do not allow, and why.

        Examples
        --------
        >>> pools = sections.ClusterSection(pools=1)
        >>> run = dataclasses.replace(load_run_config("mirrored"), cluster=pools)
        >>> [problem[:3] for problem in run.problems()]
        [('cluster', 'pools', 1)]
        """
        for limit in self._limits():
            section, _, key = limit.place.partition(".")
            values = getattr(self, section)
            value = getattr(values, key) if key else values
            if value not in limit.allowed:
                yield section, key, value, limit.why

    def without_use(self) -> dict[str, str]:
        """Return the sections, and ``section.key``, that must be left at their defaults, and why.

        Examples
        --------
        >>> sorted(load_run_config("tree").without_use())
        ['cluster.pool_threads', 'cluster.pools', 'evaluation.training_loss', 'strategy',
         'training.epochs', 'training.megabatches']
        """
        own = {} if self.has_strategy else {"strategy": _NO_STRATEGY}
        return own | {limit.place: limit.why for limit in self._limits() if len(limit.allowed) == 1}

    def _limits(self) -> Iterator[Limit]:
        """Yield what sections must be because of others."""
        yield from self.kind.limits(self)
        yield from self._limits_of_strategy(self.make_strategy())
        yield from self._limits_of_devices()
        training, rank, ranks = self.training, self.training.target_rank, self.evaluation.k
        needs_metric = training.target or training.patience or training.keep_best is True
        if needs_metric and rank not in ranks:
            why = f"is never measured: add {rank} to [evaluation] k = {list(ranks)}"
            yield Limit("training.target_metric", (), why)
        if self.strategy.batch_max > 1 << 18:  # each size up to it is planned
            yield Limit("strategy.batch_max", (), f"is more than {1 << 18:,} rows")
        if self.schedule.needs_epochs and not training.epochs:
            why = "needs the length of the run: give [training] epochs"
            yield Limit("schedule.name", (), why)

    def _limits_of_strategy(self, strategy: Strategy) -> Iterator[Limit]:
        """Yield what does not go with how workers share their work."""
        name = f"strategy {self.strategy_name!r}"
        merges = not (strategy.is_joint or strategy.shares_model)
        rules = ("auto", *strategy.rules)
        yield Limit("combine.rule", rules, f"{name} takes {', '.join(rules)}")
        if not (merges and self.rule == "mean"):
            why = "needs a strategy that merges models by their mean, like adaptive-sgd or elastic"
            yield Limit("combine.outer", ("none",), why)
        if not merges:
            why = f"the workers of {name} share one model between merges; take one that merges "
            why += "replicas, like adaptive-sgd, elastic or static by mega-batch"
            yield Limit("combine.quorum", ("auto", 1), why)
        if strategy.shares_model:
            why = f"{name} updates one shared model and merges nothing; leave it at 'keep'"
            yield Limit("optimizer.on_merge", ("keep",), why)
        if strategy.is_joint:
            why = f"the workers of {name} step together, which pools do not; take one that leases "
            why += "batches, like adaptive-sgd or hogbatch"
            yield from (Limit(f"cluster.{key}", (0,), why) for key in ("pools", "pool_threads"))
            why = f"needs a strategy that leases batches, like adaptive-sgd or hogbatch; {name} "
            why += "does not"
            yield Limit("sampling.method", ("none",), why)

    def _limits_of_devices(self) -> Iterator[Limit]:
        """Yield what GPUs, samples of the labels and weights of rows and labels need."""
        on_gpu, samples = self.cluster.device == "cuda", self.sampling.is_on
        needs_cpu = "needs a CPU: give [cluster] device"
        if on_gpu:
            yield Limit("sampling.method", ("none",), needs_cpu)
        if samples and not self.optimizer.takes_rows("output.weight"):
            why = "needs an optimizer that changes some rows alone: [optimizer] clip_norm must be "
            yield Limit("sampling.method", (), why + "0, and lamb not the output layer's")
        for place, off in (("data.weights", ""), ("training.class_weight", "none")):
            if on_gpu and self.has_strategy:
                yield Limit(place, (off,), needs_cpu)
            if samples:
                yield Limit(place, (off,), "needs all labels: leave [sampling] out")
        if self.cluster.device == "cpu":
            why = "is for GPUs, but [cluster] device = 'cpu': leave the section out, or let device "
            yield Limit("gpu", (sections.GpuSection(),), why + "be 'auto' or 'cuda'")
        if self.gpu.exact:
            why = "needs float32 products off, which [gpu] exact = true asks for"
            yield Limit("gpu.output_dtype", ("float32",), why)
        if samples:
            why = "needs all labels: leave [sampling] method at 'none'"
            yield Limit("gpu.output_dtype", ("float32",), why)

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
        if not (strategy.is_joint or strategy.shares_model):
            quorum = self.combine.quorum
            strategy.quorum = DEFAULT_QUORUM if quorum == "auto" else float(quorum)
        return strategy

    @property
    def rule(self) -> str:
        """How arrays of workers are combined: ``combine.rule``, or what the strategy's paper does.

        Examples
        --------
        >>> load_run_config({"training": {"epochs": 2}}).rule
        'mean'
        """
        rule = self.combine.rule
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
        if self.text == TextSettings():  # a section that older versions do not know
            del tables["text"]
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
                if key not in usual or repr(getattr(section, key)) != repr(usual[key])  # 1 or 1.0
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


_HINTS = type_hints(RunConfig)
SECTIONS = tuple(name for name, kind in _HINTS.items() if kind is not str)


def load_run_config(
    source: str | Path | Mapping[str, Any] | RunConfig,
    *overrides: Iterable[str] | Mapping[str, Any],
) -> RunConfig:
    """Read and check a run file.

    Parameters
    ----------
    source
        A TOML file, the bare name of one that comes with daskxml (``"best"``), a
        dictionary of sections, or a resolved run.
    overrides
        ``"section.key=value"`` texts, or mappings of ``"section.key"`` to values; the last wins.

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
    for each in overrides:
        read.override(each)
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
    built: dict[str, Any] = {}
    for name in SECTIONS:
        with contextlib.suppress(ConfigError):
            built |= _values(source, name)
    run = RunConfig(**built)  # with the defaults of sections that are wrong
    unused = run.without_use()
    for section in source.tables:
        if section not in SECTIONS:
            hint = suggestion(section, [name for name in SECTIONS if name not in unused])
            raise ConfigError(f"{source.place(section)} is not a section{hint}")
    for name in SECTIONS:
        if name in built:
            continue
        if name in unused:
            raise source.refusal(name, "", None, unused[name])
        _values(source, name, unused)
    for problem in run.problems():
        raise source.refusal(*problem)
    with source.located("training"):
        run.training.check_end()
    return run


def _values(source: Source, name: str, unused: Iterable[str] = ()) -> dict[str, Any]:
    """Return a section, and the strategy's name with it, by the fields of `RunConfig`."""
    table = source.tables.get(name, {})
    hidden = [place.removeprefix(f"{name}.") for place in unused]
    with source.located("model"):
        kind = trained_kind(source.tables.get("model", {}).get("kind", DEFAULT_KIND))
    with source.located(name):
        if name == "model":
            for key in _FROM_DATA:
                if key in table:
                    raise ConfigError(f"unknown key {key!r}: it is [data] {key}", key)
            table, hidden = {**table, "features": 1, "labels": 1}, [*hidden, *_FROM_DATA]
            return {name: decode(kind.Spec, table, hidden, chosen_by="kind")}
        if name != "strategy":
            return {name: decode(_HINTS[name], table, hidden)}
        if kind.strategy is None and table:
            raise ConfigError(_NO_STRATEGY)
        own = table.get("name", kind.strategy or DEFAULT_STRATEGY)
        if not isinstance(own, str) or own not in STRATEGIES:
            hint = suggestion(str(own), STRATEGIES)
            raise ConfigError(f"name = {own!r}: no such strategy{hint}", "name")
        config = decode(STRATEGIES[own].Config, {"name": own, **table}, hidden, chosen_by="name")
        return {"strategy_name": own, name: config}
