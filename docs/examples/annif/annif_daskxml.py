"""Label trees as a backend of Annif (https://annif.org), fitted and ranked in Annif's own process.

    pip install . -r docs/examples/annif/requirements.txt  # in a clone of the repository
    export PYTHONPATH=docs/examples/annif ANNIF_CONFIG=annif_daskxml.Config

Then every command of Annif knows the backend, `annif run` too: Annif 1.4 has no plugins, but loads
the class of its configuration by name. A project has the parameters of Annif's omikuji backend for
its words; `run_file`, one of daskxml's for label trees (`best`, `tree`) or a path; and any setting
of a run file by its name with a point, also as `annif train -b daskxml.model.cost=0.5`:

    [tags-daskxml]
    language = en
    vocab = tags
    analyzer = snowball(english)
    backend = daskxml
    min_df = 2
    training.trees = 2

Rows are made by Annif's TF-IDF, not by daskxml's reader of texts: an analyzer belongs to a language
and is a function, which a model of daskxml does not store, and other backends get equal rows. The
model is one file beside the vectorizer. `annif hyperopt` looks for `model.cost` and the number of
trees, and needs a project that has been trained. `compare.py` measures all beside omikuji.
"""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import annif.backend
import annif.default_config
import numpy as np
import scipy.sparse as sp
from annif.backend import hyperopt, mixins
from annif.eval import EvaluationBatch
from annif.exception import ConfigurationException, NotInitializedException, NotSupportedException
from annif.suggestion import SubjectSuggestion, SuggestionBatch

import daskxml


class DaskxmlBackend(mixins.TfidfVectorizerMixin, hyperopt.AnnifHyperoptBackend):
    """Label trees."""

    name = "daskxml"
    DEFAULT_PARAMETERS: ClassVar = {"min_df": 1, "ngram": 1, "run_file": "best"}
    MODEL_FILE = "daskxml-model.zip"
    TRAIN_FILES = ("daskxml-train-rows.npz", "daskxml-train-labels.npz")
    _model: daskxml.Model | None = None

    def _paths(self, *names: str) -> list[Path]:
        return [Path(self.datadir) / name for name in names]

    def initialize(self, parallel: bool = False) -> None:
        """Load vectorizer and model; one of several processes ranks on one thread."""
        self.initialize_vectorizer()
        (path,) = self._paths(self.MODEL_FILE)
        if self._model is None and not path.exists():
            raise NotInitializedException(f"model {path} not found", backend_id=self.backend_id)
        self._model = self._model or daskxml.load(path, threads=int(parallel))

    def _train(self, corpus: Any, params: dict[str, Any], jobs: int = 0) -> None:
        if corpus != "cached":
            if corpus.is_empty():
                raise NotSupportedException("Cannot train daskxml project with no documents")
            self._keep_rows(corpus, params)
        self._model = self.fit(*self.training_rows(), params, jobs)
        self._model.save(*self._paths(self.MODEL_FILE), overwrite=True)

    def _keep_rows(self, corpus: Any, params: dict[str, Any]) -> None:
        """Write the training rows for `training_rows`: TF-IDF, and an indicator of subjects."""
        words = {"min_df": int(params["min_df"]), "ngram_range": (1, int(params["ngram"]))}
        words["tokenizer"] = self.project.analyzer.tokenize_words
        X = self.create_vectorizer((doc.text for doc in corpus.documents), words)
        subjects = [list(doc.subject_set) for doc in corpus.documents]
        ids, ends = list(chain(*subjects)), np.cumsum([0, *map(len, subjects)])
        Y = sp.csr_matrix((np.ones(len(ids)), ids, ends), (X.shape[0], len(self.project.subjects)))
        for path, matrix in zip(self._paths(*self.TRAIN_FILES), (X, Y), strict=True):
            sp.save_npz(path, matrix)

    def training_rows(self) -> tuple[sp.csr_matrix, sp.csr_matrix]:
        """Return X and Y of the last training from documents."""
        rows, labels = map(sp.load_npz, self._paths(*self.TRAIN_FILES))
        return rows, labels

    def fit(self, X: Any, Y: Any, params: dict[str, Any], jobs: int) -> daskxml.Model:
        """Train in this process, on ``jobs`` threads; 0: on all cores."""
        settings = [f"{name}={value}" for name, value in params.items() if "." in name]
        settings += ["cluster.device=cpu", f"cluster.threads={jobs}"]
        options = {"train": (X, Y), "overrides": settings, "on_event": self._tell}
        try:
            return daskxml.train(params["run_file"], **options).model
        except daskxml.ConfigError as error:
            project = self.project.project_id
            raise ConfigurationException(str(error), project_id=project) from error

    def _tell(self, event: dict[str, Any]) -> None:
        if event["kind"] == "compiling":  # which a new installation does once
            self.info(event["text"])

    def rank(self, model: daskxml.Model, rows: Any, limit: int) -> SuggestionBatch:
        """Return the best subjects of each row."""
        found = model.predict_top_k(rows, limit, rank_empty=False)
        suggestions = [map(SubjectSuggestion, *row) for row in zip(*found, strict=True)]
        return SuggestionBatch.from_sequence(suggestions, self.project.subjects)

    def _suggest_batch(self, documents: list[Any], params: dict[str, Any]) -> SuggestionBatch:
        rows = self.vectorizer.transform([doc.text for doc in documents])
        return self.rank(self._model, rows, int(params["limit"]))

    def get_hp_optimizer(self, corpus: Any, metric: str) -> Optimizer:
        """Return what looks for the best settings; the project has been trained from documents."""
        return Optimizer(self, corpus, metric, Objective)


class Objective(hyperopt.HPObjective):
    """The metric of a model that is fitted to the training rows with a trial's settings."""

    @classmethod
    def objective(cls, trial: Any, args: dict[str, Any]) -> float:
        """Fit, and measure on the validation documents."""
        chosen = {
            "model.cost": trial.suggest_float("model.cost", 0.05, 20.0, log=True),
            "training.trees": trial.suggest_int("training.trees", 1, 4),
        }
        backend, params = args["backend"], args["backend"].params
        model = backend.fit(*args["train"], params | chosen, args["threads"])
        batch = EvaluationBatch(backend.project.subjects)
        found = backend.rank(model, args["rows"], int(params["limit"]))
        batch.evaluate_many(found, args["subjects"])
        return batch.results(metrics=[args["metric"]])[args["metric"]]


class Optimizer(hyperopt.HyperparameterOptimizer):
    """The search that `annif hyperopt` makes."""

    def _prepare(self, n_jobs: int = 1) -> dict[str, Any]:
        backend, documents = self._backend, list(self._corpus.documents)
        backend.initialize_vectorizer()
        return {
            "backend": backend,
            "metric": self._metric,
            "threads": int(n_jobs != 1),
            "train": backend.training_rows(),
            "rows": backend.vectorizer.transform([doc.text for doc in documents]),
            "subjects": [doc.subject_set for doc in documents],
        }

    def _postprocess(self, study: Any) -> hyperopt.HPRecommendation:
        lines = [f"{name}={value}" for name, value in study.best_params.items()]
        return hyperopt.HPRecommendation(lines=lines, score=study.best_value)


class Config(annif.default_config.Config):
    """Annif's own configuration of commands and servers; that it is loaded makes us known."""

    INITIALIZE_PROJECTS = os.environ.get("FLASK_RUN_FROM_CLI") != "true"


annif.backend._backend_fns[DaskxmlBackend.name] = lambda: DaskxmlBackend
