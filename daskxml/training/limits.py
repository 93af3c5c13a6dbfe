"""When a run ends, and how often it evaluates and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daskxml.config.sections import TrainingSection


def plain_limits(training: TrainingSection) -> dict[str, Any]:
    """Return when a run ends, as its events tell it; zero is no limit.

    Examples
    --------
    >>> plain_limits(TrainingSection(epochs=2))["epochs"]
    2
    """
    names = ("megabatches", "epochs", "minutes", "target_metric", "target")
    return {name: getattr(training, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When a run ends (zero is no limit), and how often it evaluates and checkpoints.

    Attributes
    ----------
    megabatches, epochs, train_s
        The run ends at the first merge at or after one of these.
    target_metric, target
        The run ends once an evaluation gives at least ``target``.
    evaluate_every, checkpoint_every
        In mega-batches. The last one is always evaluated and checkpointed.
    ks
        Ranks of the metrics.
    training_loss, evaluation_rows
        An evaluation finds the loss of all training rows too; in batches of so many rows.
    can_checkpoint
        There is a place to write to.
    """

    megabatches: int = 0
    epochs: float = 0.0
    train_s: float = 0.0
    target_metric: str = "P@1"
    target: float = 0.0
    evaluate_every: int = 1
    checkpoint_every: int = 10
    ks: tuple[int, ...] = (1, 3, 5)
    training_loss: bool = False
    evaluation_rows: int = 512
    can_checkpoint: bool = False

    def reached(self, history: Sequence[Mapping[str, Any]]) -> str:
        """Return which limit the run has reached after these mega-batches, or ``""``.

        Examples
        --------
        >>> Limits(epochs=2.0).reached([{"epoch": 2.0, "train_s": 1.0, "merge_s": 0.1}])
        'epochs'
        """
        if self.megabatches and len(history) >= self.megabatches:
            return "megabatches"
        if self.epochs and history and history[-1]["epoch"] >= self.epochs:
            return "epochs"
        return "minutes" if self.is_time_up(history, 0.0) else ""

    def is_time_up(self, history: Sequence[Mapping[str, Any]], since_merge_s: float) -> bool:
        """Whether training has taken as long as it may; evaluation does not count."""
        done_s = sum(row["train_s"] + row["merge_s"] for row in history)
        return self.train_s > 0.0 and done_s + since_merge_s >= self.train_s

    def is_checkpoint_due(self, megabatches: int, *, is_last: bool) -> bool:
        """Whether a checkpoint is to be written after so many mega-batches."""
        return self.can_checkpoint and (is_last or self.is_checkpoint_turn(megabatches))

    def is_checkpoint_turn(self, megabatches: int) -> bool:
        """Whether a checkpoint follows so many mega-batches where there is a place for it."""
        return self.checkpoint_every > 0 and megabatches % self.checkpoint_every == 0

    def is_evaluation_due(
        self, history: Sequence[Mapping[str, Any]], *, has_tests: bool, is_last: bool
    ) -> bool:
        """Whether the last mega-batch is to be evaluated, and has not been yet.

        Examples
        --------
        >>> Limits().is_evaluation_due([{"metrics": {}}], has_tests=True, is_last=False)
        True
        """
        row = history[-1]
        if not (has_tests or self.training_loss) or row["metrics"] or "training_loss" in row:
            return False
        return is_last or len(history) % self.evaluate_every == 0

    def is_target_met(self, metrics: Mapping[str, float]) -> bool:
        """Whether an evaluation is good enough to end the run."""
        return self.target > 0.0 and metrics[self.target_metric] >= self.target
