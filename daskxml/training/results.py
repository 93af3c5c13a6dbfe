"""What a step did, and a lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, SupportsFloat

if TYPE_CHECKING:
    from daskxml.training.orders import Notes


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step did.

    Attributes
    ----------
    loss
        The sum of the rows' losses before the update; rows without labels count 0 with softmax.
        Who makes a float of it waits for the device.
    rows, nonzeros
        Rows of the batch, and their stored features.
    seen
        Labels that the rows saw, summed over rows: all of them, unless the output layer is sampled.
    """

    loss: SupportsFloat
    rows: int
    nonzeros: int
    seen: int

    @property
    def loss_sum(self) -> float:
        """The sum of the rows' losses; waits for the device."""
        return float(self.loss)


@dataclass(frozen=True, slots=True)
class LeaseResult:
    """What a lease did, as `daskxml.training.orders.LeaseReport` tells it."""

    loss_sum: float
    busy_s: float
    nonzeros: int
    updates: int
    notes: Notes
    most_rows: int = 0
