"""Loggers: a run's figures in TensorBoard, MLflow or Weights & Biases, each an optional extra.

One is named ``tensorboard:DIR``, ``mlflow:URI`` or ``wandb:PROJECT``; what follows the colon may be
left out. Its package is imported only then. Anything else with the methods of `Logger` will do.
"""

from daskxml.loggers.choosing import make_logger
from daskxml.loggers.listening import listening
from daskxml.loggers.protocol import Logger, RunFacts

__all__ = ["Logger", "RunFacts", "listening", "make_logger"]
