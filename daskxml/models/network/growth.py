"""Going on from a trained model: its weights, and new ones for features and labels it had not."""

from __future__ import annotations

from daskxml.core.arrays import Array
from daskxml.core.errors import ModelError
from daskxml.models.network.spec import Layout, ModelSpec, initial_parameters
from daskxml.models.trained import Model


def grown_parameters(spec: ModelSpec, seed: int, model: Model) -> Array:
    """Return flat parameters that are the model's, and the seed's where it has none.

    Features and labels keep their ids; new ones follow. So the scores of old labels are unchanged
    for rows of old features.

    Raises
    ------
    ModelError
        If the model is no network, its hidden layers differ, or it has more features or labels
        than ``spec``.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.models.store import ModelHeader
    >>> small, large = (ModelSpec(features=3, labels=n, hidden=()) for n in (2, 4))
    >>> weights = {"output.weight": np.ones((2, 3), np.float32),
    ...            "output.bias": np.ones(2, np.float32)}
    >>> model = Model(ModelHeader(spec=small, training_rows=9), weights, np.array([4, 6]))
    >>> flat = grown_parameters(large, 7, model)
    >>> Layout(large).views(flat)["output.bias"]
    array([1., 1., 0., 0.], dtype=float32)
    """
    before = model.spec
    if not isinstance(before, ModelSpec):
        raise ModelError(
            "the model to continue from is no network: "
            "label trees and mixtures are fitted from scratch"
        )
    if (before.hidden, before.activation) != (spec.hidden, spec.activation):
        raise ModelError(
            f"the model to continue from has hidden layers {list(before.hidden)} "
            f"({before.activation}), the run {list(spec.hidden)} ({spec.activation}): "
            "leave them as they were"
        )
    for kind in ("features", "labels"):
        known, found = getattr(before, kind), getattr(spec, kind)
        if known > found:
            raise ModelError(
                f"the model to continue from has {known:,} {kind}, the rows {found:,}: give rows "
                f"with all {kind} that it was trained on"
            )
    flat = initial_parameters(spec, seed)
    for name, view in Layout(spec).views(flat).items():
        old = model.parameters[name]
        view[tuple(slice(0, length) for length in old.shape)] = old
    return flat
