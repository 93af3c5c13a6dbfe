"""How the learning rate changes as a run goes on: the ``[schedule]`` section of a run file.

The rate of a batch is the strategy's rate times `ScheduleConfig.factor`. Warm-up is that of Goyal
et al., "Accurate, Large Minibatch SGD", 2017, section 2.2; cosine that of Loshchilov and Hutter,
"SGDR", ICLR 2017, without restarts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from daskxml.core.errors import ConfigError
from daskxml.core.fields import bounded, check_ranges

_LEAST_WARMTH = 0.01  # the very first batch learns something too


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The factor of the learning rate as a function of the epoch.

    Attributes
    ----------
    name
        ``constant``; ``linear`` or ``cosine`` from 1, at the end of the warm-up, to ``final`` at
        the end of the run; ``inverse``: ``1 / (1 + decay * epoch)``.
    warmup_epochs
        Epochs in which the rate rises linearly from 0, as a factor of all of the above.
    final
        The factor at the end, for ``linear`` and ``cosine``.
    decay
        Of ``inverse``.

    Examples
    --------
    >>> schedule = ScheduleConfig(name="linear", warmup_epochs=2.0)
    >>> [schedule.factor(epoch, epochs=10.0) for epoch in (1.0, 2.0, 6.0, 10.0)]
    [0.5, 1.0, 0.5, 0.0]
    """

    name: Literal["constant", "linear", "cosine", "inverse"] = "constant"
    warmup_epochs: float = bounded(0.0, low=0)
    final: float = bounded(0.0, low=0, high=1)
    decay: float = bounded(0.0, low=0)

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def needs_epochs(self) -> bool:
        """Whether the factor depends on where the run ends."""
        return self.name in ("linear", "cosine")

    def factor(self, epoch: float, epochs: float) -> float:
        """Return the factor of the rate.

        Parameters
        ----------
        epoch
            Epochs so far, at least 0.
        epochs
            Length of the run, 0 if unknown; the factor is constant after it.

        Returns
        -------
        float
            From 0 to 1, and above 0 during the warm-up.

        Raises
        ------
        ConfigError
            If the factor depends on the length of the run, which is unknown.

        Examples
        --------
        >>> ScheduleConfig(name="inverse", decay=1.0).factor(3.0, epochs=0.0)
        0.25
        """
        if self.needs_epochs and not epochs:
            raise ConfigError(
                f"schedule.name = {self.name!r}: needs the length of the run: give training.epochs"
            )
        warmth = 1.0
        if epoch < self.warmup_epochs:
            warmth = max(_LEAST_WARMTH, epoch / self.warmup_epochs)
        return warmth * _DECAYS[self.name](self, epoch, epochs)

    def progress(self, epoch: float, epochs: float) -> float:
        """Return the progress from the end of the warm-up to the end of the run, 0 to 1."""
        if epoch <= self.warmup_epochs:
            return 0.0
        return min(1.0, (epoch - self.warmup_epochs) / max(epochs - self.warmup_epochs, 1e-9))


def _constant(schedule: ScheduleConfig, epoch: float, epochs: float) -> float:
    return 1.0


def _linear(schedule: ScheduleConfig, epoch: float, epochs: float) -> float:
    return 1.0 + (schedule.final - 1.0) * schedule.progress(epoch, epochs)


def _cosine(schedule: ScheduleConfig, epoch: float, epochs: float) -> float:
    left = 0.5 * (1.0 + math.cos(math.pi * schedule.progress(epoch, epochs)))
    return schedule.final + (1.0 - schedule.final) * left


def _inverse(schedule: ScheduleConfig, epoch: float, epochs: float) -> float:
    return 1.0 / (1.0 + schedule.decay * epoch)


_DECAYS: dict[str, Callable[[ScheduleConfig, float, float], float]] = {
    "constant": _constant, "linear": _linear, "cosine": _cosine, "inverse": _inverse,
}  # fmt: skip
