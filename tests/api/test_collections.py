"""Dask collections as rows: the metrics of the text file, and blocks that stay on the workers."""

import os
import runpy
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import psutil
import pytest
import scipy.sparse as sp
from dask import delayed
from distributed import Client, LocalCluster

import daskxml
from daskxml.api.collections import find_rows
from daskxml.data.rows import concatenate, to_scipy
from daskxml.data.settings import DataSection
from daskxml.data.synthetic import generate
from harness.small_data import SPEC, small_run

RUN = small_run(6, "mirrored", cluster={"threads": 1})
CUTS = (0, 400, 800, 1100, 1500)


@pytest.fixture(scope="module")
def rows() -> tuple[Any, Any]:
    train, _ = generate(SPEC)
    return to_scipy(train.features), to_scipy(train.labels)


@pytest.fixture(scope="module")
def expected(cluster: LocalCluster, data: dict[str, Path]) -> dict[str, float]:
    with Client(cluster) as client:
        run = daskxml.train(RUN, client=client, train=data["train"], test=data["test"])
    return run.metrics


def blocks_of(matrix: Any) -> list[Any]:
    return [delayed(matrix[i:j]) for i, j in pairwise(CUTS)]


def array_of(matrix: Any, kind: Any = None) -> da.Array:
    """A Dask array of blocks of another kind, made on the workers."""
    sizes = np.diff(CUTS)
    blocks = blocks_of(matrix)
    if kind is not None:
        blocks = [delayed(kind)(block) for block in blocks]
    arrays = [
        da.from_delayed(block, (int(size), matrix.shape[1]), matrix.dtype)
        for block, size in zip(blocks, sizes, strict=True)
    ]
    return da.concatenate(arrays)


def dense(block: Any) -> Any:
    return block.toarray()


def coo(block: Any) -> Any:
    import sparse

    return sparse.COO.from_scipy_sparse(block)


def frame(X: Any, Y: Any) -> Any:
    import pandas as pd

    lists = {"indices": (X, X.indices), "values": (X, X.data), "labels": (Y, Y.indices)}
    split = {name: np.split(flat, m.indptr[1:-1]) for name, (m, flat) in lists.items()}
    return pd.DataFrame({name: pd.Series(list(it)) for name, it in split.items()})


def given(kind: str, X: Any, Y: Any, client: Client) -> Any:
    if kind == "arrays":
        return daskxml.Matrices(array_of(X), array_of(Y).rechunk((500, -1)))
    if kind == "dense arrays":
        return daskxml.Matrices(array_of(X, dense).rechunk((700, 100)), array_of(Y, dense))
    if kind == "sparse":
        pytest.importorskip("sparse")
        return daskxml.Matrices(array_of(X, coo), array_of(Y, coo))
    pairs = list(zip(blocks_of(X), blocks_of(Y), strict=True))
    if kind == "delayed":
        return [delayed(tuple)(pair) for pair in pairs]
    if kind == "pairs":
        return pairs
    if kind == "futures":
        return client.compute([delayed(tuple)(pair) for pair in pairs])
    pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    with dask.config.set({"dataframe.convert-string": False}):
        few = frame(X[:2], Y[:2])
        parts = [delayed(few.iloc[:0]), *(delayed(frame)(*pair) for pair in pairs)]
        return dd.from_delayed(parts, meta=few)


def test_lists_that_dask_has_made_texts_are_lists_again(client) -> None:
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    table = pd.DataFrame({"indices": [[0, 2], [1]] * 30, "values": [[1.5, 0.1], [1e-30]] * 30})
    table["labels"] = [[1], []] * 30
    found = find_rows(dd.from_pandas(table, npartitions=2), "train")
    parts = client.gather(found.partitions(client, DataSection(features=3, labels=2)))
    assert to_scipy(concatenate(parts).features).toarray()[:2].tolist() == [
        [1.5, 0.0, np.float32(0.1)], [0.0, np.float32(1e-30), 0.0]
    ]  # fmt: skip
    assert to_scipy(concatenate(parts).labels).toarray()[:2].tolist() == [[0, 1], [0, 0]]
    table["labels"] = [np.array([0, 1])] * 60  # whose texts may be cut
    found = find_rows(dd.from_pandas(table, npartitions=2), "train")
    with pytest.raises(daskxml.InputError, match="'labels' holds a list that Dask has made a text"):
        client.gather(found.partitions(client, DataSection(features=3, labels=2)))


@pytest.mark.parametrize("lazily", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_rows_may_be_a_pair(client, rows, lazily) -> None:
    pair = tuple(map(array_of, rows)) if lazily else rows
    one = {"training.trees": 1}
    run = daskxml.train("tree", client=client, train=pair, test=pair, overrides=one)
    assert run.metrics["rows"] == rows[0].shape[0]


KINDS = ("arrays", "dense arrays", "sparse", "delayed", "pairs", "futures", "frame")


@pytest.mark.parametrize(
    "kind",
    [
        kind
        if kind in ("arrays", "frame", "futures")
        else pytest.param(kind, marks=pytest.mark.slow)
        for kind in KINDS
    ],
)
def test_the_rows_are_those_of_the_matrices_in_their_order(client, rows, kind) -> None:
    found = find_rows(given(kind, *rows, client), "train")
    parts = client.gather(found.partitions(client, DataSection(features=300, labels=60)))
    assert len(parts) > 2
    whole = concatenate(parts)
    for csr, matrix in zip((whole.features, whole.labels), rows, strict=True):
        assert (to_scipy(csr) != matrix).nnz == 0
        assert csr.nonzeros == matrix.nnz


def test_the_metrics_are_those_of_the_text(client, data, rows, expected) -> None:
    collection = given("futures", *rows, client)
    run = daskxml.train(RUN, client=client, train=collection, test=data["test"])
    assert run.metrics == pytest.approx(expected, abs=0.06)  # sums of two workers, in any order
    assert expected["P@1"] > 0.2


@pytest.mark.slow
def test_the_script_of_the_documentation_runs(client, tmp_path) -> None:
    script = Path(__file__).parents[2] / "docs/examples/inputs.py"
    found = runpy.run_path(str(script))["main"](client, tmp_path)
    assert len(found) == 6
    assert min(found.values()) > 0.7  # 83 % of the rows have a label


def many_rows(seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    indptr, labels = np.arange(0, 64 * 10_001, 64), rng.integers(0, 20, 10_000)
    indices = np.tile(np.arange(64, dtype=np.int32) * 15, 10_000)
    X = sp.csr_matrix((rng.random(640_000, np.float32), indices, indptr), shape=(10_000, 1000))
    return X, sp.csr_matrix((np.ones(10_000), labels, np.arange(10_001)), shape=(10_000, 20))


@pytest.mark.slow
def test_the_client_holds_no_rows_and_a_lost_worker_is_made_up_for(client, expected) -> None:
    """Eighteen blocks of five megabytes; `expected` has warmed this process up."""
    pairs = [delayed(many_rows, pure=False)(seed) for seed in range(18)]
    process, held, restarted = psutil.Process(), [], []

    def watch(event: dict[str, Any]) -> None:
        held.append(process.memory_info().rss)
        if event["kind"] == "megabatch" and not restarted:
            worker = sorted(client.scheduler_info()["workers"])[0]
            restarted.append(worker)
            client.run(os._exit, 1, workers=[worker], on_error="ignore", nanny=False)

    first = process.memory_info().rss
    shard = {"data.residency": "shard", "strategy.name": "static"}
    run = daskxml.train(RUN, client=client, train=pairs, on_event=watch, overrides=shard)
    assert restarted
    assert run.reason == "megabatches"
    assert run.model.header.training_rows == 180_000
    data_bytes = 180_000 * 64 * 8
    assert max(held) - first < data_bytes / 10


def test_blocks_that_do_not_fit_are_refused() -> None:
    X, Y = da.ones((6, 3), chunks=(2, 3)), da.ones((6, 2), chunks=(2, 2))
    unknown = X[X[:, 0] > 0]
    cases = {
        "train: X has blocks of unknown sizes": daskxml.Matrices(unknown, Y),
        "train: Y has blocks of unknown sizes": daskxml.Matrices(X, unknown),
        "train: X has 6 rows but Y has 4": daskxml.Matrices(X, Y[:4]),
        "train: Y is no Dask array, but the other is": daskxml.Matrices(X, np.ones((6, 2))),
        "train: Y has 1 dimensions: give a row": daskxml.Matrices(X, Y[:, 0]),
        "train is a Dask array of features only: give daskxml.Matrices": X,
        "train, element 1: is neither delayed nor a future": [delayed(1), "a.txt"],
    }
    for message, rows in cases.items():
        with pytest.raises(daskxml.InputError, match=message) as caught:
            find_rows(rows, "train")
        assert "\n" not in str(caught.value)
    assert find_rows("a.txt", "train") is None
    assert find_rows(["a.txt"], "train") is None
    with pytest.raises(daskxml.ConfigError, match=r"need a cluster: call daskxml"):
        daskxml.simulate(RUN, [1.0], train=daskxml.Matrices(X, Y))


def test_bad_blocks_are_refused_with_their_place(client) -> None:
    X, Y = sp.csr_matrix(np.eye(4)), sp.csr_matrix(np.eye(4))
    nan = sp.csr_matrix(np.diag([1, 1, np.nan, 1]))
    cases: dict[str, Any] = {
        "block 1: X has 4 rows but Y has 3": [delayed((X, Y)), delayed((X, Y[:3]))],
        "block 1: a csr_matrix is no partition: give a pair": [delayed((X, Y)), delayed(X)],
        "block 0: X, row 2: the matrix holds NaN": [delayed((nan, Y))],
        "X, row 6: the matrix holds NaN": daskxml.Matrices(
            da.concatenate([da.from_delayed(delayed(m), (4, 4), float) for m in (X, nan)]),
            da.concatenate([da.from_delayed(delayed(Y), (4, 4), float)] * 2),
        ),
    }
    for message, rows in cases.items():
        with pytest.raises(daskxml.InputError, match=message):
            daskxml.train(RUN, client=client, train=rows)


def test_dense_frames_are_matched_by_the_names_of_their_columns(client) -> None:
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    table = pd.DataFrame(np.random.default_rng(0).random((300, 3)), columns=["a", "b", "c"])
    table["labels"] = table.to_numpy().argmax(axis=1)
    train, test = (
        dd.from_pandas(table[[*columns]], npartitions=2)
        for columns in (("labels", "a", "b", "c"), ("c", "a", "labels", "b"))
    )
    plain = {"training.trees": 1, "data.normalize": "none"}
    run = daskxml.train("tree", client=client, train=train, test=test, overrides=plain)
    assert run.metrics["P@1"] > 0.85
    assert run.model.header.feature_names == ("a", "b", "c")
    rows = test[["c", "a", "b"]]
    found = daskxml.predict(run.model, rows, k=1, client=client).compute()
    assert (found != run.model.predict(table[["a", "b", "c"]], top_k=1)).nnz == 0
    with pytest.raises(daskxml.InputError, match="no column 'b', which is a feature"):
        daskxml.train("tree", client=client, train=train, test=test[["a", "c", "labels"]])


def test_bad_frames_are_refused_with_their_place(client) -> None:
    pd = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    good = pd.DataFrame({"labels": [0, 1, 2], "x": [1.0, 2.0, 3.0]})
    cases = {
        "no column 'labels'; it has 'x'": good[["x"]],
        "partition 1, row 0: 'x' is null": good.assign(x=[1.0, 2.0, None]),
        "partition 0, row 0: 'x' holds 'a', no number": good.assign(x=["a", "b", "c"]),
    }
    for message, table in cases.items():
        with pytest.raises(daskxml.InputError, match=message):
            daskxml.train(RUN, client=client, train=dd.from_pandas(table, npartitions=2))
