"""How models and gradients of workers are combined: the ``[combine]`` section of a run file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from daskxml.fields import bounded, check_ranges

Rule = Literal["auto", "mean", "sum", "adasum"]


@dataclass(frozen=True, kw_only=True)
class CombineConfig:
    """The rule by which arrays of several workers become one.

    Attributes
    ----------
    rule
        ``mean``: with the strategy's weights; ``sum``: without weights (gradients, and what local
        steps changed); ``adasum``: Maleki et al., "Scaling Distributed Training with Adaptive
        Summation", 2021, layer by layer; ``auto``: what the strategy's paper does.
    order
        Of Adasum: ``tree`` (recursive vector halving, its Algorithm 1) or ``linear``.
    inside
        What the workers of one machine do among themselves before Adasum runs between machines:
        ``adasum``, ``mean`` or ``sum`` (hierarchical all-reduce, section 4.2.2).
    transfer
        ``bfloat16`` halves the bytes that models, gradients and changes of them take between
        workers; ``float16``, scaled to the range of each message, does so for Adasum only.
    outer
        ``nesterov``: the merged change of a mega-batch is a gradient for an outer optimizer with
        Nesterov momentum (DiLoCo), in the place of the strategy's own momentum.
    outer_lr, outer_momentum
        Of the outer optimizer.
    overlap
        Workers go on with the next mega-batch while the merge of the last one travels, and what it
        changes is added to their replicas when it is there (see `daskxml.training.overlap`). For
        strategies that lease batches and merge replicas; costs a model's memory more.

    Examples
    --------
    >>> CombineConfig(rule="adasum").order
    'tree'
    """

    rule: Rule = "auto"
    order: Literal["tree", "linear"] = "tree"
    inside: Literal["adasum", "mean", "sum"] = "adasum"
    transfer: Literal["float32", "float16", "bfloat16"] = "float32"
    outer: Literal["none", "nesterov"] = "none"
    outer_lr: float = bounded(0.7, above=0)
    outer_momentum: float = bounded(0.9, low=0, below=1)
    overlap: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)
