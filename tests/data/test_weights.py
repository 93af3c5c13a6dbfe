"""Weights of rows: files and arrays of them, and what is refused."""

import numpy as np
import pytest

from daskxml.core.arrays import Partition
from daskxml.core.errors import InputError
from daskxml.data.rows import concatenate, from_scipy, slice_rows, take_rows
from daskxml.data.weights import row_weights
from daskxml.kernels import get_kernels


def test_files_hold_what_arrays_hold(tmp_path):
    weights = np.array([0.5, 0.0, 2.25])
    np.save(tmp_path / "weights.npy", weights)
    (tmp_path / "weights.txt").write_text("0.5\n0\n 2.25")
    for name in ("weights.npy", "weights.txt"):
        found = row_weights(str(tmp_path / name), 3, has_mean_one=False)
        np.testing.assert_array_equal(found, weights)
    assert row_weights(weights, 3, has_mean_one=True).mean() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([1.0, -1.0], "weight of row 1 is -1.0: must be a finite number, at least 0"),
        ([np.nan, 1.0], "weight of row 0 is nan"),
        ([1.0, np.inf], "weight of row 1 is inf"),
        ([1.0, 1e39], "weight of row 1 is 1e.39"),
        ([0.0, 0.0], "all weights are zero"),
        ([1.0], "1 weights for 2 rows: give one for each"),
        ([[1.0, 2.0]], r"weights of shape \(1, 2\)"),
        (["a", "b"], "weights of shape .* and dtype <U1"),
    ],
)
def test_what_is_no_weight_is_refused(given, problem):
    with pytest.raises(InputError, match=problem):
        row_weights(given, 2, has_mean_one=True)


def test_a_bad_file_is_told_with_its_line(tmp_path):
    path = tmp_path / "weights.txt"
    path.write_text("1\nheavy\n")
    with pytest.raises(InputError, match=r"weights.txt:2: 'heavy' is no number"):
        row_weights(str(path), 2, has_mean_one=True)
    with pytest.raises(InputError, match="no such file"):
        row_weights(str(tmp_path / "none.npy"), 2, has_mean_one=True)
    (tmp_path / "bad.npy").write_text("1\n")
    with pytest.raises(InputError, match=r"bad.npy: cannot be read"):
        row_weights(str(tmp_path / "bad.npy"), 2, has_mean_one=True)


def test_weights_go_where_their_rows_go():
    x = from_scipy(np.eye(4))
    part = Partition(x, x, np.float32([1, 2, 3, 4]))
    joined = concatenate([take_rows(part, np.array([3, 0])), slice_rows(part, 1, 3)])
    assert joined.weights.tolist() == [4, 1, 2, 3]
    assert part.nbytes == 2 * x.nbytes + 16
    assert get_kernels("cpu", 1).to_device(part) is part
