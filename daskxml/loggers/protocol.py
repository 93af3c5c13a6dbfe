"""What a logger is told of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from daskxml.config import RunConfig
from daskxml.model.tensors import replacing
from daskxml.training.run_dir import LOGGERS_FILE


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A run that begins, or goes on.

    Attributes
    ----------
    title
        What it is called: the last part of its directory, or the name in its run file.
    config
        The resolved run.
    out
        Its directory, or None.
    history
        The rows that it goes on from; none of a new run. See `daskxml.training.history`.
    """

    title: str
    config: RunConfig
    out: Path | None = None
    history: Sequence[Mapping[str, Any]] = ()

    def recall(self, kind: str) -> dict[str, Any]:
        """Return what a logger of this kind has remembered of the run that goes on."""
        if self.out is None or not self.history:
            return {}
        return dict(self._memory().get(kind, {}))

    def remember(self, kind: str, what: Mapping[str, Any]) -> None:
        """Write down what a logger of this kind needs to go on with the same charts.

        Raises
        ------
        ModelError
            If it cannot be written.
        """
        if self.out is None:
            return
        before = self._memory()
        with replacing(self.out / LOGGERS_FILE) as partial:
            text = json.dumps({**before, kind: dict(what)}, indent=2)
            partial.write_text(text + "\n", encoding="utf-8")

    def _memory(self) -> dict[str, Any]:
        assert self.out is not None
        try:
            found = json.loads((self.out / LOGGERS_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


class Logger(Protocol):
    """Somebody who is told of a run while it goes on.

    An error in ``begin`` ends the run before it starts. Later errors are warnings.
    """

    def begin(self, run: RunFacts) -> None:
        """Get ready; the rows of ``run.history`` may be there already from the last time."""

    def log(self, row: Mapping[str, Any]) -> None:
        """Take in a mega-batch."""

    def rewind(self, megabatch: int) -> None:
        """Hear that the run goes on after this mega-batch: later ones come again."""

    def end(self, reason: str) -> None:
        """Finish; the reason is that of `daskxml.Run`, or ``error``."""


def plain_config(config: RunConfig) -> dict[str, Any]:
    """Return a run's settings by ``section.key``, as texts, numbers and lists.

    Examples
    --------
    >>> from daskxml.config import load_run_config
    >>> plain_config(load_run_config({"training": {"epochs": 2}}))["training.epochs"]
    2.0
    """
    tables = config.as_dict()
    return {f"{name}.{key}": tables[name][key] for name in tables for key in tables[name]}
