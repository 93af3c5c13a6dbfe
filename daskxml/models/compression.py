"""Smaller models: a network's large matrices in 8 or 16 bits a weight, trees without small weights.

The first and the output layer of a network hold nearly all of its weights. Each of their rows is
stored in multiples of its own scale (`daskxml.kernels.quantised`), so that the rows of rare
features and labels, whose weights are small, are no less exact than the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from daskxml.core.arrays import Array
from daskxml.core.errors import ConfigError
from daskxml.kernels.quantised import BITS, Quantised, quantise
from daskxml.models.kinds import AnySpec
from daskxml.models.mix.mixture import joined_arrays, part_arrays
from daskxml.models.mix.spec import MixtureSpec
from daskxml.models.store import QUANTISABLE
from daskxml.models.trained import Model
from daskxml.models.trees.pruning import pruned, smallest_kept
from daskxml.models.trees.spec import TreeSpec

DROPS = (0.3, 0.2, 0.15, 0.1, 0.065, 0.04, 0.02, 0.01)  # that are tried
DROP = 0.065  # of the squares of the weights of trees: half of the weights and more
_RANKS = (1, 3, 5)


def compress(model: Model, *, bits: int = 16, drop: float = DROP) -> Model:
    """Return a smaller model that ranks nearly the same labels.

    Parameters
    ----------
    model
        A network, label trees, or a mixture of both.
    bits
        Of a weight in the first and the output layer of a network, 8 or 16 instead of 32. The
        labels of one row are found by 8 bits either way.
    drop
        The smallest weights of label trees are dropped: those that hold no more than this share of
        the sum of all their squares. In [0, 1).

    Returns
    -------
    Model
        It is saved, loaded and used like any other.

    Raises
    ------
    ConfigError
        If a value is out of its range, or the network is compressed already or has weights that
        are not finite.

    Examples
    --------
    >>> from daskxml.models.network.spec import ModelSpec
    >>> from daskxml.models.store import ModelHeader
    >>> weights = {"output.weight": np.eye(2, 30, dtype=np.float32),
    ...            "output.bias": np.zeros(2, np.float32)}
    >>> header = ModelHeader(spec=ModelSpec(features=30, labels=2, hidden=()), training_rows=9)
    >>> small = compress(Model(header, weights, np.array([4, 6])), bits=8)
    >>> weights["output.weight"].nbytes, small.parameters["output.weight"].nbytes
    (240, 68)
    """
    if bits not in BITS:
        raise ConfigError(f"bits = {bits!r}: must be 8 or 16")
    if not 0.0 <= drop < 1.0:
        raise ConfigError(f"drop = {drop!r}: must be in [0, 1)")
    spec, arrays = model.spec, model.parameters
    if isinstance(spec, MixtureSpec):
        found = [
            _smaller(part, part_arrays(arrays, number), bits, drop)
            for number, part in enumerate(spec.parts)
        ]
        small_spec: Any = replace(spec, parts=tuple(part for part, _ in found))
        small = joined_arrays([part for _, part in found])
    else:
        small_spec, small = _smaller(spec, arrays, bits, drop)
    header = replace(model.header, spec=small_spec)
    return Model(header, small, model.label_counts, threads=model.threads)


def choose_drop(model: Model, X: Any, Y: Any = None, *, lost: float) -> float:
    """Return the largest ``drop`` of `DROPS` by which labels of rows get hardly worse; else 0.

    Parameters
    ----------
    model
        Label trees, or a mixture with some.
    X, Y
        Rows that it was not trained on, as for `Model.evaluate`.
    lost
        What each of P@1, P@3 and P@5 may lose on them.
    """

    def precisions(tried: Model) -> Array:
        found = tried.evaluate(X, Y, k=_RANKS)
        return np.array([found[f"P@{k}"] for k in _RANKS])

    least = precisions(model) - lost
    tried = ((drop, precisions(compress(model, drop=drop))) for drop in DROPS)
    return next((drop for drop, found in tried if (found >= least).all()), 0.0)


def _smaller(
    spec: AnySpec, arrays: Mapping[str, Any], bits: int, drop: float
) -> tuple[AnySpec, dict[str, Any]]:
    """Return the description and the arrays of a smaller network, or of smaller trees."""
    if isinstance(spec, TreeSpec):
        smallest = smallest_kept(arrays, drop)
        return replace(spec, smallest_weight=smallest), pruned(arrays, smallest)
    small = dict(arrays)
    for name in QUANTISABLE:
        if isinstance(small.get(name), Quantised):
            raise ConfigError("the model is compressed already: give the one it was made from")
        if name in small:
            if not np.isfinite(small[name]).all():
                raise ConfigError(f"{name} of the model is not finite: train it anew")
            small[name] = quantise(small[name], bits)
    return spec, small
