"""daskxml: adaptive training of sparse extreme multi-label classifiers on a Dask cluster.

>>> import daskxml
>>> sorted(daskxml.__all__)[:3]
['ClusterError', 'ConfigError', 'DaskxmlError']
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from daskxml._version import __version__
from daskxml.errors import (
    ClusterError,
    ConfigError,
    DaskxmlError,
    InputError,
    ModelError,
    TrainingError,
)

if TYPE_CHECKING:
    from daskxml.model.trained import Model
    from daskxml.runtime.client import load, train
    from daskxml.runtime.matrices import Matrices
    from daskxml.simulator.entry import simulate
    from daskxml.training.run import Run

__all__ = [
    "ClusterError",
    "ConfigError",
    "DaskxmlError",
    "InputError",
    "Matrices",
    "Model",
    "ModelError",
    "Run",
    "TrainingError",
    "__version__",
    "load",
    "simulate",
    "train",
]

# Loaded on first use: `import daskxml` must cost little and load neither Dask nor CuPy.
_HOMES = {
    "Matrices": "daskxml.runtime.matrices",
    "Model": "daskxml.model.trained",
    "Run": "daskxml.training.run",
    "load": "daskxml.runtime.client",
    "simulate": "daskxml.simulator.entry",
    "train": "daskxml.runtime.client",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
