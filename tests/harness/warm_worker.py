"""Loads the kernels of training workers; the process that workers are forked from imports it.

`make unit` imports it first, so that kernels are compiled once and not by several tests at a time.
"""

from daskxml.config import load_run_config
from daskxml.data.parse import Dialect, parse_bytes
from daskxml.worker.batch_runner import warm_up
from daskxml.worker.settings import DataFacts, WorkerSettings, WorkerSlot
from daskxml.worker.training_worker import TrainingWorker

parse_bytes(b"0 1:1\n", Dialect())
for values in ({}, {"model": {"loss": "sigmoid"}, "optimizer": {"name": "adam"}}):
    config = load_run_config({"training": {"epochs": 1}, "strategy": {"batch_max": 8}, **values})
    facts = DataFacts(spec=config.model_spec(9, 5), rows=8, stream_rows=(8,), row_nonzeros=2)
    worker = TrainingWorker(WorkerSettings.of(config, facts, WorkerSlot()))
    warm_up(worker.replica, worker.settings)
    worker.initialize()
    worker.squared_norm()
