"""Trees without their smallest weights: most are small, and add little to any score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from daskxml.core.arrays import Array
from daskxml.models.trees.forest import count_trees

DROPS = (0.3, 0.2, 0.15, 0.1, 0.065, 0.04, 0.02, 0.01)  # that are tried
_RANKS = (1, 3, 5)


def smallest_kept(arrays: Mapping[str, Array], share: float) -> float:
    """Return the smallest weight that stays if the smaller ones hold a share of all squares.

    Parameters
    ----------
    arrays
        Of trees.
    share
        Of the sum of the weights' squares, in [0, 1): the smallest weights with no more of it go.

    Examples
    --------
    >>> arrays = {"tree0.order": np.arange(2), "tree0.weights": np.float32([0.9, -0.1, 0.2, 0.4])}
    >>> [round(smallest_kept(arrays, share), 3) for share in (0.0, 0.02, 0.06)]
    [0.1, 0.2, 0.4]
    """
    weights = [arrays[f"tree{tree}.weights"] for tree in range(count_trees(arrays))]
    sizes = np.sort(np.abs(np.concatenate([*weights, np.empty(0, np.float32)])))
    if not sizes.any():
        return 0.0
    sums = np.cumsum(np.square(sizes, dtype=np.float64))
    return float(sizes[np.searchsorted(sums, share * sums[-1], side="right")])


def pruned(arrays: Mapping[str, Array], smallest: float) -> dict[str, Array]:
    """Return the arrays of trees without the weights whose magnitude is below ``smallest``.

    Examples
    --------
    >>> tree = {"order": np.arange(2), "bias": np.zeros(2), "node_starts": np.array([0, 2]),
    ...         "features": np.array([3, 5]), "chunk_starts": np.array([0, 1, 3]),
    ...         "children": np.array([1, 0, 1]), "weights": np.array([0.1, 0.2, -0.9])}
    >>> small = pruned({f"tree0.{name}": array for name, array in tree.items()}, 0.15)
    >>> [small[f"tree0.{name}"].tolist() for name in ("features", "chunk_starts", "weights")]
    [[5], [0, 2], [0.2, -0.9]]
    """
    out = dict(arrays)
    for tree in range(count_trees(arrays)):
        names = ("node_starts", "features", "chunk_starts", "children", "weights")
        held = {name: arrays[f"tree{tree}.{name}"] for name in names}
        is_kept = np.abs(held["weights"]) >= smallest
        kept_before = np.concatenate([[0], np.cumsum(is_kept)])
        ends = kept_before[held["chunk_starts"]]  # of the chunks, counted in weights that are kept
        has_some = np.diff(ends) > 0
        chunks_before = np.concatenate([[0], np.cumsum(has_some)])
        small = {
            "node_starts": chunks_before[held["node_starts"]],
            "features": held["features"][has_some],
            "chunk_starts": np.concatenate([[0], ends[1:][has_some]]),
            "children": held["children"][is_kept],
            "weights": held["weights"][is_kept],
        }
        for name, array in small.items():
            out[f"tree{tree}.{name}"] = array.astype(held[name].dtype, copy=False)
    return out


def choose_drop(model: Any, X: Any, Y: Any = None, *, lost: float) -> float:
    """Return the largest ``drop`` of `DROPS` by which labels of rows get hardly worse; else 0.

    Parameters
    ----------
    model
        A `daskxml.Model` of label trees, or a mixture with some.
    X, Y
        Rows that it was not trained on, as for `Model.evaluate`.
    lost
        What each of P@1, P@3 and P@5 may lose on them.
    """

    def precisions(tried: Any) -> Array:
        found = tried.evaluate(X, Y, k=_RANKS)
        return np.array([found[f"P@{k}"] for k in _RANKS])

    least = precisions(model) - lost
    tried = ((drop, precisions(model.compress(drop=drop))) for drop in DROPS)
    return next((drop for drop, found in tried if (found >= least).all()), 0.0)
