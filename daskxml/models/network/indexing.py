"""The index of a network's labels: small clusters of alike output weights, and how many are probed.

Two labels are alike where their logits differ little: their distance is the root of the mean square
of that difference over the rows that are given, and balanced 2-means halves the labels by it, again
and again (`daskxml.models.trees.clustering`). A cluster is scored as a label with the mean weights
and bias of its own, and one standard deviation of its labels' logits is added to the bias: a
cluster may be worth looking into for one of its labels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse

from daskxml.core.arrays import Array
from daskxml.core.errors import ConfigError, InputError
from daskxml.data.matrices import feature_blocks
from daskxml.data.rows import to_scipy
from daskxml.kernels import get_kernels
from daskxml.kernels.label_index import LabelIndex
from daskxml.kernels.quantised import Quantised, quantise
from daskxml.models.kinds import MixtureSpec
from daskxml.models.network.label_index import cluster_tree, index_arrays, node_bounds
from daskxml.models.network.spec import ModelSpec
from daskxml.models.trained import Model
from daskxml.models.trees.clustering import label_vectors, order_labels

_MOST_ROWS = 2000  # by which clusters are made and their number is chosen
_CHUNK_FLOATS = 1 << 24


def index(model: Model, X: Any, *, recall: float = 0.99, k: int = 5) -> Model:
    """Return a network with an index, by which it ranks a row without looking at every label.

    Parameters
    ----------
    model
        A network with a hidden layer, compressed or not.
    X
        Rows like those that will be asked for, as for `Model.predict`, better not those of the
        training; their labels are not needed. Of more than 2,000, as many are taken, evenly spread.
    recall
        How many of the best ``k`` labels by all output weights are found on these rows, at least;
        in (0, 1]. As few clusters of labels are looked into as reach that.
    k
        Of whose labels; if more are asked for later, every label is looked at.

    Returns
    -------
    Model
        It is saved, loaded and used like any other; `Model.exact` looks at every label. Softmax
        probabilities are estimates: labels that are not looked at count as their cluster.

    Raises
    ------
    ConfigError
        If a value is out of its range, the model is no network with a hidden layer, or its weights
        are not finite.
    InputError
        If there are no rows, or they do not fit the model.

    Examples
    --------
    >>> from daskxml.models.network.spec import Layout, initial_parameters
    >>> from daskxml.models.store import ModelHeader
    >>> spec, rng = ModelSpec(features=30, labels=500, hidden=(8,)), np.random.default_rng(0)
    >>> weights = Layout(spec).views(initial_parameters(spec, seed=1))
    >>> plain = Model(ModelHeader(spec=spec, training_rows=9), weights, np.ones(500, np.int64))
    >>> X = rng.random((200, 30))
    >>> found, _ = index(plain, X, recall=0.9).predict_top_k(X)
    >>> recall_of(found, plain.predict_top_k(X)[0]) >= 0.9
    True
    """
    if not 0.0 < recall <= 1.0:
        raise ConfigError(f"recall = {recall!r}: must be above 0 and at most 1")
    spec, exact = check_indexable(model), model.exact
    if not 1 <= k <= spec.labels:
        raise ConfigError(f"k = {k}: must be from 1 to the number of labels, {spec.labels:,}")
    rows = _spread(X, spec.features)
    wanted, _ = exact.predict_top_k(rows, k)
    hidden = exact.last_hidden(rows)
    nodes = _clusters(exact, hidden, k)
    output = exact.parameters["output.weight"], exact.parameters["output.bias"]
    kernels = get_kernels("cpu", model.threads)

    def reached(tried: LabelIndex) -> float:
        scores, ids = np.empty(wanted.shape, np.float32), np.empty(wanted.shape, np.int32)
        kernels.rank_by_index(tried, hidden, *output, scores, ids, None)
        return recall_of(ids, wanted)

    chosen = _probes(nodes, reached, _groups_needed(nodes, hidden, wanted, recall), recall)
    return Model(
        model.header, exact.parameters | index_arrays(chosen), model.label_counts,
        threads=model.threads,
    )  # fmt: skip


def check_indexable(model: Model) -> ModelSpec:
    """Return the description of a network with a hidden layer and finite output weights.

    Raises
    ------
    ConfigError
        If the model is another one.
    """
    if isinstance(model.spec, MixtureSpec):
        raise ConfigError("an index is of one network: make those of the parts, then mix them")
    if not isinstance(model.spec, ModelSpec):
        raise ConfigError("label trees need no index: they look at a few labels by their beam")
    if not model.spec.hidden:
        raise ConfigError("an index needs a network with a hidden layer")
    for name in ("output.weight", "output.bias"):
        array = model.parameters[name]
        if not np.isfinite(array.scale if isinstance(array, Quantised) else array).all():
            raise ConfigError(f"{name} of the model is not finite: train it anew")
    return model.spec


def recall_of(ids: Array, wanted: Array) -> float:
    """Return the share of wanted labels ``(rows, k)`` that each row's ids hold.

    Examples
    --------
    >>> recall_of(np.array([[3, 1], [4, -1]]), np.array([[1, 2], [4, 5]]))
    0.5
    """
    return float((wanted[:, :, None] == ids[:, None, :]).any(axis=2).mean())


def _spread(X: Any, features: int) -> Any:
    """Return at most `_MOST_ROWS` of the rows, evenly spread over all."""
    blocks = [to_scipy(block) for block in feature_blocks(X, features)]
    rows = sum(block.shape[0] for block in blocks)
    if rows == 0:
        raise InputError("no rows: give rows like those that will be asked for")
    taken = np.linspace(0, rows - 1, min(rows, _MOST_ROWS)).astype(np.int64)
    return scipy.sparse.vstack(blocks, format="csr")[taken]


def _clusters(model: Model, hidden: Array, k: int) -> LabelIndex:
    """Return the clusters and groups of all labels; all of them would be looked into."""
    weight, bias = np.asarray(model.parameters["output.weight"]), model.parameters["output.bias"]
    ones = np.ones((hidden.shape[0], 1))
    variances, directions = np.linalg.eigh(_second_moments(np.hstack([hidden, ones])))
    root = (directions * np.sqrt(variances.clip(0.0))).astype(np.float32)
    vectors = weight @ root[:-1] + bias[:, None] * root[-1]  # distances are those of logits
    labels = bias.shape[0]
    order = order_labels(label_vectors(vectors), cluster_tree(labels), seed=0)
    bounds = node_bounds(labels)
    groups, clusters = (_nodes(weight, bias, vectors, order, starts) for starts in bounds)
    return LabelIndex(
        order=order, starts=bounds[1],
        groups=groups[0], group_bias=groups[1], group_labels=groups[2],
        clusters=clusters[0], cluster_bias=clusters[1], cluster_labels=clusters[2],
        probed_groups=len(groups[0]), probed_clusters=len(clusters[0]), k=k,
    )  # fmt: skip


def _second_moments(rows: Array) -> Array:
    return rows.T @ rows / rows.shape[0]


def _nodes(
    weight: Array, bias: Array, vectors: Array, order: Array, starts: Array
) -> tuple[Quantised, Array, Array]:
    """Return weights and bias of nodes that begin at ``starts``, and how many labels each is.

    Normally distributed logits with the standard deviation s have exponentials whose mean is
    exp(s * s / 2) times that of their mean; the score of a node is s above that.
    """
    counts = np.diff(starts)
    means, squares = _means(vectors, order, starts), _means(vectors, order, starts, squared=True)
    spread = np.sqrt((squares - np.square(means)).sum(axis=1).clip(0.0))
    shift = np.add.reduceat(bias[order].astype(np.float64), starts[:-1]) / counts + spread
    labels = counts * np.exp(np.minimum(spread * spread / 2 - spread, 0.0))
    weights = quantise(_means(weight, order, starts), 8)
    return weights, shift.astype(np.float32), labels.astype(np.float32)


def _means(rows: Array, order: Array, starts: Array, *, squared: bool = False) -> Array:
    """Return the means of the rows of every node, or of their squares, float32."""
    out = np.empty((starts.size - 1, rows.shape[1]), np.float32)
    nodes = max(1, _CHUNK_FLOATS // max(1, rows.shape[1] * int(np.diff(starts).max())))
    for first in range(0, len(out), nodes):
        cut = starts[first : first + nodes + 1]
        part = rows[order[cut[0] : cut[-1]]].astype(np.float64)
        part = np.square(part) if squared else part
        out[first : first + nodes] = (
            np.add.reduceat(part, cut[:-1] - cut[0]) / np.diff(cut)[:, None]
        )
    return out


def _groups_needed(nodes: LabelIndex, hidden: Array, wanted: Array, recall: float) -> int:
    """Return how many groups of a row hold its best labels, but for half of those left out."""
    group_of = np.empty(nodes.order.size, np.int64)
    bounds, _ = node_bounds(nodes.order.size)
    group_of[nodes.order] = np.repeat(np.arange(len(nodes.groups)), np.diff(bounds))
    weight, ranks = np.asarray(nodes.groups).T, []
    for first in range(0, len(hidden), 64):
        scores = hidden[first : first + 64] @ weight + nodes.group_bias
        own = np.take_along_axis(scores, group_of[wanted[first : first + 64]], axis=1)
        ranks += [(scores > own[:, place, None]).sum(axis=1) for place in range(own.shape[1])]
    found = np.sort(np.concatenate(ranks))
    return int(found[int(np.ceil((0.5 + 0.5 * recall) * found.size)) - 1]) + 1


def _probes(nodes: LabelIndex, reached: Any, groups: int, recall: float) -> LabelIndex:
    """Return the nodes with as few looked into as reach the recall, given how many groups are."""
    fan = len(nodes.clusters) // len(nodes.groups)
    smallest = int(np.diff(nodes.starts).min())
    least = -(-nodes.k // smallest)  # clusters, so that there are labels enough
    while True:
        groups = min(max(groups, -(-least // fan)), len(nodes.groups))
        tried = replace(nodes, probed_groups=groups, probed_clusters=groups * fan)
        if groups == len(nodes.groups) or reached(tried) >= recall:
            break
        groups *= 2  # 8 bits a number rank some groups otherwise than 32
    low, high = least - 1, groups * fan  # too few, maybe, and enough
    while high - low > 1:
        middle = (low + high) // 2
        if reached(replace(tried, probed_clusters=middle)) >= recall:
            high = middle
        else:
            low = middle
    return replace(tried, probed_clusters=high)
