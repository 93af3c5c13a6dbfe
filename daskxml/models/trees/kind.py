"""Label trees as a kind of model; what loads compilers is imported when used.

The logarithm of a label's probability is the sum of -max(0, 1 - z)^3 over the nodes of its path
through a tree, each with a linear score *z*. From the empty row to the row on a straight line, each
*z* changes by what its weights times the values give: so integrated gradients (Sundararajan, Taly
and Yan, "Axiomatic attribution for deep networks", ICML 2017) need no integration here, and add up
exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from daskxml.core.arrays import Array, Csr, Partition
from daskxml.core.text import counted
from daskxml.kernels import Kernels
from daskxml.models.protocol import Arrays, FittedKind, Limit, Ranker, joined_arrays, split_arrays
from daskxml.models.trees.spec import AUTO, TreeShape, TreeSpec

if TYPE_CHECKING:
    from daskxml.models.fitting import FitSettings, Slot
    from daskxml.models.trees.fitting import TreeFitter


class Trees(FittedKind[TreeSpec]):
    """See `daskxml.models.protocol.FittedKind`."""

    title, member = "label trees", "tree"
    Spec = TreeSpec
    alike = ("kind", "features", "labels", "powers", "leaf_labels", "branching")
    kept = ("value_power",)

    def problem(self, spec: TreeSpec, arrays: Arrays) -> str | None:
        """Check every index, as kernels trust them."""
        from daskxml.models.trees.forest import tree_problem

        return tree_problem(spec, arrays) or None

    def ranker(self, spec: TreeSpec, arrays: Arrays, kernels: Kernels) -> Ranker:
        """Return the trees ready to rank."""
        from daskxml.models.trees.forest import Forest

        return Forest(spec, arrays, kernels)

    def describe(self, spec: TreeSpec, arrays: Arrays) -> str:
        """Return how many trees there are."""
        from daskxml.models.trees.forest import count_trees

        return f"{spec.features} -> {spec.labels}, {counted(count_trees(arrays), 'label tree')}"

    def smaller(
        self, spec: TreeSpec, arrays: Arrays, bits: int, drop: float
    ) -> tuple[TreeSpec, dict[str, Any]]:
        """Drop the smallest weights."""
        from daskxml.models.trees.forest import pruned, smallest_kept

        smallest = smallest_kept(arrays, drop)
        return replace(spec, smallest_weight=smallest), pruned(arrays, smallest)

    def extended(
        self, spec: TreeSpec, arrays: Arrays, part: Partition, counts: Array, kernels: Kernels
    ) -> tuple[TreeSpec, dict[str, Any]]:
        """Put the new labels to leaves that they resemble."""
        from daskxml.models.trees.extending import extend_tree
        from daskxml.models.trees.search import COSTS, FIRST

        cost = COSTS[FIRST] if spec.cost == AUTO else spec.cost  # of versions that stored none
        wider = replace(spec, labels=part.labels.columns, cost=cost)
        given = {"part": part, "counts": counts, "kernels": kernels}
        trees = enumerate(split_arrays(arrays, "tree"))
        return wider, joined_arrays([extend_tree(wider, *each, **given) for each in trees], "tree")

    def explain(self, spec: TreeSpec, arrays: Arrays, row: Csr, label: int) -> Array:
        """Return exact integrated gradients of the probability; see the head of this module.

        They add up to it, less that of an empty row, whether or not a beam holds the label.
        """
        from daskxml.models.trees.nodes import powered

        trees = []
        for tree, own in enumerate(split_arrays(arrays, "tree")):
            values = np.asarray(powered(row, spec.power_of(tree)).data, np.float64)
            path = label_path(spec, own, label)
            trees.append(path_contributions(path, row.indices, values)[0])
        return np.asarray(np.mean(trees, axis=0))

    def limits(self, config: Any) -> Iterator[Limit]:
        """Yield what trees need."""
        for key in ("epochs", "megabatches"):
            yield Limit(f"training.{key}", (0,), "label trees have none: give [training] trees")
        if not config.training.trees:
            yield Limit("training.trees", (), "must be at least 1 for label trees")
        yield from super().limits(config)

    def figures(self, spec: TreeSpec) -> dict[str, Any]:
        """Return how nodes are fitted."""
        return {"fit": {name: getattr(spec, name) for name in ("cost", "passes", "value_power")}}

    def work(self, row: Mapping[str, Any]) -> str:
        """Return the number of trees."""
        return counted(round(row["epoch"]), "tree")

    def prepare(
        self, parts: Sequence[Any], counts: Any, spec: TreeSpec, seed: int,
        blocks: Sequence[tuple[Any, int, int]], submit: Callable[..., Any], threads: int = 1,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Return the description with the cost chosen, and the labels' vectors."""
        from daskxml.models.trees.search import prepare_trees

        return prepare_trees(parts, counts, spec, seed, blocks, submit, threads)

    def fitter(self, settings: FitSettings, slot: Slot) -> TreeFitter:
        """Return what fits nodes."""
        from daskxml.models.trees.fitting import TreeFitter

        return TreeFitter(settings, slot)


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
    shape = TreeShape.of(spec, arrays.get("leaf_starts"))
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


def _log_share(scores: Array | float) -> Array:
    """Return what scores add to the logarithm of a probability."""
    return -(np.maximum(0.0, 1.0 - scores) ** 3)
