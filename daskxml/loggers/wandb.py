"""A run as a run of Weights & Biases'."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import Any

from daskxml.loggers.protocol import RunFacts
from daskxml.loggers.scalars import scalars

KIND = "wandb"
PROJECT, PROJECT_VARIABLE = "daskxml", "WANDB_PROJECT"
STEP = "megabatch"


class WandbLogger:
    """Writes the settings, and figures against mega-batches.

    Mega-batches are a value and not W&B's own step, which must never fall: a run that goes back to
    a checkpoint repeats some. Where it writes, and whether at all (``WANDB_MODE=offline``), is
    W&B's own to say.

    Parameters
    ----------
    place
        The project; ``""`` takes that of ``WANDB_PROJECT``, or ``daskxml``.
    """

    def __init__(self, place: str = "") -> None:
        self.project = place or os.environ.get(PROJECT_VARIABLE, PROJECT)
        self._run: Any = None

    def begin(self, run: RunFacts) -> None:
        """Open a run, or go on with the one that this run had before."""
        import wandb

        remembered = run.recall(KIND)
        is_known = remembered.get("project") == self.project
        identity = str(remembered["id"]) if is_known else secrets.token_hex(4)
        self._run = wandb.init(
            project=self.project,
            id=identity,
            name=run.title,
            resume="allow",
            config=run.config.as_dict(),
            allow_val_change=True,  # a run may go on with other settings
            reinit="create_new",  # beside whatever this process logs already
            settings=wandb.Settings(console="off"),  # the output stays the command's own
        )
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)
        if not is_known:
            run.remember(KIND, {"id": identity, "project": self.project})
            for row in run.history:
                self.log(row)

    def log(self, row: Mapping[str, Any]) -> None:
        """Write a mega-batch."""
        self._run.log({STEP: row["megabatch"], **scalars(row)})

    def rewind(self, megabatch: int) -> None:
        """Do nothing: what comes again is drawn at its mega-batch."""

    def end(self, reason: str) -> None:
        """Say how the run ended, and wait until all is written."""
        self._run.summary["ended_by"] = reason
        self._run.finish(exit_code=int(reason == "error"))
