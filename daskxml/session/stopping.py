"""When a run ends, and how often it evaluates and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daskxml.config import RunConfig

LIMITS = "megabatches", "epochs", "trees", "minutes", "target_metric", "target"  # in events


@dataclass(frozen=True)
class StoppingRules:
    """When a run ends (zero is no limit), and how often it evaluates and checkpoints.

    Attributes
    ----------
    config
        ``[training]``: the run ends at the first merge at or after a limit; the last mega-batch is
        so short that the epochs end with it, unless workers that step together begin it again after
        a loss. ``[evaluation]`` and ``[checkpoint]``: the last mega-batch always has both.
    can_checkpoint
        Whether the run has a directory.

    Examples
    --------
    >>> from daskxml.config import load_run_config
    >>> def rules(**training):
    ...     return StoppingRules(load_run_config({"training": {"epochs": 2.0, **training}}))
    >>> rules().reached([{"epoch": 2.0}], spent_s=1.1)
    'epochs'
    >>> rules(minutes=0.1).time_left_s(spent_s=1.5)
    4.5
    >>> rules().is_evaluation_due([{"metrics": {}}], has_tests=True, is_last=False)
    True
    >>> rows = [{"metrics": {"P@1": value} if value else {}} for value in (0.5, 0, 0.7, 0.7, 0.6)]
    >>> rules().best_megabatch(rows)
    3
    >>> [rules(patience=n).reached_in_evaluation(rows) for n in (0, 2, 3)]
    ['', 'patience', '']
    >>> rules(epochs=2.5).rows_in_all(5), rules(epochs=0.1).rows_in_all(30)
    (13, 3)
    """

    config: RunConfig
    can_checkpoint: bool = False

    def reached(self, history: Sequence[Mapping[str, Any]], spent_s: float) -> str:
        """Return which limit these mega-batches have reached, which took so long, or ``""``."""
        limits = self.config.training
        if limits.megabatches and len(history) >= limits.megabatches:
            return "megabatches"
        units = limits.epochs or limits.trees  # of which a run has one
        if units and history and history[-1]["epoch"] >= units:
            return "epochs" if limits.epochs else "trees"
        return "minutes" if self.time_left_s(spent_s) <= 0.0 else ""

    def time_left_s(self, spent_s: float) -> float:
        """Return how long training may still take; infinite without a limit."""
        return (60.0 * self.config.training.minutes or math.inf) - spent_s

    def is_checkpoint_due(self, megabatches: int, *, is_last: bool) -> bool:
        """Whether a checkpoint is to be written after so many mega-batches."""
        every = self.config.checkpoint.every
        return self.can_checkpoint and (is_last or (every > 0 and megabatches % every == 0))

    def is_evaluation_due(
        self, history: Sequence[Mapping[str, Any]], *, has_tests: bool, is_last: bool
    ) -> bool:
        """Whether the last mega-batch is to be evaluated, and has not been yet."""
        row, rules = history[-1], self.config.evaluation
        if not (has_tests or rules.training_loss) or row["metrics"] or "training_loss" in row:
            return False
        return is_last or len(history) % rules.every == 0

    def best_megabatch(self, history: Sequence[Mapping[str, Any]]) -> int:
        """Return the number of the first mega-batch with the best metric; 0 if there is none."""
        found = self._measured(history)
        return max(found, key=lambda number: (found[number], -number), default=0)

    def reached_in_evaluation(self, history: Sequence[Mapping[str, Any]]) -> str:
        """Return which limit the last mega-batch's evaluation has reached, or ``""``.

        It is good enough, or as many as `patience` have not improved the metric.
        """
        training, metrics = self.config.training, history[-1]["metrics"]
        if metrics and 0.0 < training.target <= metrics[training.target_metric]:
            return "target"
        best = self.best_megabatch(history)
        since = sum(number > best for number in self._measured(history))
        return "patience" if 0 < training.patience <= since else ""

    def _measured(self, history: Sequence[Mapping[str, Any]]) -> dict[int, float]:
        """Return the metric of every mega-batch that was evaluated, by its number."""
        metric = self.config.training.target_metric
        rows = enumerate(history, 1)
        return {n: row["metrics"][metric] for n, row in rows if metric in row["metrics"]}

    def rows_in_all(self, data_rows: int) -> int | None:
        """Return after how many rows the run's epochs are over; None without such a limit."""
        epochs = self.config.training.epochs
        if not epochs:
            return None
        rows = int(epochs * data_rows)
        return rows if rows / data_rows >= epochs else rows + 1


def spent_s(history: Sequence[Mapping[str, Any]]) -> float:
    """Return how long training and merging have taken."""
    return float(sum(row["train_s"] + row["merge_s"] for row in history))


def limits_of(config: RunConfig) -> dict[str, Any]:
    """Return when a run ends, as its events report it; zero is no limit.

    Examples
    --------
    >>> from daskxml.config import load_run_config
    >>> limits_of(load_run_config({"training": {"epochs": 2}}))["epochs"]
    2.0
    """
    return {name: getattr(config.training, name) for name in LIMITS}
