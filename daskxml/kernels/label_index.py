"""Clusters of labels, by which a row's best labels are found without looking at every label."""

from __future__ import annotations

from dataclasses import dataclass

from daskxml.core.arrays import Array
from daskxml.kernels.quantised import Quantised


@dataclass(frozen=True, slots=True)
class LabelIndex:
    """Labels whose output weights are alike, in small clusters, and the clusters in groups.

    A row's groups are scored as if they were labels, then the clusters of the best groups, then the
    labels of the best clusters.

    Attributes
    ----------
    order
        ``(labels,)`` int32: the labels, cluster by cluster.
    starts
        ``(clusters + 1,)`` int64: where each cluster begins in ``order``.
    groups, group_bias
        ``(groups, units)`` of 8 bits a number and ``(groups,)`` float32: how each is scored. A
        group is ``clusters // groups`` clusters in their order.
    group_labels
        ``(groups,)`` float32: for how many labels of its own score each counts in a softmax.
    clusters, cluster_bias, cluster_labels
        The same of clusters.
    probed_groups, probed_clusters
        How many of them, at least, are looked into.
    k
        Up to how many labels of a row are found well enough.
    """

    order: Array
    starts: Array
    groups: Quantised
    group_bias: Array
    group_labels: Array
    clusters: Quantised
    cluster_bias: Array
    cluster_labels: Array
    probed_groups: int
    probed_clusters: int
    k: int
