"""The worker of a run by the kind of its model."""

from __future__ import annotations

from collections.abc import Callable

from daskxml.core.arrays import Array
from daskxml.worker.settings import WorkerSettings
from daskxml.worker.shared_model import ModelStore, SharedModel
from daskxml.worker.training_worker import TrainingWorker

AnyWorker = TrainingWorker


def new_worker(
    settings: WorkerSettings, shared: SharedModel | None = None, store: ModelStore | None = None,
    zeros: Callable[[int], Array] | None = None,
) -> AnyWorker:  # fmt: skip
    """Return a new worker; the arguments are those of `TrainingWorker`."""
    return TrainingWorker(settings, shared, store, zeros)
