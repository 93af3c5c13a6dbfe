"""Where the labels of a sample come from, beside a row's own and those drawn by chance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from daskxml.core.arrays import Array
from daskxml.kernels import Kernels, Lookup
from daskxml.models.batch import BatchSegment


class LabelSource(ABC):
    """Names labels that a row is likely to be confused about.

    A batch is asked for by its last hidden layer, ``hidden (rows, units)``, and by its rows. What
    has no state that follows the model implements `lookup` alone.
    """

    @abstractmethod
    def lookup(self, kernels: Kernels, hidden: Array, batch: Sequence[BatchSegment]) -> Lookup:
        """Find the labels of each row, in one bucket or several."""

    def vote(
        self, kernels: Kernels, hidden: Array, batch: Sequence[BatchSegment], votes: Array
    ) -> None:
        """Count in ``votes (lanes, labels)`` int32 how often rows and labels share a bucket."""
        found = self.lookup(kernels, hidden, batch)
        kernels.count_votes(votes, found.keys, found.starts, found.members)

    def refresh(self, kernels: Kernels, weight: Array, bias: Array, rows: int) -> None:  # noqa: B027
        """Follow the output layer; ``rows`` are about to be looked up."""

    def reset(self) -> None:  # noqa: B027
        """Forget the model that `refresh` was called with: it is another one."""

    def state(self) -> dict[str, Array]:
        """Return the arrays that a checkpoint must hold: write into them, then call `resume`."""
        return {}

    def resume(self, kernels: Kernels) -> None:  # noqa: B027
        """Use what was written into `state`."""
