"""Networks as a kind of model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from daskxml.core.arrays import Array, Csr
from daskxml.core.errors import ConfigError
from daskxml.kernels import Kernels
from daskxml.kernels.quantised import Quantised, quantise
from daskxml.models.network.ranker import NetworkRanker
from daskxml.models.network.spec import Layout, ModelSpec
from daskxml.models.protocol import Arrays, TrainedKind, difference

QUANTISABLE: Final = ("hidden0.weight", "output.weight")  # nearly all weights


class Network(TrainedKind[ModelSpec]):
    """See `daskxml.models.protocol.TrainedKind`."""

    title = "networks"
    Spec = ModelSpec
    scores_all = True
    strategy: str | None = "adaptive-sgd"
    needs_all_rows = False
    scales_weights = True
    row_s: float | None = None

    def spec(self, values: Mapping[str, Any]) -> ModelSpec:
        """Return a stored network's description."""
        return ModelSpec.from_dict(values)

    def problem(self, spec: ModelSpec, arrays: Arrays) -> str | None:
        """Compare shapes and dtypes; the large matrices may be `Quantised`."""
        for name, array in arrays.items():
            if isinstance(array, Quantised) and name not in QUANTISABLE:
                return f"array {name!r} is quantised, which only {' and '.join(QUANTISABLE)} may be"
        slots = Layout(spec).slots.items()
        return difference({name: (slot.shape, "float32") for name, slot in slots}, arrays)

    def ranker(self, spec: ModelSpec, arrays: Arrays, kernels: Kernels) -> NetworkRanker:
        """Return the network ready to rank."""
        return NetworkRanker(spec, arrays, kernels)

    def describe(self, spec: ModelSpec, arrays: Arrays) -> str:
        """Return the widths of its layers, and the loss."""
        return f"{' -> '.join(map(str, spec.widths))}, {spec.loss}"

    def bound(self, spec: ModelSpec, scores: Array) -> Any:
        """Return one half; under softmax half of a row's best, as a row's targets are alike."""
        return 0.5 * scores[:, :1] if spec.loss == "softmax" else 0.5

    def smaller(
        self, spec: ModelSpec, arrays: Arrays, bits: int, drop: float
    ) -> tuple[ModelSpec, dict[str, Any]]:
        """Store the large matrices in multiples of a scale of each row.

        So the rows of rare features and labels, whose weights are small, are no less exact than
        the others.
        """
        small = dict(arrays)
        for name in QUANTISABLE:
            if isinstance(small.get(name), Quantised):
                raise ConfigError("the model is compressed already: give the one it was made from")
            if name in small:
                if not np.isfinite(small[name]).all():
                    raise ConfigError(f"{name} of the model is not finite: train it again")
                small[name] = quantise(small[name], bits)
        return spec, small

    def explain(
        self, spec: ModelSpec, arrays: Arrays, row: Csr, label: int, *, probability: bool = False
    ) -> Array:
        """Return values times derivatives of the logit, or integrated ones of the probability."""
        from daskxml.models.network.explanation import Explained  # which loads SciPy's functions

        network = Explained(spec, arrays)
        if probability:
            return network.added_probability(row, label)
        return network.added_logit(row, label)

    def strengths(
        self, spec: ModelSpec, arrays: Arrays, label: int, *, probability: bool = False
    ) -> Array:
        """Return what each feature alone adds to the logit or the probability."""
        from daskxml.models.network.explanation import Explained

        network = Explained(spec, arrays)
        if probability:
            return network.probability_strengths(label)
        return network.logit_strengths(label)

    def needs(self, config: Any) -> Iterator[tuple[bool, str]]:
        """Yield nothing: what networks need, their strategy says."""
        return iter(())

    def figures(self, spec: ModelSpec) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def work(self, row: Mapping[str, Any]) -> str:
        """Return rows and epochs."""
        return f"{row['rows']:,} rows, {row['epoch']:.2f} epochs"
