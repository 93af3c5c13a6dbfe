"""Optimizers: how a gradient changes the parameters, and how fast as a run goes on."""

from daskxml.optim.config import OptimizerConfig
from daskxml.optim.gradient import GradientBuffer
from daskxml.optim.optimizer import OPTIMIZERS, Optimizer
from daskxml.optim.schedule import ScheduleConfig

__all__ = ["OPTIMIZERS", "GradientBuffer", "Optimizer", "OptimizerConfig", "ScheduleConfig"]
