"""An index of a network's labels as arrays beside its parameters: ``index.order`` and others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from daskxml.core.arrays import Array
from daskxml.kernels.label_index import LabelIndex
from daskxml.kernels.quantised import Quantised
from daskxml.models.trees.shape import TreeShape
from daskxml.models.trees.spec import TreeSpec

CLUSTER_LABELS = 4  # most of them: smaller clusters say more about their labels than larger ones
_GROUP_BITS = 3  # of the number of clusters in a group
_PREFIX = "index."
_PROBES = ("probed_groups", "probed_clusters", "k")  # the numbers in ``index.probes``


def cluster_tree(labels: int) -> TreeSpec:
    """Return the shape of the tree whose last nodes are clusters."""
    return TreeSpec(features=1, labels=labels, leaf_labels=CLUSTER_LABELS)


def node_bounds(labels: int) -> tuple[Array, Array]:
    """Return where groups and where clusters begin among the labels in their order.

    Examples
    --------
    >>> groups, clusters = node_bounds(100)
    >>> groups.tolist(), clusters.size
    ([0, 25, 50, 75, 100], 33)
    """
    clusters = TreeShape.of(cluster_tree(labels)).bounds[-2]
    fan = min(1 << _GROUP_BITS, clusters.size - 1)
    return clusters[::fan], clusters


def index_arrays(index: LabelIndex) -> dict[str, Any]:
    """Return an index as arrays of a model."""
    names = [field.name for field in fields(index) if field.name not in ("starts", *_PROBES)]
    probes = np.array([getattr(index, name) for name in _PROBES], np.int64)
    return {f"{_PREFIX}{name}": getattr(index, name) for name in names} | {
        f"{_PREFIX}probes": probes
    }


def index_of(parameters: Mapping[str, Any]) -> LabelIndex | None:
    """Return the index among a network's arrays, if it has one."""
    found = {n.removeprefix(_PREFIX): a for n, a in parameters.items() if n.startswith(_PREFIX)}
    if not found:
        return None
    found |= zip(_PROBES, map(int, found.pop("probes")), strict=True)
    return LabelIndex(starts=node_bounds(found["order"].size)[1], **found)


def without_index(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a network's arrays but those of an index.

    Examples
    --------
    >>> without_index({"output.bias": 1, "index.order": 2, "part0.index.order": 3})
    {'output.bias': 1}
    """
    return {name: array for name, array in parameters.items() if f".{_PREFIX}" not in f".{name}"}


def index_problem(parameters: Mapping[str, Any], labels: int, units: int) -> str | None:
    """Return what is wrong with the index among a network's arrays, if it has one and it is."""
    found = {n: a for n, a in parameters.items() if n.startswith(_PREFIX)}
    if not found:
        return None
    groups, clusters = (bounds.size - 1 for bounds in node_bounds(labels))
    wanted: dict[str, tuple[Any, tuple[int, ...], str]] = {
        "order": (np.ndarray, (labels,), "int32"),
        "groups": (Quantised, (groups, units), "float32"),
        "group_bias": (np.ndarray, (groups,), "float32"),
        "group_labels": (np.ndarray, (groups,), "float32"),
        "clusters": (Quantised, (clusters, units), "float32"),
        "cluster_bias": (np.ndarray, (clusters,), "float32"),
        "cluster_labels": (np.ndarray, (clusters,), "float32"),
        "probes": (np.ndarray, (len(_PROBES),), "int64"),
    }
    for name in sorted({f"{_PREFIX}{name}" for name in wanted} ^ found.keys()):
        return f"array {name!r} is {'surplus' if name in found else 'missing'}"
    for name, (kind, shape, dtype) in wanted.items():
        array = found[f"{_PREFIX}{name}"]
        if not isinstance(array, kind) or (array.shape, str(array.dtype)) != (shape, dtype):
            return f"array '{_PREFIX}{name}' is not {dtype} of the shape {shape}"
    order, probes = found[f"{_PREFIX}order"], found[f"{_PREFIX}probes"]
    if not np.array_equal(np.sort(order), np.arange(labels)):
        return f"'{_PREFIX}order' does not hold every label once"
    if not ((probes > 0).all() and probes[0] <= groups and probes[1] <= clusters):
        return (
            f"'{_PREFIX}probes' are {probes.tolist()} of {groups:,} groups, {clusters:,} clusters"
        )
    return None
