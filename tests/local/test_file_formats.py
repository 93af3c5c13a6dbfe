"""A model does not depend on the kind of file that its rows come from."""

import numpy as np
import pytest

from daskxml.api.in_process import train_here
from daskxml.core.errors import InputError
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.models.rows import evaluate_partitions, read_rows
from harness.table_files import WRITERS, Rows, as_text

SPEC = SyntheticSpec(rows=200, test_rows=40, features=60, labels=9, seed=3)
RUN = {
    "model": {"hidden": [8]},
    "strategy": {"batch_max": 32, "megabatch_batches": 4},
    "training": {"epochs": 2},
    "data": {"features": 60, "labels": 9, "feature_base": 0},
}


def listed(part) -> Rows:
    rows = []
    for row in range(part.rows):
        one, other = (slice(*csr.indptr[row : row + 2]) for csr in (part.features, part.labels))
        values = part.features.data[one].tolist()
        rows.append(
            (part.labels.indices[other].tolist(), part.features.indices[one].tolist(), values)
        )
    return rows


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, (train, test) = tmp_path_factory.mktemp("rows"), generate(SPEC)
    for part, rows in (("train", listed(train)), ("test", listed(test))):
        (folder / part).mkdir()
        (folder / part / "rows.svm").write_text(as_text(rows))
        for name, write in WRITERS.items():
            write(folder / part / name, rows)
    return folder


def trained(files, name):
    run = train_here(RUN, train=str(files / "train" / name), test=str(files / "test" / name))
    assert run.metrics["P@1"] > 0.1
    return run


@pytest.fixture(scope="module")
def expected(files):
    return trained(files, "rows.svm")


def test_a_model_knows_the_columns_of_a_dense_table_by_name(tmp_path) -> None:
    """Whatever their order is: of test rows, of files to score, and of data frames."""
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame(np.random.default_rng(0).random((300, 3)), columns=["a", "b", "c"])
    labels = table.to_numpy().argmax(axis=1)
    table.assign(labels=labels).to_csv(tmp_path / "train.csv", index=False)
    turned = table[["c", "a", "b"]]
    turned.assign(labels=labels).to_csv(tmp_path / "test.csv", index=False)
    run = train_here(
        "tree", train=str(tmp_path / "train.csv"), test=str(tmp_path / "test.csv"),
        overrides={"training.trees": 1, "data.normalize": "none"},
    )  # fmt: skip
    model = run.model
    assert model.header.feature_names == ("a", "b", "c")
    assert run.metrics["P@1"] > 0.85
    (tmp_path / "names.txt").write_text("b\nc\na\n")  # another order, which ids have then
    named = train_here(
        "tree", train=str(tmp_path / "train.csv"), test=str(tmp_path / "test.csv"),
        overrides={"training.trees": 1, "data.normalize": "none",
                   "data.feature_names": str(tmp_path / "names.txt")},
    )  # fmt: skip
    assert named.model.header.feature_names == ("b", "c", "a")
    assert named.metrics["P@1"] > 0.85
    rows = read_rows(model, [str(tmp_path / "test.csv")])
    assert evaluate_partitions(model, rows).result()["P@1"] == run.metrics["P@1"]
    assert (model.predict(turned) != model.predict(table.to_numpy())).nnz == 0
    with pytest.raises(InputError, match="X lacks the column 'b'"):
        model.predict(table[["a", "c"]])
    with pytest.raises(InputError, match="X has, beside the model's features, the column 'd'"):
        model.predict(table.assign(d=1.0))


@pytest.mark.parametrize("name", WRITERS)
def test_the_model_is_that_of_the_text(files, expected, name) -> None:
    run = trained(files, name)
    assert run.metrics == expected.metrics
    for key, array in expected.model.parameters.items():
        np.testing.assert_array_equal(run.model.parameters[key], array)
