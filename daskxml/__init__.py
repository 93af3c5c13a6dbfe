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
    from daskxml.runtime.client import launch, load, train
    from daskxml.runtime.matrices import Matrices
    from daskxml.runtime.records import RunRecord
    from daskxml.runtime.runs import attach, runs, stop
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
    "RunRecord",
    "TrainingError",
    "__version__",
    "attach",
    "launch",
    "load",
    "runs",
    "simulate",
    "stop",
    "train",
]

# Loaded on first use: `import daskxml` must cost little and load neither Dask nor CuPy.
_HOMES = {
    "Matrices": "daskxml.runtime.matrices",
    "Model": "daskxml.model.trained",
    "Run": "daskxml.training.run",
    "RunRecord": "daskxml.runtime.records",
    "attach": "daskxml.runtime.runs",
    "launch": "daskxml.runtime.client",
    "load": "daskxml.runtime.client",
    "runs": "daskxml.runtime.runs",
    "simulate": "daskxml.simulator.entry",
    "stop": "daskxml.runtime.runs",
    "train": "daskxml.runtime.client",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
