"""Workers that kill themselves at a chosen moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
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
