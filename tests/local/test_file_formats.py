"""A model does not depend on the kind of file that its rows come from."""

import numpy as np
import pytest

from daskxml.api.in_process import train_here
from daskxml.data.synthetic import SyntheticSpec, generate
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


@pytest.mark.parametrize("name", WRITERS)
def test_the_model_is_that_of_the_text(files, expected, name) -> None:
    run = trained(files, name)
    assert run.metrics == expected.metrics
    for key, array in expected.model.parameters.items():
        np.testing.assert_array_equal(run.model.parameters[key], array)
