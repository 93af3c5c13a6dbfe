"""Workers that come and go in a simulated run, as a script says."""

from __future__ import annotations

import math
from dataclasses import dataclass

from daskxml.errors import ConfigError


@dataclass(frozen=True)
class Loss:
    """``worker`` dies at ``at_s`` virtual seconds.

    Examples
    --------
    >>> Loss(1.5, "0").worker
    '0'
    """

    at_s: float
    worker: str

    def __post_init__(self) -> None:
        _check(self.at_s)


@dataclass(frozen=True)
class Arrival:
    """``worker`` comes at ``at_s`` virtual seconds, with a speed of its own."""

    at_s: float
    worker: str
    speed: float = 1.0

    def __post_init__(self) -> None:
        _check(self.at_s)
        if not 0.0 < self.speed < math.inf:
            raise ConfigError(f"worker {self.worker}: speed = {self.speed}: must be above 0")


Change = Loss | Arrival


def _check(at_s: float) -> None:
    if not 0.0 <= at_s < math.inf:
        raise ConfigError(f"at_s = {at_s}: must be at least 0")
