"""daskxml: adaptive training of sparse extreme multi-label classifiers on a Dask cluster.

>>> import daskxml
>>> sorted(daskxml.__all__)[:3]
['ClusterError', 'ConfigError', 'DaskXMLClassifier']
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
from daskxml.core.kernel_cache import keep_private

if TYPE_CHECKING:
    from daskxml.api.estimators.classifier import XMLClassifier
    from daskxml.api.estimators.dask_classifier import DaskXMLClassifier
    from daskxml.api.estimators.scorers import make_scorer
    from daskxml.api.pipeline import Pipeline, vectorize
    from daskxml.api.predict import Predicted, predict
    from daskxml.api.run import Matrices, Run
    from daskxml.api.runs import attach, runs, stop
    from daskxml.api.simulate import simulate
    from daskxml.api.train import launch, train
    from daskxml.cluster.event_log import RunRecord
    from daskxml.models.mix.mixing import mix
    from daskxml.models.trained import Model, load
    from daskxml.records.verification import Verification, verify
    from daskxml.session.commands import STOP

keep_private()  # before anything loads Numba

__all__ = [
    "STOP",
    "ClusterError",
    "ConfigError",
    "DaskXMLClassifier",
    "DaskxmlError",
    "InputError",
    "Matrices",
    "Model",
    "ModelError",
    "Pipeline",
    "Predicted",
    "Run",
    "RunRecord",
    "TrainingError",
    "Verification",
    "XMLClassifier",
    "__version__",
    "attach",
    "launch",
    "load",
    "make_scorer",
    "mix",
    "predict",
    "runs",
    "simulate",
    "stop",
    "train",
    "vectorize",
    "verify",
]

# Loaded on first use: `import daskxml` must cost little, and load neither Dask nor CuPy nor
# scikit-learn.
_HOMES = {
    "STOP": "daskxml.session.commands",
    "DaskXMLClassifier": "daskxml.api.estimators.dask_classifier",
    "Matrices": "daskxml.api.run",
    "Model": "daskxml.models.trained",
    "Pipeline": "daskxml.api.pipeline",
    "Predicted": "daskxml.api.predict",
    "Run": "daskxml.api.run",
    "RunRecord": "daskxml.cluster.event_log",
    "XMLClassifier": "daskxml.api.estimators.classifier",
    "Verification": "daskxml.records.verification",
    "attach": "daskxml.api.runs",
    "launch": "daskxml.api.train",
    "load": "daskxml.models.trained",
    "make_scorer": "daskxml.api.estimators.scorers",
    "mix": "daskxml.models.mix.mixing",
    "predict": "daskxml.api.predict",
    "runs": "daskxml.api.runs",
    "simulate": "daskxml.api.simulate",
    "stop": "daskxml.api.runs",
    "train": "daskxml.api.train",
    "vectorize": "daskxml.api.pipeline",
    "verify": "daskxml.records.verification",
}

_EXTRAS = {"sklearn": ("scikit-learn", "sklearn")}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRAS:
            raise
        package, extra = _EXTRAS[missing]
        text = f"daskxml.{name} needs {package}: pip install 'daskxml[{extra}]'"
        raise ModuleNotFoundError(text, name=missing) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
