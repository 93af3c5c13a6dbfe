"""Mixtures of trained models: their weights are chosen on rows that no part was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from daskxml.config import RunConfig, load_run_config
from daskxml.core.arrays import Partition
from daskxml.core.errors import ConfigError
from daskxml.core.hardware import usable_cores
from daskxml.data.matrices import label_csr
from daskxml.data.rows import concatenate
from daskxml.in_process import read_rows
from daskxml.kernels import get_kernels
from daskxml.model.kinds import MixtureSpec
from daskxml.model.mixture import candidates, choose_weights, joined_arrays, stacked
from daskxml.model.store import ModelHeader
from daskxml.model.trained import Model

_MOST_RANKED = 5  # the metrics by which weights are chosen are P@1, P@3 and P@5


def mix(
    models: Sequence[Model], X: Any = None, Y: Any = None, *, weights: Sequence[float] = ()
) -> Model:
    """Make one model of several, whose probabilities are added up with weights.

    Parameters
    ----------
    models
        Two or more, networks and label trees, of the same features and labels.
    X, Y
        Rows that none of them was trained on, as for `Model.evaluate`: the weights with the best
        P@1, 3 and 5 on them are taken.
    weights
        One for each model, in the place of rows; their sum is 1.

    Raises
    ------
    ConfigError
        If the models do not fit together, or neither rows nor weights are given.
    InputError
        If X or Y does not match the models.

    Examples
    --------
    >>> import daskxml, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, Y = rng.random((60, 9)), rng.random((60, 5)) > 0.7
    >>> rows = daskxml.Matrices(X[:40], Y[:40])
    >>> from daskxml.api.train_here import train_here
    >>> parts = [train_here(name, train=rows, overrides=["training.epochs=1"]).model
    ...          for name in ("tree", "quickstart")]
    >>> mix(parts, X[40:], Y[40:])
    <daskxml.Model 9 -> 5, mixture of 2 models>
    """
    header = _joint_header(models)
    if not weights:
        if X is None:
            raise ConfigError("a mixture without weights: give rows on which they are chosen")
        weights = _chosen(models, X, Y)
    spec = MixtureSpec(
        features=header.spec.features,
        labels=header.spec.labels,
        parts=tuple(model.spec for model in models),  # type: ignore[misc]  # just checked
        weights=tuple(weights),
    )
    header = replace(header, spec=spec, training={})
    arrays = joined_arrays([model.parameters for model in models])
    return Model(header, arrays, models[0].label_counts, threads=models[0].threads)


def _joint_header(models: Sequence[Model]) -> ModelHeader:
    """Return the header of the first model, which is the others' but for spec and training."""
    if len(models) < 2:
        raise ConfigError("a mixture of one model: give two or more")
    first = models[0].header
    for number, model in enumerate(models):
        if isinstance(model.spec, MixtureSpec):
            raise ConfigError(f"model {number} is a mixture itself: give its parts")
        for name in ("normalize", "feature_base", "label_base", "feature_names", "label_names"):
            if getattr(model.header, name) != getattr(first, name):
                raise ConfigError(f"models 0 and {number} differ in {name}: mix models of one run")
    return first


def _chosen(models: Sequence[Model], X: Any, Y: Any) -> tuple[float, ...]:
    labels = models[0].spec.labels
    count = candidates(_MOST_RANKED, labels)
    rankings = stacked([model.predict_top_k(X, count) for model in models])
    truth = label_csr(X.labels if Y is None else Y, rankings[0].shape[1], labels)
    return choose_weights(rankings, truth, get_kernels("cpu", usable_cores()))


def held_out_rows(directories: Sequence[str | Path]) -> Partition:
    """Return the rows that all of these runs have held out of training (`data.validation`).

    Raises
    ------
    ConfigError
        If one has held out none, or others.
    """
    configs = [load_run_config(Path(directory) / "run.toml") for directory in directories]
    for directory, config in zip(directories, configs, strict=True):
        if not config.data.validation:
            raise ConfigError(
                f"{directory} has held out no rows: train with --set data.validation=0.1, or give "
                "--rows FILE, or --weights"
            )
        if _split(config) != _split(configs[0]):
            raise ConfigError(
                f"{directory} has held out other rows than {directories[0]}: give both the same "
                "files, data.validation and run.seed, or give --rows FILE, or --weights"
            )
    return concatenate(read_rows(configs[0], 1).test)


def _split(config: RunConfig) -> tuple[Any, ...]:
    """Return what decides which rows are held out."""
    data = config.data
    return data.train, data.validation, config.run.seed, data.features, data.labels
