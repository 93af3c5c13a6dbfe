"""Estimators on disk, ``estimator.json`` beside a model, and models to continue from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from daskxml.api.estimators.labels import LabelSet
from daskxml.core.errors import ConfigError, ModelError
from daskxml.core.files import replacing
from daskxml.core.text import parse_json
from daskxml.models.trained import Model

ESTIMATOR_FILE = "estimator.json"


def estimator_text(params: Mapping[str, Any], labels: LabelSet) -> str:
    """Return an estimator's parameters and labels as JSON.

    Raises
    ------
    ConfigError
        If a parameter is no plain value.
    """
    stored = {
        "params": params,
        "form": labels.form,
        "dtype": str(labels.dtype),
        "classes": labels.classes.tolist(),
        "classes_dtype": str(labels.classes.dtype),
    }
    try:
        return json.dumps(stored, indent=1)
    except TypeError as error:
        raise ConfigError(f"a parameter cannot be stored: {error}; use pickle") from error


def write_estimator(directory: str | Path, text: str) -> None:
    """Write what `estimator_text` returned beside the model."""
    with replacing(Path(directory) / ESTIMATOR_FILE) as partial:
        partial.write_text(text, encoding="utf-8")


def read_estimator(directory: str | Path, model: Model) -> tuple[dict[str, Any], LabelSet]:
    """Return parameters and labels; those of a model alone where no estimator was stored.

    Raises
    ------
    ModelError
        If the file is damaged.
    """
    path = Path(directory) / ESTIMATOR_FILE
    if not path.exists():
        return {}, known_labels(model)
    try:
        stored = parse_json(path.read_text(encoding="utf-8"))
        classes = np.array(stored["classes"], np.dtype(stored["classes_dtype"]))
        return dict(stored["params"]), LabelSet(stored["form"], classes, stored["dtype"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: damaged ({error!r}); save the estimator again") from error


def as_model(given: Any) -> Model:
    """Return the model of an estimator, of a directory, or itself."""
    if isinstance(given, Model):
        return given
    if isinstance(given, str | Path):
        return Model.load(given)
    if not hasattr(given, "model_"):
        raise ConfigError("model: give a fitted XMLClassifier, a daskxml.Model or a directory")
    return given.model_


def known_labels(given: Any) -> LabelSet:
    """Return the labels of what `as_model` takes."""
    if hasattr(given, "labels_"):
        return given.labels_
    model = as_model(given)
    if model.header.label_names:
        return LabelSet("lists", np.array(model.header.label_names))
    return LabelSet("sparse", np.arange(model.spec.labels))
