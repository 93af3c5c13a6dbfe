"""From what a user types to a logger."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from daskxml.errors import ConfigError
from daskxml.loggers.protocol import Logger

# By name: the package that must be there, and where the logger is.
_LOGGERS = {
    "tensorboard": ("tensorboard", "daskxml.loggers.tensorboard", "TensorBoardLogger"),
    "mlflow": ("mlflow", "daskxml.loggers.mlflow", "MlflowLogger"),
    "wandb": ("wandb", "daskxml.loggers.wandb", "WandbLogger"),
}


def make_logger(text: str) -> Logger:
    """Return the logger that a text names.

    Parameters
    ----------
    text
        ``tensorboard:DIR``, ``mlflow:URI`` or ``wandb:PROJECT``; what follows the colon may be
        left out.

    Raises
    ------
    ConfigError
        If there is no such logger, or its package is not installed: then it names the extra.

    Examples
    --------
    >>> make_logger("paper")
    Traceback (most recent call last):
    daskxml.errors.ConfigError: --log paper: no such logger; there are tensorboard, mlflow, wandb
    """
    name, _, place = text.partition(":")
    if name not in _LOGGERS:
        raise ConfigError(f"--log {text}: no such logger; there are {', '.join(_LOGGERS)}")
    package, module, kind = _LOGGERS[name]
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"--log {name}: {package} is not installed; pip install 'daskxml[{name}]' brings it"
        )
    made: Any = getattr(importlib.import_module(module), kind)
    logger: Logger = made(place)
    return logger
