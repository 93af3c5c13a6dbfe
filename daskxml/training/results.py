"""What a step did, and a lease."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, SupportsFloat

from daskxml.errors import TrainingError

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


@contextmanager
def unbroken() -> Iterator[None]:
    """End the run where memory runs out in here: a step that is half done cannot be tried again.

    Raises
    ------
    TrainingError
        In the place of `MemoryError`.

    Examples
    --------
    >>> with unbroken():
    ...     raise MemoryError("no room")
    Traceback (most recent call last):
    daskxml.errors.TrainingError: memory ran out in the middle of a step (no room): lower ...
    """
    try:
        yield
    except MemoryError as error:
        raise TrainingError(
            f"memory ran out in the middle of a step ({error}): lower strategy.batch_max or "
            "training.logits_budget"
        ) from error


@dataclass(frozen=True, slots=True)
class LeaseResult:
    """What a lease did, as `daskxml.training.orders.LeaseReport` tells it."""

    loss_sum: float
    busy_s: float
    nonzeros: int
    updates: int
    notes: Notes
    most_rows: int = 0
