"""When a run ends, and how often it evaluates and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daskxml.config import RunConfig

LIMITS = ("megabatches", "epochs", "minutes", "target_metric", "target")  # as events report them


@dataclass(frozen=True, kw_only=True)
class StoppingRules:
    """When a run ends (zero is no limit), and how often it evaluates and checkpoints.

    Attributes
    ----------
    megabatches, epochs, train_s
        The run ends at the first merge at or after one of these. The last mega-batch is so short
        that the epochs end with it, unless workers that step together begin it again after a loss.
    target_metric, target
        The run ends once an evaluation gives at least ``target``.
    patience, keeps_best
        The run ends once so many evaluations have not improved the metric (0: never); whether its
        best model is kept.
    evaluate_every, checkpoint_every
        In mega-batches. The last one is always evaluated and checkpointed.
    ks
        Ranks of the metrics.
    training_loss, evaluation_rows
        Whether an evaluation also computes the loss of all training rows; rows of its batches.
    can_checkpoint
        Whether the run has a directory.
    """

    megabatches: int = 0
    epochs: float = 0.0
    train_s: float = 0.0
    target_metric: str = "P@1"
    target: float = 0.0
    patience: int = 0
    keeps_best: bool = False
    evaluate_every: int = 1
    checkpoint_every: int = 10
    ks: tuple[int, ...] = (1, 3, 5)
    training_loss: bool = False
    evaluation_rows: int = 512
    can_checkpoint: bool = False

    @classmethod
    def of(cls, config: RunConfig, *, can_checkpoint: bool) -> StoppingRules:
        """Return the rules of a run file."""
        training, evaluation = config.training, config.evaluation
        return cls(
            megabatches=training.megabatches,
            epochs=training.epochs,
            train_s=training.minutes * 60.0,
            target_metric=training.target_metric,
            target=training.target,
            patience=training.patience,
            keeps_best=config.keeps_best,
            evaluate_every=evaluation.every,
            checkpoint_every=config.checkpoint.every,
            ks=evaluation.k,
            training_loss=evaluation.training_loss,
            evaluation_rows=evaluation.batch_rows,
            can_checkpoint=can_checkpoint,
        )

    def reached(self, history: Sequence[Mapping[str, Any]]) -> str:
        """Return which limit the run has reached after these mega-batches, or ``""``.

        Examples
        --------
        >>> StoppingRules(epochs=2.0).reached([{"epoch": 2.0, "train_s": 1.0, "merge_s": 0.1}])
        'epochs'
        """
        if self.megabatches and len(history) >= self.megabatches:
            return "megabatches"
        if self.epochs and history and history[-1]["epoch"] >= self.epochs:
            return "epochs"
        return "minutes" if self.time_left_s(history, 0.0) <= 0.0 else ""

    def time_left_s(self, history: Sequence[Mapping[str, Any]], since_merge_s: float) -> float:
        """Return how long training may still take; infinite without a limit.

        Examples
        --------
        >>> StoppingRules(train_s=5.0).time_left_s([{"train_s": 1.0, "merge_s": 0.5}], 2.0)
        1.5
        """
        done_s = trained_s(history) + since_merge_s
        return self.train_s - done_s if self.train_s > 0.0 else math.inf

    def is_checkpoint_due(self, megabatches: int, *, is_last: bool) -> bool:
        """Whether a checkpoint is to be written after so many mega-batches."""
        return self.can_checkpoint and (is_last or self.is_checkpoint_turn(megabatches))

    def is_checkpoint_turn(self, megabatches: int) -> bool:
        """Whether a checkpoint follows so many mega-batches in a run that has a directory."""
        return self.checkpoint_every > 0 and megabatches % self.checkpoint_every == 0

    def is_evaluation_due(
        self, history: Sequence[Mapping[str, Any]], *, has_tests: bool, is_last: bool
    ) -> bool:
        """Whether the last mega-batch is to be evaluated, and has not been yet.

        Examples
        --------
        >>> rules = StoppingRules()
        >>> rules.is_evaluation_due([{"metrics": {}}], has_tests=True, is_last=False)
        True
        """
        row = history[-1]
        if not (has_tests or self.training_loss) or row["metrics"] or "training_loss" in row:
            return False
        return is_last or len(history) % self.evaluate_every == 0

    def best_megabatch(self, history: Sequence[Mapping[str, Any]]) -> int:
        """Return the number of the first mega-batch with the best metric; 0 if none was evaluated.

        Examples
        --------
        >>> rows = [{"metrics": {"P@1": value} if value else {}} for value in (0.5, 0, 0.7, 0.7)]
        >>> StoppingRules().best_megabatch(rows)
        3
        """
        found = self._measured(history)
        return max(found, key=lambda number: (found[number], -number), default=0)

    def is_patience_over(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the last evaluations, as many as `patience`, have not improved the metric.

        Examples
        --------
        >>> rows = [{"metrics": {"P@1": value}} for value in (0.5, 0.7, 0.6, 0.7)]
        >>> [StoppingRules(patience=n).is_patience_over(rows) for n in (0, 2, 3)]
        [False, True, False]
        """
        best = self.best_megabatch(history)
        since = sum(number > best for number in self._measured(history))
        return 0 < self.patience <= since

    def _measured(self, history: Sequence[Mapping[str, Any]]) -> dict[int, float]:
        """Return the metric of every mega-batch that was evaluated, by its number."""
        metric = self.target_metric
        rows = enumerate(history, 1)
        return {n: row["metrics"][metric] for n, row in rows if metric in row["metrics"]}

    def rows_in_all(self, data_rows: int) -> int | None:
        """Return after how many rows the run's epochs are over; None without such a limit.

        Examples
        --------
        >>> StoppingRules(epochs=2.5).rows_in_all(5), StoppingRules(epochs=0.1).rows_in_all(30)
        (13, 3)
        """
        if not self.epochs:
            return None
        rows = int(self.epochs * data_rows)
        return rows if rows / data_rows >= self.epochs else rows + 1

    def is_target_met(self, metrics: Mapping[str, float]) -> bool:
        """Whether an evaluation is good enough to end the run."""
        return self.target > 0.0 and metrics[self.target_metric] >= self.target


def trained_s(history: Sequence[Mapping[str, Any]]) -> float:
    """Return the seconds of training and merging of all mega-batches."""
    return sum(row["train_s"] + row["merge_s"] for row in history)


def limits_of(config: RunConfig) -> dict[str, Any]:
    """Return when a run ends, as its events report it; zero is no limit.

    Examples
    --------
    >>> from daskxml.config import load_run_config
    >>> limits_of(load_run_config({"training": {"epochs": 2}}))["epochs"]
    2.0
    """
    return {name: getattr(config.training, name) for name in LIMITS}
