"""Which optimizer, with which constants: the ``[optimizer]`` section of a run file."""

from __future__ import annotations

from dataclasses import dataclass

from daskxml.errors import ConfigError

NAMES = ("sgd",)


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimizer of every replica; the learning rate is the strategy's.

    Attributes
    ----------
    name
        ``sgd``: parameter -= rate * gradient.

    Raises
    ------
    ConfigError
        If the name is unknown.

    Examples
    --------
    >>> OptimizerConfig().name
    'sgd'
    """

    name: str = "sgd"

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ConfigError(f"optimizer.name = {self.name!r}: must be one of {', '.join(NAMES)}")
