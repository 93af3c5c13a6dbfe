"""What a program that calls daskxml keeps: its log, its settings, its ports, its types."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

import daskxml
from daskxml.core.hardware import usable_cores

HOST = """
import logging
import multiprocessing.forkserver
import os

heard = []


class Heard(logging.Handler):
    def emit(self, record):
        heard.append(record.getMessage())


logging.basicConfig(level=logging.INFO, handlers=[Heard()])  # before Dask, which respects it

import dask
import distributed
import numpy as np
import psutil
import scipy.linalg
import sklearn  # which sets a variable
import threadpoolctl

import daskxml


def state():
    libraries = [lib for lib in threadpoolctl.threadpool_info() if lib["user_api"] == "blas"]
    pools = {library["filepath"]: library["num_threads"] for library in libraries}
    server, log = multiprocessing.forkserver._forkserver, logging.getLogger("distributed")
    method = dask.config.get("distributed.worker.multiprocessing-method")
    own = getattr(distributed.utils, "_forkserver_preload_set")
    variables = {name: value for name, value in os.environ.items() if "DASK" not in name}
    logged = log.propagate, log.level, len(log.handlers)
    return pools, server._preload_modules, own, method, variables, *logged


def event(event):
    global during
    if event["kind"] == "started":
        ports = {each.laddr.port for each in psutil.Process().net_connections()}
        during = 8787 in ports, event["dashboard"]


if __name__ == "__main__":
    threadpoolctl.threadpool_limits(2)
    before = state()
    X, Y = np.eye(64), np.eye(64)
    settings = {"model.hidden": [4], "training.epochs": 1, "cluster.device": "cpu"}
    run = daskxml.train(
        "network", train=(X, Y), workers=2, overrides=settings, on_event=event
    )
    run.model.predict(X)
    estimator = daskxml.XMLClassifier("network", hidden=4, epochs=1).fit(X, Y)
    estimator.predict_proba(X)
    assert state() == before, (state(), before)
    assert not heard, heard
    assert during == (False, ""), during
"""


@pytest.mark.slow
def test_a_host_program_is_as_it_was_and_hears_nothing(tmp_path):
    script = tmp_path / "host.py"
    script.write_text(HOST)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module", params=["trees", "network"])
def fitted(request):
    X, Y = sp.csr_matrix(np.eye(24)), sp.csr_matrix(np.kron(np.eye(6), np.ones((4, 1))))
    given = {"network": {"run_file": "network", "hidden": 4, "epochs": 30}}
    return daskxml.XMLClassifier(**given.get(request.param, {})).fit(X, Y)


def test_matrices_give_matrices_and_arrays_give_arrays(fitted):
    X = np.eye(24)
    for make in (sp.csr_matrix, sp.csr_array):
        found = [fitted.predict(make(X)), fitted.predict_proba(make(X), top_k=2),
                 fitted.model_.predict(make(X))]  # fmt: skip
        if not isinstance(every := fitted.predict_proba(make(X)), np.ndarray):
            found.append(every)
        assert {type(each) for each in found} == {make}


def test_a_row_without_features_gets_no_labels(fitted):
    X = sp.csr_matrix(np.eye(24))
    X.data[-1] = 0.0  # a zero that is stored is no feature
    model = fitted.model_
    assert [len(row) for row in fitted.predict_labels(X, k=2)] == [2] * 23 + [0]
    assert [len(row) for row in model.predict_labels(X, k=2)] == [2] * 23 + [0]
    assert model.predict(X, top_k=2).getnnz(axis=1).tolist() == [2] * 23 + [0]
    assert fitted.predict(X)[-1].nnz == 0
    assert (model.choose_together(X)[0][-1] == -1).all()
    assert (model.choose(X)[0][-1] == -1).all()
    assert (model.predict_top_k(X, 2)[0] >= 0).all()  # metrics still rank it


def test_load_has_what_model_load_has(fitted, tmp_path):
    fitted.model_.save(tmp_path / "model")
    assert daskxml.load(tmp_path / "model", threads=1, verify=False).threads == 1


def test_features_have_the_names_that_are_given(fitted):
    names = [f"word {number}" for number in range(24)]
    label = fitted.classes_[2]
    ((best, _), *_) = fitted.explain(np.eye(24)[8:9], label, names=names)[0]
    assert best == "word 8"
    with pytest.raises(daskxml.ConfigError, match="3 names for 24 features"):
        fitted.explain(np.eye(24)[:1], label, names=names[:3])


def test_n_jobs_are_the_cores_of_a_fit_and_of_its_predictions():
    X, Y = np.eye(12), np.eye(12, dtype=int)
    assert daskxml.XMLClassifier(n_jobs=1).fit(X, Y).model_.threads == 1
    assert daskxml.XMLClassifier(n_jobs=-1).fit(X, Y).model_.threads == usable_cores()
    with pytest.raises(daskxml.ConfigError, match=r"^n_jobs = 'x': must be an integer"):
        daskxml.XMLClassifier(n_jobs="x").fit(X, Y)
