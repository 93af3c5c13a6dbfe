"""From a run file and what is known of its data to a session and its members.

Whoever carries out a run, the cluster or the simulator, sets it up by these.
"""

from __future__ import annotations

from typing import Any

from daskxml.config import RunConfig
from daskxml.errors import ConfigError, ModelError
from daskxml.model.parameters import Layout
from daskxml.model.spec import ModelSpec
from daskxml.model.store import ModelHeader
from daskxml.strategies.protocol import Device, Strategy
from daskxml.training.limits import Limits
from daskxml.training.overlap import OverlappedSession
from daskxml.training.placement import Placement
from daskxml.training.session import Session
from daskxml.training.settings import MemberSettings


def make_session(
    config: RunConfig,
    spec: ModelSpec,
    placement: Placement,
    *,
    can_checkpoint: bool,
    stored: dict[str, Any] | None = None,
) -> Session:
    """Return the session of a run, or of one that goes on from a checkpoint.

    Raises
    ------
    ConfigError
        If the run is to end at a target that is never measured.
    ModelError
        If rows or strategy are not those that the checkpoint was trained on, or with.
    """
    if config.training.target and not sum(placement.test_rows):
        raise ConfigError("training.target needs test rows: give data.test, or data.validation")
    if stored is not None:
        _check_state(config, stored)
    limits = make_limits(config, can_checkpoint)
    kind = OverlappedSession if config.combine.overlap else Session
    session = kind(config.make_strategy(), limits, placement, Layout(spec).count, stored)
    expected, found = session.ledger.stream_rows, placement.streams()
    if expected != found:
        raise ModelError(
            f"the run to go on with has {sum(expected):,} training rows, the data {sum(found):,}: "
            "give the same files and the same data.validation"
        )
    return session


def _check_state(config: RunConfig, stored: dict[str, Any]) -> None:
    """Refuse the state of a strategy that remembers other things; some remember the same."""
    try:
        config.make_strategy().restore(stored["strategy"])
    except (TypeError, KeyError) as error:
        raise ModelError(
            f"strategy {config.strategy_name!r} cannot go on with the run, which had another: "
            "leave [strategy] as it was"
        ) from error


def make_limits(config: RunConfig, can_checkpoint: bool) -> Limits:
    """Return when a run ends, evaluates and checkpoints."""
    training = config.training
    return Limits(
        megabatches=training.megabatches,
        epochs=training.epochs,
        train_s=training.minutes * 60.0,
        target_metric=training.target_metric,
        target=training.target,
        evaluate_every=config.evaluation.every,
        checkpoint_every=config.checkpoint.every,
        ks=config.evaluation.k,
        training_loss=config.evaluation.training_loss,
        evaluation_rows=config.evaluation.batch_rows,
        can_checkpoint=can_checkpoint,
    )


def member_settings(
    config: RunConfig,
    spec: ModelSpec,
    strategy: Strategy,
    placement: Placement,
    *,
    row_nonzeros: int,
    threads: int,
    device: str = "",
    pool_threads: int = 0,
    host: str = "",
    home: str = "",
) -> MemberSettings:
    """Return what a worker must know.

    Parameters
    ----------
    row_nonzeros
        Features of a typical row.
    threads
        Of the kernels.
    device
        Where they are, ``cpu`` or ``cuda``; "" is what the run file says, "auto" then a CPU.
    pool_threads
        0 unless the worker is a pool.
    host, home
        The worker's machine and that of the shared model.
    """
    budget = config.training.logits_budget
    return MemberSettings(
        spec=spec,
        optimizer=config.optimizer,
        seed=config.run.seed,
        max_batch_rows=strategy.max_batch_rows(Device(pool_threads)),
        logits_budget_bytes=0 if budget == "auto" else budget,
        evaluation_rows=config.evaluation.batch_rows,
        ks=config.evaluation.k,
        propensity_a=config.data.propensity_a,
        propensity_b=config.data.propensity_b,
        training_rows=sum(placement.train_rows),
        row_nonzeros=row_nonzeros,
        stream_rows=placement.streams(),
        device=device or ("cpu" if config.cluster.device == "auto" else config.cluster.device),
        threads=threads,
        exact=config.gpu.exact,
        output_dtype=config.gpu.output_dtype,
        sampling=config.sampling,
        schedule=config.schedule,
        epochs=config.training.epochs,
        combine=config.combine,
        rule=config.rule,
        is_joint=strategy.is_joint,
        keeps_replicas=strategy.keeps_replicas,
        averages=strategy.averages,
        pool_threads=pool_threads,
        shares_model=strategy.shares_model,
        host=host,
        home=home,
        on_merge="average" if strategy.shares_optimizer else config.optimizer.on_merge,
    )


def model_header(
    config: RunConfig,
    spec: ModelSpec,
    *,
    training_rows: int,
    feature_base: int,
    ended: str,
    megabatches: int,
) -> ModelHeader:
    """Return what is written beside the model; ``ended`` says what ended the run."""
    data = config.data
    training: dict[str, Any] = {"ended": ended, "megabatches": megabatches}
    if data.validation:
        training["validation"] = data.validation
    return ModelHeader(
        spec=spec,
        training_rows=training_rows,
        normalize=data.normalize,
        feature_base=feature_base,
        label_base=data.label_base,
        propensity_a=data.propensity_a,
        propensity_b=data.propensity_b,
        training=training,
    )
