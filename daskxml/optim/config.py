"""Which optimizer, with which constants: the ``[optimizer]`` section of a run file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from daskxml.core.errors import ConfigError
from daskxml.core.fields import bounded, check_ranges

NAMES = ("sgd", "momentum", "nesterov", "adam", "lamb", "row-rms")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimizer of every replica; the learning rate is the strategy's.

    Attributes
    ----------
    name
        ``sgd``, ``momentum``, ``nesterov``, ``adam`` (Kingma and Ba 2015; with weight decay it is
        the AdamW of Loshchilov and Hutter 2019), ``lamb`` (You et al. 2020) or ``row-rms`` (one
        second moment for each row of weights, no first moment; for output layers: a label each).
    momentum
        Of ``momentum`` and ``nesterov``.
    beta1, beta2, epsilon
        Of ``adam`` and ``lamb``; ``row-rms`` has no ``beta1``.
    weight_decay
        Share of a weight that a step removes, times the learning rate. It is decoupled from the
        gradient and its moments, and does not apply to biases.
    clip_norm
        A step's gradient is scaled down to this Euclidean norm at most; 0 is no limit. The whole
        gradient is then collected before any of it is applied.
    output
        Name of the optimizer of the output layer, if it is another; "" for the same.
    output_lr
        Factor of the learning rate in the output layer.
    on_merge
        Moments at a merge: ``keep`` leaves each worker its own, ``average`` merges them with the
        weights of the models, ``reset`` sets them to zero.

    Raises
    ------
    ConfigError
        If a name is unknown or a number out of its range.

    Examples
    --------
    >>> OptimizerConfig().name
    'sgd'
    >>> OptimizerConfig(name="adam", output="sgd").rule_of("output.bias")
    'sgd'
    """

    name: str = "sgd"
    momentum: float = bounded(0.9, low=0, below=1)
    beta1: float = bounded(0.9, low=0, below=1)
    beta2: float = bounded(0.999, low=0, below=1)
    epsilon: float = bounded(1e-8, above=0)
    weight_decay: float = bounded(0.0, low=0)
    clip_norm: float = bounded(0.0, low=0)
    output: str = ""
    output_lr: float = bounded(1.0, above=0)
    on_merge: Literal["keep", "average", "reset"] = "keep"

    def __post_init__(self) -> None:
        check_ranges(self)
        for field, value, allowed in (
            ("name", self.name, NAMES), ("output", self.output, ("", *NAMES)),
        ):  # fmt: skip
            if value not in allowed:
                names = ", ".join(name or '""' for name in allowed)
                problem = f"optimizer.{field} = {value!r}: must be one of {names}"
                raise ConfigError(problem, field)

    def rule_of(self, parameter: str) -> str:
        """Return the name of the optimizer of a parameter."""
        return self.output if self.output and is_output(parameter) else self.name

    @property
    def is_plain_sgd(self) -> bool:
        """Whether a step is ``w -= lr * g`` and nothing else, in every layer."""
        changes_more = self.weight_decay > 0.0 or self.clip_norm > 0.0
        return self.name == "sgd" and self.output in ("", "sgd") and not changes_more

    def takes_rows(self, parameter: str) -> bool:
        """Whether a step can change some rows of a parameter independently of the others."""
        return self.clip_norm == 0.0 and self.rule_of(parameter) != "lamb"

    def lr_factor(self, parameter: str) -> float:
        """Return the factor of the learning rate of a parameter."""
        return self.output_lr if is_output(parameter) else 1.0


def is_output(parameter: str) -> bool:
    """Whether a parameter is one of the output layer.

    Examples
    --------
    >>> is_output("output.weight"), is_output("hidden0.bias")
    (True, False)
    """
    return parameter.startswith("output.")
