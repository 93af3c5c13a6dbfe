import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from daskxml.core.arrays import Csr, Partition
from daskxml.core.errors import ConfigError, InputError, ModelError
from daskxml.data.rows import BLOCK_ROWS, label_csr
from daskxml.metrics import metric_sums
from daskxml.models.rows import evaluate_partitions
from daskxml.models.trained import Model
from harness.naive_metrics import naive_metrics, top_k_dense
from harness.small_models import random_network

FEATURES, HIDDEN, LABELS = 12, 6, 9


def model_of(seed: int = 0, *, normalize: str = "l2", scale: float = 1.0, **spec) -> Model:
    sizes = {"features": FEATURES, "labels": LABELS, "hidden": (HIDDEN,), **spec}
    return random_network(seed, scale=scale, header={"normalize": normalize}, **sizes)


def rows_of(count: int, seed: int = 1) -> sp.csr_matrix:
    return sp.random(count, FEATURES, 0.4, "csr", rng=np.random.default_rng(seed))


def labels_for(count: int) -> sp.csr_matrix:
    drawn = sp.random(count, LABELS, 0.3, "csr", rng=np.random.default_rng(2))
    return sp.csr_matrix(drawn > 0)


def expected_scores(model: Model, X) -> np.ndarray:
    """Probabilities as the formulas read, in float64."""
    dense = np.asarray(X.todense(), dtype=np.float64)
    if model.header.normalize == "l2":
        norms = np.linalg.norm(dense, axis=1, keepdims=True)
        dense = dense / np.where(norms, norms, 1)
    held = model.parameters
    hidden = np.maximum(dense @ held["hidden0.weight"] + held["hidden0.bias"], 0)
    logits = hidden @ held["output.weight"].T + held["output.bias"]
    if model.spec.loss == "sigmoid":
        return 1 / (1 + np.exp(-logits))
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("normalize", ["l2", "none"])
@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_the_ranking_is_that_of_the_formulas(loss: str, normalize: str) -> None:
    model, X = model_of(loss=loss, normalize=normalize), rows_of(30)
    ids, scores = model.predict_top_k(X, 4)
    expected_ids, best = top_k_dense(expected_scores(model, X), 4)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_allclose(scores, best, rtol=1e-5)
    assert (ids.dtype, scores.dtype) == (np.int32, np.float32)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("hidden", [(), (HIDDEN,), (HIDDEN, 4)])
def test_rows_one_at_a_time_are_ranked_as_together(loss: str, hidden: tuple[int, ...]) -> None:
    model, X = model_of(loss=loss, hidden=hidden), rows_of(20)
    together = model.predict_top_k(X, 4)
    each = [model.predict_top_k(row, 4) for row in X]
    np.testing.assert_array_equal(np.concatenate([ids for ids, _ in each]), together[0])
    np.testing.assert_allclose(np.concatenate([s for _, s in each]), together[1], rtol=1e-5)


def test_threads_share_a_model() -> None:
    model, X = model_of(labels=3000), rows_of(64)
    expected = model.predict_top_k(X, 4)[0]

    def rank(call: int) -> bool:
        rows = slice(call % 64, call % 64 + 1 + call % 3)
        return np.array_equal(model.predict_top_k(X[rows], 4)[0], expected[rows])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(rank, range(400)))


FORKED = """
import multiprocessing, sys, warnings
import numpy as np, scipy.sparse as sp
from daskxml.models.trained import Model
warnings.simplefilter("ignore")  # a process with threads forks: it is what this is about
model = Model.load(sys.argv[1], threads=2)
def predict(*given):
    return model.predict_top_k(*given)
X = sp.random(128, model.spec.features, 0.4, "csr", rng=np.random.default_rng(1))
before = model.predict_top_k(X, 5)
with multiprocessing.get_context("fork").Pool(2) as pool:
    after = pool.starmap(predict, [(X, 5)] * 4)
assert all(np.array_equal(ids, before[0]) for ids, _ in after)
assert np.array_equal(model.predict_top_k(X, 5)[0], before[0])
print("done")
"""


def test_a_process_that_has_predicted_may_fork(tmp_path: Path) -> None:
    model_of(labels=20_000).save(tmp_path / "model")
    command = [sys.executable, "-c", FORKED, tmp_path / "model"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "done\n", done.stderr


def test_parameters_are_used_where_they_are(tmp_path: Path) -> None:
    model_of(labels=20_000, hidden=(64,)).save(tmp_path / "model")
    loaded = Model.load(tmp_path / "model", threads=1, verify=False)
    tracemalloc.start()
    loaded.warm_up()
    loaded.predict_top_k(rows_of(10), 4)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 * 2**20  # the parameters take 5 MiB
    assert most < loaded.parameters["output.weight"].nbytes


def test_a_prediction_is_a_canonical_matrix_of_the_same_scores() -> None:
    model, X = model_of(), rows_of(20)
    found = model.predict(X, top_k=3)
    assert isinstance(found, sp.csr_matrix)
    assert found.shape == (20, LABELS)
    assert found.dtype == np.float32
    assert found.has_canonical_format
    assert (np.diff(found.indptr) == 3).all()
    assert (found.data > 0).all()
    ids, scores = model.predict_top_k(X, 3)
    again_ids, again = top_k_dense(found.toarray(), 3)
    np.testing.assert_array_equal(again_ids, ids)
    np.testing.assert_array_equal(again, scores)


def test_no_rows_and_empty_rows() -> None:
    model = model_of()
    assert model.predict(np.zeros((0, FEATURES))).shape == (0, LABELS)
    assert model.evaluate(np.zeros((0, FEATURES)), np.zeros((0, LABELS)))["rows"] == 0
    assert np.isfinite(model.predict(np.zeros((2, FEATURES))).data).all()


def test_the_kind_of_matrix_does_not_matter() -> None:
    model, X = model_of(), rows_of(10)
    expected = model.predict(X)
    for other in (X.tocsc(), sp.coo_array(X), X.toarray(), X.toarray().tolist()):
        assert (model.predict(other) != expected).nnz == 0


def test_many_rows_are_many_blocks_of_the_same() -> None:
    model = model_of()
    rows = rows_of(100)
    X = sp.vstack([rows] * (BLOCK_ROWS // 100 + 2), format="csr")
    ids, scores = model.predict_top_k(X, 2)
    first_ids, first = model.predict_top_k(rows, 2)
    for start in range(0, X.shape[0], 100):
        np.testing.assert_array_equal(ids[start : start + 100], first_ids)
        np.testing.assert_allclose(scores[start : start + 100], first, rtol=1e-5)


@pytest.mark.parametrize(("loss", "scale"), [("softmax", 300.0), ("sigmoid", 30.0)])
def test_scores_tell_the_order_where_probabilities_round_to_equals(loss: str, scale: float) -> None:
    model, X = model_of(3, loss=loss, scale=scale), rows_of(50)
    ids, _ = model.predict_top_k(X, LABELS)
    found = model.predict(X, top_k=LABELS)
    assert found.nnz == 50 * LABELS
    assert ((found.data >= 0) & (found.data <= 1)).all()
    assert len(np.unique(found.data)) < found.nnz  # so many are 0 or 1 that some are equal
    np.testing.assert_array_equal(top_k_dense(found.toarray(), LABELS)[0], ids)


def test_the_metrics_are_those_of_the_written_predictions() -> None:
    model, X, Y = model_of(), rows_of(60), labels_for(60)
    result = model.evaluate(X, Y, k=(1, 3))
    ids, _ = top_k_dense(model.predict(X, top_k=3).toarray(), 3)
    truth = label_csr(Y, 60, LABELS)
    naive = naive_metrics(ids, truth, model.inverse_propensity, (1, 3))
    assert {key: result[key] for key in naive} == pytest.approx(naive, abs=1e-11)
    assert result["rows"] == 60


def partition_of(X, Y) -> Partition:
    data = X.data.astype(np.float32)
    features = Csr(X.indptr.astype(np.int64), X.indices.astype(np.int32), data, X.shape[1])
    return Partition(features, label_csr(Y, *Y.shape))


def test_a_stream_of_partitions_gives_the_same_bits_as_the_whole() -> None:
    model, X, Y = model_of(), rows_of(60), labels_for(60)
    partition = partition_of(X, Y)
    before = partition.features.data.copy()
    parts = [partition_of(X[start : start + 7], Y[start : start + 7]) for start in range(0, 60, 7)]
    sums = evaluate_partitions(model, parts, k=(1, 5))
    assert sums.result() == model.evaluate(partition, k=(1, 5)) == model.evaluate(X, Y, (1, 5))
    ids, _ = model.predict_top_k(partition, 5)
    assert sums == metric_sums(ids, partition.labels, model.inverse_propensity, (1, 5))
    np.testing.assert_array_equal(partition.features.data, before)


def test_a_saved_model_predicts_the_same(tmp_path: Path) -> None:
    model, X = model_of(), rows_of(10)
    model.save(tmp_path / "model")
    loaded = Model.load(tmp_path / "model", threads=1)
    assert loaded.header == model.header
    assert loaded.spec == model.spec
    np.testing.assert_array_equal(loaded.inverse_propensity, model.inverse_propensity)
    assert (loaded.predict(X) != model.predict(X)).nnz == 0
    with pytest.raises(ModelError, match="already"):
        loaded.save(tmp_path / "model")
    loaded.save(tmp_path / "model", overwrite=True)  # over the file that it is mapped from
    assert (Model.load(tmp_path / "model").predict(X, 1) != model.predict(X, 1)).nnz == 0


def test_it_says_what_it_is() -> None:
    assert repr(model_of()) == "<daskxml.Model 12 -> 6 -> 9, softmax>"


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda m: m.predict(np.ones((1, FEATURES + 1))), InputError),
        (lambda m: m.predict(np.full((1, FEATURES), np.nan)), InputError),
        (lambda m: m.predict(rows_of(2), top_k=0), ConfigError),
        (lambda m: m.evaluate(rows_of(2), labels_for(3)), InputError),
        (lambda m: m.evaluate(rows_of(2)), InputError),
        (lambda m: m.evaluate(rows_of(2), labels_for(2), k=(0,)), ConfigError),
        (lambda m: evaluate_partitions(m, [partition_of(rows_of(2), np.ones((2, 3)))]), InputError),
    ],
)
def test_what_does_not_fit_is_refused(call, error) -> None:
    with pytest.raises(error):
        call(model_of())
