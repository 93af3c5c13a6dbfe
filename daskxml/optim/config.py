"""The ``[optimizer]`` and ``[schedule]`` of a run file: which optimizer, with which constants.

The rate of a batch is the strategy's rate times `ScheduleConfig.factor`. Warm-up is that of Goyal
et al., "Accurate, Large Minibatch SGD", 2017, section 2.2; cosine that of Loshchilov and Hutter,
"SGDR", ICLR 2017, without restarts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from daskxml.core.errors import ConfigError
from daskxml.core.fields import Checked, bounded

_LEAST_WARMTH = 0.01  # the very first batch learns something too
Name = Literal["sgd", "momentum", "nesterov", "adam", "lamb", "row-rms"]


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Checked):
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

    name: Name = "sgd"
    momentum: float = bounded(0.9, low=0, below=1)
    beta1: float = bounded(0.9, low=0, below=1)
    beta2: float = bounded(0.999, low=0, below=1)
    epsilon: float = bounded(1e-8, above=0)
    weight_decay: float = bounded(0.0, low=0)
    clip_norm: float = bounded(0.0, low=0)
    output: Literal["", Name] = ""
    output_lr: float = bounded(1.0, above=0)
    on_merge: Literal["keep", "average", "reset"] = "keep"

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


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Checked):
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
        progress = self._progress(epoch, epochs)
        match self.name:
            case "linear":
                return warmth * (1.0 + (self.final - 1.0) * progress)
            case "cosine":
                left = 0.5 * (1.0 + math.cos(math.pi * progress))
                return warmth * (self.final + (1.0 - self.final) * left)
            case "inverse":
                return warmth * (1.0 / (1.0 + self.decay * epoch))
        return warmth

    def _progress(self, epoch: float, epochs: float) -> float:
        """Return the progress from the end of the warm-up to the end of the run, 0 to 1."""
        if epoch <= self.warmup_epochs:
            return 0.0
        return min(1.0, (epoch - self.warmup_epochs) / max(epochs - self.warmup_epochs, 1e-9))
