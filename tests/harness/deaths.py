"""Workers that kill themselves at a chosen moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distributed import Worker


def die_in(method: str, at_call: int) -> Callable[[Worker], None]:
    """Return a function that makes one worker kill itself in a call of a `TrainingWorker`
    method."""

    def arm(dask_worker: Worker) -> None:
        from daskxml.worker.training_worker import TrainingWorker

        original, calls = getattr(TrainingWorker, method), []

        def deadly(self: Any, *args: Any) -> Any:
            calls.append(None)
            if len(calls) == at_call:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(self, *args)

        setattr(TrainingWorker, method, deadly)

    return arm


def die_in_lease_after(path: Path) -> Callable[[Worker], None]:
    """Return a function that makes one worker kill itself in its first lease after a file is
    written: the checkpoint of the mega-batch before, say, which has been told of by then."""

    def arm(dask_worker: Worker) -> None:
        from daskxml.worker.training_worker import TrainingWorker

        original = TrainingWorker.lease

        def deadly(self: Any, *args: Any) -> Any:
            if path.exists():
                os.kill(os.getpid(), signal.SIGKILL)
            return original(self, *args)

        TrainingWorker.lease = deadly  # type: ignore[method-assign]

    return arm
