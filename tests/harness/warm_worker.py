"""Loads the kernels of a training worker; the processes that workers are forked from import it."""

from __future__ import annotations

from daskxml.config import load_run_config
from daskxml.worker.batch_runner import warm_up
from daskxml.worker.settings import DataFacts, WorkerSettings, WorkerSlot
from daskxml.worker.training_worker import TrainingWorker

config = load_run_config({"training": {"epochs": 1}, "strategy": {"batch_max": 8}})
facts = DataFacts(spec=config.model_spec(9, 5), rows=8, stream_rows=(8,), row_nonzeros=2)
worker = TrainingWorker(WorkerSettings.of(config, facts, WorkerSlot()))
warm_up(worker.replica, worker.settings)
worker.initialize()
