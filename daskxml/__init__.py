"""daskxml: adaptive training of sparse extreme multi-label classifiers on a Dask cluster.

>>> import daskxml
>>> sorted(daskxml.__all__)[:3]
['ClusterError', 'ConfigError', 'DaskxmlError']
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from daskxml._version import __version__
from daskxml.core.errors import (
    ClusterError,
    ConfigError,
    DaskxmlError,
    InputError,
    ModelError,
    TrainingError,
)

if TYPE_CHECKING:
    from daskxml.api.run import Matrices, Run
    from daskxml.api.runs import attach, runs, stop
    from daskxml.api.simulate import simulate
    from daskxml.api.train import launch, load, train
    from daskxml.cluster.event_log import RunRecord
    from daskxml.model.trained import Model
    from daskxml.records.verification import Verification, verify

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
    "Verification",
    "__version__",
    "attach",
    "launch",
    "load",
    "runs",
    "simulate",
    "stop",
    "train",
    "verify",
]

# Loaded on first use: `import daskxml` must cost little and load neither Dask nor CuPy.
_HOMES = {
    "Matrices": "daskxml.api.run",
    "Model": "daskxml.model.trained",
    "Run": "daskxml.api.run",
    "RunRecord": "daskxml.cluster.event_log",
    "Verification": "daskxml.records.verification",
    "attach": "daskxml.api.runs",
    "launch": "daskxml.api.train",
    "load": "daskxml.api.train",
    "runs": "daskxml.api.runs",
    "simulate": "daskxml.api.simulate",
    "stop": "daskxml.api.runs",
    "train": "daskxml.api.train",
    "verify": "daskxml.records.verification",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
