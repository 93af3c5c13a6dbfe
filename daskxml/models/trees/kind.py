"""Label trees as a kind of model; what loads compilers is imported when used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from daskxml.core.arrays import Array, Csr
from daskxml.kernels import Kernels
from daskxml.models.protocol import Arrays, Ranker, TrainedKind
from daskxml.models.trees.paths import label_path, path_contributions, path_strengths
from daskxml.models.trees.spec import TreeSpec


class Trees(TrainedKind[TreeSpec]):
    """See `daskxml.models.protocol.TrainedKind`."""

    title = "label trees"
    Spec = TreeSpec
    strategy: str | None = None
    needs_all_rows = True
    scales_weights = False
    row_s: float | None = 2e-5  # to descend by beam

    def spec(self, values: Mapping[str, Any]) -> TreeSpec:
        """Return stored trees' description."""
        return TreeSpec.from_dict(values)

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
        trees = len(list(_trees(arrays)))
        return f"{spec.features} -> {spec.labels}, {trees} label tree{'s' * (trees > 1)}"

    def smaller(
        self, spec: TreeSpec, arrays: Arrays, bits: int, drop: float
    ) -> tuple[TreeSpec, dict[str, Any]]:
        """Drop the smallest weights."""
        from daskxml.models.trees.pruning import pruned, smallest_kept

        smallest = smallest_kept(arrays, drop)
        return replace(spec, smallest_weight=smallest), pruned(arrays, smallest)

    def explain(
        self, spec: TreeSpec, arrays: Arrays, row: Csr, label: int, *, probability: bool = False
    ) -> Array:
        """Return exact integrated gradients of the probability; see `daskxml.models.trees.paths`.

        They add up to it, less that of an empty row, whether or not a beam holds the label.
        """
        from daskxml.models.trees.nodes import powered

        trees = []
        for tree, own in enumerate(_trees(arrays)):
            values = np.asarray(powered(row, spec.power_of(tree)).data, np.float64)
            path = label_path(spec, own, label)
            trees.append(path_contributions(path, row.indices, values)[0])
        return np.asarray(np.mean(trees, axis=0))

    def strengths(
        self, spec: TreeSpec, arrays: Arrays, label: int, *, probability: bool = False
    ) -> Array:
        """Return what each feature alone adds to the probability."""
        paths = (label_path(spec, own, label) for own in _trees(arrays))
        return np.asarray(np.mean([path_strengths(path, spec.features) for path in paths], axis=0))

    def needs(self, config: Any) -> Iterator[tuple[bool, str]]:
        """Yield what trees need."""
        tree, epochs = "[model] kind = 'trees':", config.training.epochs
        yield (
            not (epochs >= 1 and epochs == int(epochs)),
            f"{tree} give [training] epochs, the number of trees, as a whole number",
        )
        yield bool(config.cluster.pools), f"{tree} takes no pools: leave [cluster] pools at 0"
        yield (
            config.data.residency == "shard",
            f"{tree} needs all rows on every worker: leave [data] residency at 'auto'",
        )
        yield (
            config.evaluation.training_loss,
            f"{tree} has no loss over all rows: leave [evaluation] training_loss out",
        )
        yield config.combine.overlap, f"{tree} merges nothing: leave [combine] overlap out"

    def figures(self, spec: TreeSpec) -> dict[str, Any]:
        """Return how nodes are fitted."""
        return {"fit": asdict(spec.fit)}

    def work(self, row: Mapping[str, Any]) -> str:
        """Return the number of trees."""
        return f"{row['epoch']:.0f} trees"


def _trees(arrays: Arrays) -> Iterator[dict[str, Array]]:
    """Yield the arrays of each tree by the names of `ARRAYS`."""
    from daskxml.models.trees.forest import ARRAYS, count_trees

    for tree in range(count_trees(arrays)):
        yield {name: arrays[f"tree{tree}.{name}"] for name in ARRAYS}
