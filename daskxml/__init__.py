"""daskxml: adaptive training of sparse extreme multi-label classifiers on a Dask cluster.

>>> import daskxml
>>> sorted(daskxml.__all__)[:3]
['ConfigError', 'DaskXMLClassifier', 'DaskxmlError']
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from daskxml._version import __version__ as __version__
from daskxml.core.errors import ConfigError as ConfigError
from daskxml.core.errors import DaskxmlError as DaskxmlError
from daskxml.core.errors import InputError as InputError
from daskxml.core.errors import needing
from daskxml.core.files import keep_private

if TYPE_CHECKING:
    from daskxml.api.estimators.classifier import XMLClassifier as XMLClassifier
    from daskxml.api.estimators.dask_classifier import DaskXMLClassifier as DaskXMLClassifier
    from daskxml.api.estimators.settings import make_scorer as make_scorer
    from daskxml.api.in_process import simulate as simulate
    from daskxml.api.on_cluster import launch as launch
    from daskxml.api.pipeline import Pipeline as Pipeline
    from daskxml.api.predict import predict as predict
    from daskxml.api.run import Matrices as Matrices
    from daskxml.api.run import Run as Run
    from daskxml.api.runs import attach as attach
    from daskxml.api.runs import runs as runs
    from daskxml.api.train import train as train
    from daskxml.models.mix.mixing import mix as mix
    from daskxml.models.trained import Model as Model
    from daskxml.models.trained import load as load
    from daskxml.records.verification import verify as verify
    from daskxml.session.commands import STOP as STOP

keep_private()  # before anything loads Numba

# Loaded on first use: `import daskxml` must cost little, and load neither Dask nor CuPy nor
# scikit-learn.
_HOMES = {
    "STOP": "daskxml.session.commands",
    "DaskXMLClassifier": "daskxml.api.estimators.dask_classifier",
    "Matrices": "daskxml.api.run",
    "Model": "daskxml.models.trained",
    "Pipeline": "daskxml.api.pipeline",
    "Run": "daskxml.api.run",
    "XMLClassifier": "daskxml.api.estimators.classifier",
    "attach": "daskxml.api.runs",
    "launch": "daskxml.api.on_cluster",
    "load": "daskxml.models.trained",
    "make_scorer": "daskxml.api.estimators.settings",
    "mix": "daskxml.models.mix.mixing",
    "predict": "daskxml.api.predict",
    "runs": "daskxml.api.runs",
    "simulate": "daskxml.api.in_process",
    "train": "daskxml.api.train",
    "verify": "daskxml.records.verification",
}

if not TYPE_CHECKING:  # which takes the names that are imported above
    __all__ = ["ConfigError", "DaskxmlError", "InputError", *_HOMES]

# Names of earlier versions, and what takes their place.
_GONE = {
    "ClusterError": "daskxml.core.errors.ClusterError",
    "ModelError": "daskxml.core.errors.ModelError",
    "Predicted": "daskxml.api.prediction_files.Predicted",
    "RunRecord": "the handles that daskxml.runs and daskxml.attach return",
    "SearchResult": "Optuna's study: docs/examples/tuning.py",
    "TrainingError": "daskxml.core.errors.TrainingError",
    "Verification": "daskxml.records.verification.Verification",
    "calibrate": "Model.calibrate",
    "compress": "Model.compress",
    "export_onnx": "the arrays themselves: docs/examples/read_model.py",
    "index": "Model.compress(bits=8)",
    "search": "Optuna: docs/examples/tuning.py",
    "stop": "daskxml.attach(run).stop()",
    "vectorize": "Pipeline.vectorize(Pipeline.read_texts(documents))",
}


def __getattr__(name: str) -> Any:
    if name in _GONE:
        raise AttributeError(f"daskxml.{name} has gone; take {_GONE[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        raise needing(f"daskxml.{name}", error) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
