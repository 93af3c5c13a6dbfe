"""Weights of labels: what each of a row's own labels counts in the loss.

``balanced``
    In inverse proportion to the rows that a label has, so that each label counts as much as any.
``propensity``
    In proportion to the label's inverse propensity (Jain, Prabhu and Varma, KDD 2016), which is
    what a hit counts in PSP@k.

Both are scaled so that a label of a training row counts 1 on average: the learning rate need not be
changed. Weights that are given stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from daskxml.core.arrays import Array
from daskxml.core.errors import ConfigError

ClassWeight = str | Sequence[float] | Mapping[str, float]


def label_weights(
    class_weight: ClassWeight, counts: Array, inverse_propensity: Array, label_base: int = 0
) -> Array | None:
    """Return the weights of labels.

    Parameters
    ----------
    class_weight
        ``"none"``, ``"balanced"``, ``"propensity"``, a weight for each label, or weights by labels'
        ids as text, where the others have 1.
    counts, inverse_propensity
        ``(labels,)``: rows with each label, and see `daskxml.metrics.propensities`.
    label_base
        The first id.

    Returns
    -------
    ``(labels,)`` float32; None for ``"none"``.

    Raises
    ------
    ConfigError
        If there are too few or too many, or one is of a label that does not exist.

    Examples
    --------
    >>> label_weights("balanced", np.array([1, 3, 0]), np.ones(3))
    array([2.       , 0.6666667, 1.       ], dtype=float32)
    >>> label_weights({"2": 5.0}, np.array([1, 3, 1]), np.ones(3))
    array([1., 1., 5.], dtype=float32)
    """
    if class_weight == "none":
        return None
    labels = counts.shape[0]
    if isinstance(class_weight, Mapping):
        weights = np.ones(labels, np.float32)
        for name, weight in class_weight.items():
            weights[_column(name, labels, label_base)] = weight
        return weights
    if not isinstance(class_weight, str):
        if len(class_weight) != labels:
            raise ConfigError(
                f"training.class_weight has {len(class_weight):,} weights for {labels:,} labels: "
                "give one for each"
            )
        return np.array(class_weight, np.float32)
    raw = 1.0 / np.maximum(counts, 1) if class_weight == "balanced" else inverse_propensity
    weights = raw * (counts.sum() / max(float(counts @ raw), 1e-300))
    return np.where(counts > 0, weights, 1.0).astype(np.float32)


def _column(name: str, labels: int, label_base: int) -> int:
    """Return the column of a label's id."""
    column = int(name) - label_base if name.isdecimal() else -1
    if not 0 <= column < labels:
        raise ConfigError(
            f"training.class_weight: {name!r} is no label: give a name of data.label_names, or an "
            f"id from {label_base} to {labels - 1 + label_base}"
        )
    return column
