"""Optimizers: how a gradient changes the parameters, and the learning rate during a run."""

from daskxml.optim.config import OptimizerConfig, ScheduleConfig
from daskxml.optim.optimizer import GradientBuffer, Optimizer
from daskxml.optim.rules import OPTIMIZERS

__all__ = ["OPTIMIZERS", "GradientBuffer", "Optimizer", "OptimizerConfig", "ScheduleConfig"]
