"""One model of several trained ones, with weights chosen on held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from daskxml.core.arrays import Csr, Partition
from daskxml.core.errors import ConfigError, InputError
from daskxml.data.rows import concatenate, label_csr
from daskxml.kernels import get_kernels
from daskxml.models.mix.kind import MixtureSpec, joined_arrays
from daskxml.models.mix.mixture import choose_weights, stacked
from daskxml.models.rankings import candidates
from daskxml.models.rows import read_rows
from daskxml.models.store import ModelHeader
from daskxml.models.trained import Model

_SAME = (
    "normalize", "feature_base", "label_base", "feature_names", "label_names", "vectorizer",
)  # fmt: skip
_MOST_RANKED = 5  # the metrics by which weights are chosen are P@1, P@3 and P@5


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
    >>> parts = [train_here(name, train=rows, overrides=["training.epochs=1"]).model
    ...          for name in ("tree", "adaptive-sgd")]
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
    arrays = joined_arrays([part.parameters for part in parts])
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
    if isinstance(valid, str | Path):
        valid = [valid]
    if (
        isinstance(valid, Sequence)
        and valid
        and all(isinstance(each, str | Path) for each in valid)
    ):
        valid = concatenate(list(read_rows(model, [str(path) for path in valid])))
    if isinstance(valid, Partition):
        return valid, valid.labels
    if hasattr(valid, "X") and hasattr(valid, "Y"):
        return valid.X, valid.Y
    if isinstance(valid, Sequence) and len(valid) == 2:
        return valid[0], valid[1]
    raise InputError("valid: give files, daskxml.Matrices(X, Y), or a pair (X, Y)")


def _chosen(models: Sequence[Model], X: Any, Y: Any) -> tuple[float, ...]:
    labels = models[0].spec.labels
    count = candidates(_MOST_RANKED, labels)
    rankings = stacked([model.predict_top_k(X, count) for model in models])
    truth: Csr = label_csr(Y, rankings[0].shape[1], labels)
    return choose_weights(rankings, truth, get_kernels("cpu", models[0].threads))
