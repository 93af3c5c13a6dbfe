"""Workers that kill themselves at a chosen moment."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Callable
from typing import Any

from distributed import Worker


def die_in(
    method: str, at_call: int, place: str = "daskxml.worker.training_worker:TrainingWorker"
) -> Callable[[Worker], None]:
    """Return a function that makes one worker kill itself in a call of a class's method."""

    def arm(dask_worker: Worker) -> None:
        module, _, name = place.partition(":")
        kind = getattr(importlib.import_module(module), name)
        original, calls = getattr(kind, method), []

        def deadly(self: Any, *args: Any, **options: Any) -> Any:
            calls.append(None)
            if len(calls) == at_call:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(self, *args, **options)

        setattr(kind, method, deadly)

    return arm
