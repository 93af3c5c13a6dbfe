import math

import numpy as np
import pytest

from daskxml.core.errors import ConfigError
from daskxml.metrics import propensities


def test_the_formula_worked_out_by_hand() -> None:
    # N = e**3 (20.0855 rows, so take 20): C = (log 20 - 1) * 4**0.5 with a = 0.5, b = 3.
    # n = 1: 1 + C / sqrt(4) = 1 + (log 20 - 1) = log 20.
    # n = 6: 1 + C / sqrt(9) = 1 + (log 20 - 1) * 2 / 3.
    found = propensities(np.array([1, 6]), rows=20, a=0.5, b=3.0)
    expected = [math.log(20), 1 + (math.log(20) - 1) * 2 / 3]
    np.testing.assert_allclose(found, expected, rtol=1e-15)
    assert found.dtype == np.float64


def test_a_rare_label_counts_more_and_none_less_than_one() -> None:
    found = propensities(np.array([0, 1, 10, 100, 1000]), rows=1000)
    assert (np.diff(found) < 0).all()
    assert (found > 1).all()


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_with_less_than_e_rows_every_label_counts_one(rows: int) -> None:
    np.testing.assert_array_equal(propensities(np.array([0, 1, 2]), rows), np.ones(3))


@pytest.mark.parametrize(("a", "b"), [(0.0, 1.0), (0.5, -1.0), (math.nan, 1.0), (0.5, math.inf)])
def test_constants_that_are_not_positive_are_refused(a: float, b: float) -> None:
    with pytest.raises(ConfigError, match=r"propensity_[ab] = .*positive"):
        propensities(np.array([1]), 10, a, b)
