"""Label trees: pieces of a tree are leased by measured speed, and nothing is averaged.

The scores of different children do not depend on each other, so a tree is cut by labels into
*pieces* of about the same work (`daskxml.models.trees.nodes`). A piece takes the place of a row: an
epoch is one tree, a mega-batch all pieces of one, and the merge gives every worker the pieces of
all others. The worker that asks next gets the next pieces, largest first, so a slow worker gets
fewer; those of a lost one since the last merge are leased again.
"""

from __future__ import annotations

from dataclasses import dataclass

from daskxml.core.fields import bounded, check_ranges
from daskxml.strategies.megabatch import (
    MegabatchState,
    MegabatchStrategy,
    WorkerState,
    proportional_weights,
)
from daskxml.strategies.protocol import Measured, Merge


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of label trees.

    Attributes
    ----------
    pieces
        Pieces of a tree: more of them divide the work more evenly, and read more rows twice.

    Examples
    --------
    >>> Config(pieces=64).megabatch_rows
    64
    """

    pieces: int = bounded(64, low=1, high=1_000_000)

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def megabatch_rows(self) -> int:
        """Pieces between two merges: those of a tree."""
        return self.pieces

    def first_size(self, pool_threads: int) -> int:
        """Return 1: pieces come one by one."""
        return 1

    def largest_size(self, pool_threads: int) -> int:
        """Return 1."""
        return 1


class LabelTrees(MegabatchStrategy):
    """The state machine."""

    needs_norms = False
    rules = ("mean",)
    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.pieces = config.pieces

    def rate(self, worker: WorkerState) -> float:
        """Return 0: the rates of fitting are the model's own."""
        return 0.0

    def merge(self, state: MegabatchState, measured: Measured) -> Merge:
        """Let every worker give what it has."""
        weights = proportional_weights(state.members, dict.fromkeys(state.members, 1.0))
        return Merge(weights, 0.0, perturbed=False)

    Config = Config  # at the end, where it hides nothing
