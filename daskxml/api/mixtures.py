"""Mixtures of trained models: their weights are chosen on rows that no part was trained on.

A run whose file says ``[model] kind = "mixture"`` is the runs of its parts, one after the other on
one cluster, each in a directory of its own inside the mixture's: ``0-trees``, ``1-best``. A part
that is done is not trained again where the mixture is resumed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from daskxml.api.run import Run
from daskxml.config import RunConfig, load_run_config
from daskxml.core.arrays import Partition
from daskxml.core.errors import ConfigError
from daskxml.core.files import lock_folder, replacing
from daskxml.core.hardware import usable_cores
from daskxml.data.matrices import label_csr
from daskxml.data.rows import concatenate
from daskxml.kernels import get_kernels
from daskxml.local import read_rows
from daskxml.models.kinds import MixtureParts, MixtureSpec
from daskxml.models.mix.mixture import choose_weights, joined_arrays, stacked
from daskxml.models.store import ModelHeader
from daskxml.models.trained import Model
from daskxml.models.trees.forest import candidates
from daskxml.observe.run_view import worker_names
from daskxml.records.checkpoint import checkpoints
from daskxml.records.run_dir import RUN_FILE

_SAME = (
    "normalize", "feature_base", "label_base", "feature_names", "label_names", "vectorizer",
)  # fmt: skip
ENDS = ("megabatches", "epochs", "minutes", "target", "patience")  # reasons that a run file gives
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
    ...          for name in ("tree", "adaptive-sgd")]
    >>> mix(parts, X[40:], Y[40:])
    <daskxml.Model 9 -> 5, mixture of 2 models>
    """
    models = [model.with_decisions(None) for model in models]  # which are of the parts' scores
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
        for name in _SAME:
            if getattr(model.header, name) != getattr(first, name):
                raise ConfigError(f"models 0 and {number} differ in {name}: mix models of one run")
    return first


def _chosen(models: Sequence[Model], X: Any, Y: Any) -> tuple[float, ...]:
    labels = models[0].spec.labels
    count = candidates(_MOST_RANKED, labels)
    rankings = stacked([model.predict_top_k(X, count) for model in models])
    truth = label_csr(X.labels if Y is None else Y, rankings[0].shape[1], labels)
    return choose_weights(rankings, truth, get_kernels("cpu", usable_cores()))


def train_mixture(
    config: RunConfig,
    train_part: Callable[..., Run],
    rows: Any,
    out: Path | None,
    resumes: bool,
) -> Run:
    """Train the parts of a mixture, and choose their weights.

    Parameters
    ----------
    config
        With a `MixtureParts` for a model.
    train_part
        `daskxml.train`, with everything given but the run file, ``out`` and ``resume``.
    rows
        The training rows, if they are no files: an object with `partitions()`.
    out
        The mixture's directory.
    resumes
        It has been begun.

    Raises
    ------
    ConfigError
        If a part's run file is invalid, or is one of a mixture.
    """
    assert isinstance(config.model, MixtureParts)
    parts = [_part_config(config, part) for part in config.model.parts]
    if out is not None and not resumes:
        out.mkdir(parents=True, exist_ok=True)
        with replacing(out / RUN_FILE) as partial:
            partial.write_text(config.to_toml(), encoding="utf-8")
    runs: list[Run] = []
    for number, part in enumerate(parts):
        where = None if out is None else out / f"{number}-{Path(config.model.parts[number]).stem}"
        runs.append(train_part(part, **begun(where)))
        if runs[-1].reason not in ENDS:  # somebody wants it to end
            return Run(runs[-1].model, runs[-1].history, out, runs[-1].reason)
    models = [run.model for run in runs]
    if config.model.weights:
        mixture, measured = mix(models, weights=config.model.weights), {}
    else:
        held = _held_out(config, rows)
        mixture = mix(models, held)
        measured = mixture.evaluate(held, k=config.evaluation.k)
    if out is not None:
        mixture.save(out, overwrite=resumes)
    return Run(mixture, [_summary(runs, measured)], out, runs[-1].reason)


def _part_config(config: RunConfig, part: str) -> RunConfig:
    """Return a part's run file with the mixture's rows, cluster and seed."""
    given: dict[str, Any] = {"run.seed": config.run.seed}
    for name in ("data", "cluster"):
        values = config.as_dict()[name].items()
        given |= {f"{name}.{key}": value for key, value in values}
    if config.pipeline.stages:  # which make the rows of all parts of these files
        given |= {"data.train": [], "data.test": []}
    found = load_run_config(part, given)
    if isinstance(found.model, MixtureParts):
        raise ConfigError(f"[model] parts: {part} is a mixture itself: give its parts")
    return found


def begun(where: Path | None) -> dict[str, Path]:
    """Return where a run is written or goes on; without a checkpoint it begins anew.

    Raises
    ------
    ModelError
        If another process is writing it.
    """
    if where is None:
        return {}
    if checkpoints(where):
        return {"resume": where}
    if (where / RUN_FILE).exists():  # killed before its first checkpoint
        lock_folder(where, "a run is under way in this directory").close()
        shutil.rmtree(where)
    return {"out": where}


def _summary(runs: Sequence[Run], measured: dict[str, float]) -> dict[str, Any]:
    """Return the one line of a mixture's history: all rows and seconds of its parts."""
    ends, every = [run.history[-1] for run in runs], [row for run in runs for row in run.history]
    sums = {name: sum(end[name] for end in ends) for name in ("rows", "epoch", "wall_s")}
    sums |= {name: sum(row[name] for row in every) for name in ("train_s", "merge_s")}
    workers: dict[str, Any] = {name: {} for name in worker_names(every)}
    return {"megabatch": len(every), **sums, "workers": workers, "metrics": measured}


def _held_out(config: RunConfig, rows: Any = None) -> Partition:
    """Return the rows that a run with these settings holds out of training."""
    given = {f"data.{name}": value for name, value in config.as_dict()["data"].items()}
    plain = {"training": {"epochs": 1}, "run": {"seed": config.run.seed}}
    return concatenate(read_rows(load_run_config(plain, given), 1, train=rows).test)


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
        if config.pipeline.stages or not config.data.train:
            raise ConfigError(
                f"{directory} was trained on rows that are in no files: give --rows FILE, or "
                "--weights"
            )
        if _split(config) != _split(configs[0]):
            raise ConfigError(
                f"{directory} has held out other rows than {directories[0]}: give both the same "
                "files, data.validation and run.seed, or give --rows FILE, or --weights"
            )
    return _held_out(configs[0])


def _split(config: RunConfig) -> tuple[Any, ...]:
    """Return what decides which rows are held out."""
    data = config.data
    return data.train, data.validation, config.run.seed, data.features, data.labels
