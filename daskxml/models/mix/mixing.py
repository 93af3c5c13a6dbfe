"""One model of several trained ones, with weights chosen on held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from daskxml.core.arrays import Array, Csr, Partition
from daskxml.core.errors import ConfigError, InputError
from daskxml.data.rows import concatenate, label_csr
from daskxml.kernels import Kernels, get_kernels
from daskxml.metrics import metric_sums
from daskxml.models.mix.kind import MixtureSpec, Rankings, stacked
from daskxml.models.protocol import joined_arrays
from daskxml.models.rankings import candidates
from daskxml.models.rows import read_rows
from daskxml.models.store import ModelHeader
from daskxml.models.trained import Model

_SAME = (
    "normalize", "feature_base", "label_base", "feature_names", "label_names", "vectorizer",
)  # fmt: skip
_KS = 1, 3, 5  # weights are chosen by the mean of P@k
_MOVED = (0.4, 0.2, 0.1, 0.05, 0.02)  # what a step of the search takes from one weight for another
_ROUNDS = 20


def mix(
    models: Sequence[Model | str | Path],
    *,
    valid: Any = None,
    weights: Sequence[float] = (),
    out: str | Path | None = None,
) -> Model:
    """Make one model of several, whose probabilities are added up with weights.

    Parameters
    ----------
    models
        Two or more, of any kinds, of the same features and labels; or directories of runs.
    valid
        Rows that none of them was trained on: files, `Matrices`, or a pair ``(X, Y)``. The weights
        with the best P@1, 3 and 5 on them are taken.
    weights
        One for each model, instead of rows; their sum is 1.
    out
        Where the model is written; None: nowhere.

    Raises
    ------
    ConfigError
        If the models do not fit together, or neither rows nor weights are given.
    InputError
        If the rows do not match the models.
    ModelError
        If a directory holds no model, or ``out`` holds one already.

    Examples
    --------
    >>> import daskxml, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, Y = rng.random((60, 9)), rng.random((60, 5)) > 0.7
    >>> rows = daskxml.Matrices(X[:40], Y[:40])
    >>> from daskxml.api.in_process import train_here
    >>> short = {"tree": "training.trees=1", "adaptive-sgd": "training.epochs=1"}
    >>> parts = [train_here(name, train=rows, overrides=[one]).model for name, one in short.items()]
    >>> mix(parts, valid=(X[40:], Y[40:]))
    <daskxml.Model 9 -> 5, mixture of 2 models>
    """
    loaded = [each if isinstance(each, Model) else Model.load(each) for each in models]
    parts = [model.with_decisions(None) for model in loaded]  # which are of the parts' scores
    header = _joint_header(parts)
    if not weights:
        if valid is None:
            raise ConfigError("a mixture without weights: give rows on which they are chosen")
        weights = _chosen(parts, *_labelled(parts[0], valid))
    sizes = {"features": header.spec.features, "labels": header.spec.labels}
    described = tuple(part.spec for part in parts)
    spec = MixtureSpec(**sizes, parts=described, weights=tuple(weights))
    arrays = joined_arrays([part.parameters for part in parts], "part")
    header = replace(header, spec=spec, training={})
    mixture = Model(header, arrays, parts[0].label_counts, threads=parts[0].threads)
    if out is not None:
        mixture.save(out)
    return mixture


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


def _labelled(model: Model, valid: Any) -> tuple[Any, Any]:
    """Return features and labels of held-out rows."""
    files = [valid] if isinstance(valid, str | Path) else valid
    if isinstance(files, Sequence) and files and all(isinstance(f, str | Path) for f in files):
        valid = concatenate(list(read_rows(model, list(map(str, files)))))
    if isinstance(valid, Partition):
        return valid, valid.labels
    if hasattr(valid, "X") and hasattr(valid, "Y"):
        return valid.X, valid.Y
    if isinstance(valid, Sequence) and len(valid) == 2:
        return valid[0], valid[1]
    raise InputError("valid: give files, daskxml.Matrices(X, Y), or a pair (X, Y)")


def _chosen(models: Sequence[Model], X: Any, Y: Any) -> tuple[float, ...]:
    labels = models[0].spec.labels
    count = candidates(_KS[-1], labels)
    rankings = stacked([model.predict_top_k(X, count) for model in models])
    truth: Csr = label_csr(Y, rankings[0].shape[1], labels)
    return choose_weights(rankings, truth, get_kernels("cpu", models[0].threads))


def choose_weights(
    rankings: Rankings, labels: Csr, kernels: Kernels, ks: Sequence[int] = _KS
) -> tuple[float, ...]:
    """Return the weights that rank best on rows which no part was trained on.

    From equal weights on, some of one weight is given to another as long as the mean of P@k over
    ``ks`` grows.

    Parameters
    ----------
    rankings
        The candidates of each part for each row, see `stacked`.
    labels
        The rows' true labels.

    Examples
    --------
    >>> from daskxml.kernels import get_kernels
    >>> right, wrong = [[[7, 3]]], [[[5, 2]]]
    >>> ids, scores = np.array(right + wrong, np.int32), np.array([[[.4, 0]], [[.5, .1]]], "f")
    >>> truth = Csr(np.array([0, 1]), np.array([7], np.int32), None, 9)
    >>> first, second = choose_weights((ids, scores), truth, get_kernels("cpu", 1), ks=(1,))
    >>> first > second
    True
    """

    def quality(weights: Array) -> float:
        ids, _ = kernels.average_rankings(*rankings, weights.astype(np.float32), max(ks))
        result = metric_sums(ids, labels, np.ones(labels.columns), ks).result()
        return sum(result[f"P@{k}"] for k in ks) / len(ks)

    parts = rankings[0].shape[0]
    weights = np.full(parts, 1.0 / parts)
    best = quality(weights)
    for _ in range(_ROUNDS):
        before = best
        for giver, taker in permutations(range(parts), 2):
            for moved in _MOVED:
                tried = weights.copy()
                tried[giver] -= min(moved, weights[giver])
                tried[taker] += weights[giver] - tried[giver]
                if (reached := quality(tried)) > best:
                    weights, best = tried, reached
        if best == before:
            break
    return tuple(float(weight) for weight in weights)
