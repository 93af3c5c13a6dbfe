"""Merges that are linear in the models: which factor each of them has.

Algorithm 2 of Ma et al. 2021 (see ``weighted``) and the outer optimizer of DiLoCo (Douillard et
al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023: Nesterov momentum on
the merged change) both give

    merged = sum_i a_i * replica_i + b * current + c * previous

so that one ring does either. Of the outer optimizer, with ``w`` the global model, ``w_i`` the
replicas, ``alpha_i`` their weights, which sum to 1, ``lr`` its rate and ``mu`` its momentum:

    x' = w + lr * (sum_i alpha_i * w_i - w)        (x starts as w)
    w' = x' + mu * (x' - x)

This is Nesterov's method in its first form, in which ``w`` is the point where gradients are taken.
PyTorch's ``SGD(nesterov=True)`` gives the same sequence of ``w`` on the gradients ``w - sum_i
alpha_i * w_i``: its buffer is ``(x - x') / lr`` and its first step has no momentum behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from daskxml.combine.config import CombineConfig
from daskxml.types import Array


class WeighKernels(Protocol):
    """What `outer_memory` needs from the kernels."""

    def weigh_two(self, out: Array, x: Array, a: float, y: Array, b: float) -> None:
        """Write ``a * x + b * y`` into ``out``, which may be ``x`` or ``y``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeFactors:
    """``merged = sum_i replicas[i] * replica_i + current * w + previous * (what is remembered)``.

    Attributes
    ----------
    replicas
        A factor for every replica, in the order of their ranks.
    current
        Of the global model.
    previous
        Of the global model before it (momentum), or of ``x`` (outer Nesterov optimizer).

    Examples
    --------
    >>> MergeFactors.momentum([0.5, 0.5], 0.9)
    MergeFactors(replicas=(0.5, 0.5), current=0.9, previous=-0.9)
    """

    replicas: tuple[float, ...]
    current: float
    previous: float

    @classmethod
    def momentum(cls, weights: Sequence[float], gamma: float) -> MergeFactors:
        """Give the factors of Algorithm 2, line 11: ``sum_i alpha_i w_i + gamma (w - w_p)``."""
        return cls(replicas=tuple(weights), current=gamma, previous=-gamma)

    @classmethod
    def outer_nesterov(cls, weights: Sequence[float], lr: float, mu: float) -> MergeFactors:
        """Give the factors of the outer optimizer; the weights sum to 1.

        Examples
        --------
        >>> MergeFactors.outer_nesterov([0.25, 0.75], lr=1.0, mu=0.5)
        MergeFactors(replicas=(0.375, 1.125), current=0.0, previous=-0.5)
        """
        replicas = tuple((1.0 + mu) * lr * weight for weight in weights)
        return cls(replicas=replicas, current=(1.0 + mu) * (1.0 - lr), previous=-mu)


def merge_factors(config: CombineConfig, weights: Sequence[float], momentum: float) -> MergeFactors:
    """Return what a merge by the mean multiplies replicas and global models with.

    Parameters
    ----------
    config
        Whether there is an outer optimizer; ``momentum`` is not read then.
    weights
        Of the replicas, in the order of their ranks.
    momentum
        Of the global model.

    Examples
    --------
    >>> merge_factors(CombineConfig(), [1.0], 0.9)
    MergeFactors(replicas=(1.0,), current=0.9, previous=-0.9)
    """
    if config.outer == "nesterov":
        return MergeFactors.outer_nesterov(weights, config.outer_lr, config.outer_momentum)
    return MergeFactors.momentum(weights, momentum)


def outer_memory(previous: Array, merged: Array, mu: float, kernels: WeighKernels) -> None:
    """Make ``previous`` what the outer optimizer remembers for its next merge.

    Parameters
    ----------
    previous
        ``(size,)`` float32: ``x``, overwritten with ``x' = (w' + mu * x) / (1 + mu)``.
    merged
        ``(size,)`` float32: the merged model ``w'``.
    mu
        The outer optimizer's momentum.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.ops.naive import NaiveKernels
    >>> x = np.zeros(1, "f4")
    >>> outer_memory(x, np.full(1, 3, "f4"), 0.5, NaiveKernels())
    >>> x
    array([2.], dtype=float32)
    """
    kernels.weigh_two(previous, merged, 1.0 / (1.0 + mu), previous, mu / (1.0 + mu))
