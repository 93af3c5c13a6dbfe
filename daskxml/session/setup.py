"""From a run file and its data to a session, and to the trained model's header."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from daskxml.config import RunConfig
from daskxml.core.errors import ConfigError, ModelError
from daskxml.data.settings import DataSection
from daskxml.data.side_files import read_names
from daskxml.data.text import Vectorizer
from daskxml.models.protocol import Spec
from daskxml.models.store import ModelHeader, check_names
from daskxml.session.placement import Placement
from daskxml.session.session import Session
from daskxml.session.stopping import StoppingRules, limits_of
from daskxml.strategies.protocol import WorkerDevice


@dataclass(frozen=True)
class ColumnNames:
    """Names of all features and of all labels; none where only ids are known.

    ``vectorizer`` has made the rows of texts, if they were such.
    """

    features: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    vectorizer: Vectorizer | None = None

    @classmethod
    def read(cls, data: DataSection) -> ColumnNames:
        """Read the files that a run file names.

        Raises
        ------
        InputError
            If one cannot be read, or names do not differ.
        """
        features, labels = (
            read_names(path) if path else () for path in (data.feature_names, data.label_names)
        )
        return cls(features, labels)

    def sized(self, config: RunConfig) -> RunConfig:
        """Return a run with as many columns as there are names, where it does not say how many.

        Weights of labels by their names are by their ids then.
        """
        data, training = config.data, config.training
        features = data.features or len(self.features)
        data = replace(data, features=features, labels=data.labels or len(self.labels))
        if isinstance(training.class_weight, dict) and self.labels:
            ids = {name: str(i) for i, name in enumerate(self.labels, start=data.label_base)}
            by_id = {ids.get(name, name): each for name, each in training.class_weight.items()}
            training = replace(training, class_weight=by_id)
        return replace(config, data=data, training=training)

    def check(self, spec: Spec) -> None:
        """Refuse names that are not one for each column.

        Raises
        ------
        ConfigError
            If there are too few or too many.
        """
        check_names("feature", self.features, spec.features)
        check_names("label", self.labels, spec.labels)


NO_NAMES = ColumnNames()


def make_session(
    config: RunConfig,
    spec: Spec,
    placement: Placement,
    *,
    can_checkpoint: bool,
    stored: dict[str, Any] | None = None,
) -> Session:
    """Return the session of a run, or of one that continues from a checkpoint.

    Raises
    ------
    ConfigError
        If the run is to end at a target metric that is never computed.
    ModelError
        If the rows or the strategy are not those of the checkpoint.
    """
    if not sum(placement.test_rows):
        check_untested(config)
    if stored is not None:
        _check_state(config, stored)
    session = Session(
        config.make_strategy(),
        StoppingRules(config, can_checkpoint),
        placement,
        spec.parameter_count,
        stored,
        config.as_dict()["strategy"],
        grace_s=None if config.combine.grace == "auto" else float(config.combine.grace),
    )
    expected, found = session.ledger.stream_rows, placement.streams()
    if expected != found:
        raise ModelError(
            f"the run to continue has {sum(expected):,} training rows, the data {sum(found):,}: "
            "give the same files and the same data.validation"
        )
    return session


def check_untested(config: RunConfig) -> None:
    """Refuse settings that need evaluations where there are no rows to evaluate on."""
    training = config.training
    needs = {"target": training.target, "patience": training.patience}
    needs["keep_best"] = training.keep_best is True
    for name, is_set in needs.items():
        if is_set:
            raise ConfigError(
                f"training.{name} needs test rows: give data.test, or data.validation"
            )


def _check_state(config: RunConfig, stored: dict[str, Any]) -> None:
    """Refuse the state of another strategy."""
    before = stored.get("strategy_name")
    if before != config.strategy_name:
        raise ModelError(
            f"strategy {config.strategy_name!r} cannot continue the run, which had {before!r}: "
            "leave [strategy] as it was"
        )


def describe_run(
    config: RunConfig, spec: Spec, placement: Placement, devices: Mapping[str, WorkerDevice]
) -> dict[str, Any]:
    """Return the values of a run's event ``started`` with such workers."""
    return {
        "strategy": config.algorithm,
        "rows": sum(placement.train_rows),
        "test_rows": sum(placement.test_rows),
        "tested_on": "validation" if config.data.validation else "test",
        "features": spec.features,
        "labels": spec.labels,
        "parameters": spec.parameter_count,
        **config.kind.figures(spec),
        "residency": "replicate" if placement.is_replicated else "shard",
        "workers": list(devices),
        "limits": limits_of(config),
        "pools": {name: worker.pool_threads for name, worker in devices.items() if worker.is_pool},
    }


def model_header(
    config: RunConfig, spec: Spec, rows: Any, ended: str, megabatches: int, best: int,
    names: ColumnNames,
) -> ModelHeader:  # fmt: skip
    """Return the header of the trained model.

    Parameters
    ----------
    rows
        With the ``facts`` of all rows, and how many `training_rows` were not held out.
    ended
        The reason why the run ended.
    best
        The mega-batch whose model it is, where the best one was kept.
    names
        Of its columns.
    """
    data = config.data
    training: dict[str, Any] = {"ended": ended, "megabatches": megabatches}
    if best:
        training["best_megabatch"] = best
    if data.validation:
        training["validation"] = data.validation
    return ModelHeader(
        spec=spec,
        training_rows=rows.training_rows,
        normalize=data.normalize,
        feature_base=rows.facts.feature_base,
        label_base=data.label_base,
        propensity_a=data.propensity_a,
        propensity_b=data.propensity_b,
        training=training,
        feature_names=names.features or rows.facts.columns,
        label_names=names.labels,
        vectorizer=names.vectorizer,
    )
