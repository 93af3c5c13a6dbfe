"""A label's path through a tree, and what each feature of a row adds to its probability.

The logarithm of the probability is the sum of -max(0, 1 - z)^3 over the nodes of the path, each
with a linear score *z*. From the empty row to the row on a straight line, each *z* changes by what
its weights times the values give: so integrated gradients (Sundararajan, Taly and Yan, "Axiomatic
attribution for deep networks", ICML 2017) need no integration here, and add up exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from daskxml.core.arrays import Array
from daskxml.models.trees.shape import TreeShape
from daskxml.models.trees.spec import TreeSpec


@dataclass(frozen=True)
class Step:
    """One node's score for the child on a path.

    Attributes
    ----------
    bias
        Of the score.
    features, weights
        ``(entries,)``, ascending features: the score's weights, float64.
    """

    bias: float
    features: Array
    weights: Array


def label_path(spec: TreeSpec, arrays: Mapping[str, Array], label: int) -> list[Step]:
    """Return the scores on the path to a label, from the root down.

    ``arrays`` are those of one tree, by the names of `daskxml.models.trees.forest.ARRAYS`.
    """
    shape = TreeShape.of(spec)
    position = int(np.flatnonzero(arrays["order"] == label)[0])
    nodes_above, children_above, steps = 0, 0, []
    for level in range(shape.levels):
        node, below = (
            int(np.searchsorted(shape.bounds[depth], position, side="right")) - 1
            for depth in (level, level + 1)
        )
        child = below - int(shape.child_starts(level)[node])
        steps.append(_step(arrays, nodes_above + node, child, children_above + below))
        nodes_above += shape.bounds[level].shape[0] - 1
        children_above += shape.bounds[level + 1].shape[0] - 1
    return steps


def _step(arrays: Mapping[str, Array], node: int, child: int, place: int) -> Step:
    chunks = slice(*arrays["node_starts"][node : node + 2])
    starts = arrays["chunk_starts"][chunks.start : chunks.stop + 1]
    entries = slice(starts[0], starts[-1])
    is_own = arrays["children"][entries] == child
    features = np.repeat(arrays["features"][chunks], np.diff(starts))[is_own]
    weights = arrays["weights"][entries][is_own].astype(np.float64)
    return Step(float(arrays["bias"][place]), features, weights)


def path_contributions(steps: list[Step], ids: Array, values: Array) -> tuple[Array, float]:
    """Return what each feature of a row adds to a label's probability, and that of an empty row.

    They add up to the probability of the row.

    Parameters
    ----------
    steps
        Of `label_path`.
    ids, values
        The row: ``(nonzeros,)``, ascending ids.

    Examples
    --------
    >>> steps = [Step(-1.0, np.array([2, 5]), np.array([0.5, 1.5]))]
    >>> added, empty = path_contributions(steps, np.array([2, 3, 5]), np.array([1.0, 1.0, 1.0]))
    >>> added, float(empty + added.sum())
    (array([0.24991613, 0.        , 0.7497484 ]), 1.0)
    """
    added, log_empty, log_full = np.zeros(len(ids)), 0.0, 0.0
    for step in steps:
        places: Array = np.searchsorted(ids, step.features)
        is_there = np.concatenate([ids, [-1]])[places] == step.features
        places, terms = places[is_there], step.weights[is_there] * values[places[is_there]]
        change = float(terms.sum())
        before, after = _log_share(step.bias), _log_share(step.bias + change)
        steep = 3.0 * max(0.0, 1.0 - step.bias) ** 2
        slope = (after - before) / change if abs(change) > 1e-9 else steep
        np.add.at(added, places, slope * terms)
        log_empty, log_full = log_empty + float(before), log_full + float(after)
    empty, full, gained = np.exp(log_empty), np.exp(log_full), log_full - log_empty
    return added * ((full - empty) / gained if abs(gained) > 1e-9 else full), float(empty)


def path_strengths(steps: list[Step], features: int) -> Array:
    """Return what each feature, with the value 1, adds to the probability of an empty row.

    Returns
    -------
    ``(features,)`` float64.
    """
    gained, log_empty = np.zeros(features), 0.0
    for step in steps:
        before = float(_log_share(step.bias))
        gained[step.features] += _log_share(step.bias + step.weights) - before
        log_empty += before
    return np.exp(log_empty) * np.expm1(gained)


def _log_share(scores: Array | float) -> Array:
    """Return what scores add to the logarithm of a probability."""
    return -(np.maximum(0.0, 1.0 - scores) ** 3)
