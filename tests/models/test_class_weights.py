"""Weights of labels: what each choice gives."""

import numpy as np
import pytest

from daskxml.metrics import propensities
from daskxml.models.class_weights import label_weights

COUNTS = np.array([50, 10, 0, 1])


@pytest.mark.parametrize("choice", ["balanced", "propensity"])
def test_a_label_of_a_row_counts_one_on_average(choice):
    weights = label_weights(choice, COUNTS, propensities(COUNTS, 60))
    assert (weights @ COUNTS) / COUNTS.sum() == pytest.approx(1.0)
    assert weights[0] < weights[1] < weights[3]
    assert weights[2] == 1.0


def test_choices_are_in_proportion():
    inverse = propensities(COUNTS, 60)
    balanced, propensity = (label_weights(it, COUNTS, inverse) for it in ("balanced", "propensity"))
    np.testing.assert_allclose((balanced * COUNTS)[[0, 1, 3]], balanced[3], rtol=1e-6)
    np.testing.assert_allclose(
        (propensity / inverse)[[0, 1]], propensity[3] / inverse[3], rtol=1e-6
    )
    assert label_weights("none", COUNTS, inverse) is None
    assert label_weights({"4": 2.0}, COUNTS, inverse, label_base=1).tolist() == [1, 1, 1, 2]
    assert label_weights((1.0, 2.0, 0.0, 0.5), COUNTS, inverse).tolist() == [1, 2, 0, 0.5]
    assert label_weights("balanced", np.zeros(3, np.int64), np.ones(3)).tolist() == [1, 1, 1]
