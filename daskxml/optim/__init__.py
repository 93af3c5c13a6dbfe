"""Optimizers: how a gradient changes the parameters."""

from daskxml.optim.config import OptimizerConfig
from daskxml.optim.optimizer import OPTIMIZERS, Optimizer, make_optimizer

__all__ = ["OPTIMIZERS", "Optimizer", "OptimizerConfig", "make_optimizer"]
