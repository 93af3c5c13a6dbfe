"""What the workers of a gang exchange."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mirrored:
    """Every step, an all-reduce combines the gradients of all; every worker applies the result."""


@dataclass(frozen=True, slots=True)
class Central:
    """Every step, a server applies the combined gradient of all and gives all the new model."""


@dataclass(frozen=True, slots=True)
class Asynchronous:
    """A server applies each gradient when it comes, and gives that worker the new model.

    A worker that is ``staleness`` batches ahead of the slowest waits; below 0 nobody waits.
    """

    staleness: int


@dataclass(frozen=True, slots=True)
class LocalSteps:
    """After every ``steps`` batches, the changes of all replicas are combined into one."""

    steps: int


@dataclass(frozen=True, slots=True)
class Averaging:
    """CROSSBOW: after every batch replicas are pulled to the average model, and it to them.

    With ``w`` a replica, ``z`` the average model and ``c = pull * (w - z)``: ``w -= c`` and
    ``z += sum of all c + momentum * (z - previous z)``. ``restarts``: replicas begin this gang as
    the average model.
    """

    pull: float
    momentum: float
    restarts: bool


Scheme = Mirrored | Central | Asynchronous | LocalSteps | Averaging
