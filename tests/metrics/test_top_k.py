import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from daskxml.core.errors import ConfigError
from harness.naive_metrics import top_k_dense


def test_ties_go_to_the_lowest_id_and_missing_places_are_marked() -> None:
    scores = np.array([[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, -0.0, 0.0]])
    ids, best = top_k_dense(scores, 3)
    np.testing.assert_array_equal(ids, [[1, 2, 3], [0, 1, 2]])
    np.testing.assert_array_equal(best, [[3, 3, 2], [0, 0, 0]])
    ids, best = top_k_dense(scores[:, :1], 2)
    np.testing.assert_array_equal(ids, [[0, -1], [0, -1]])
    np.testing.assert_array_equal(best[:, 1], [-np.inf, -np.inf])
    assert ids.dtype == np.int32
    assert best.dtype == np.float32


@settings(max_examples=50, deadline=None)
@given(arrays(np.float32, (3, 6), elements=st.sampled_from([0.0, 0.5, 1.0])), st.integers(1, 8))
def test_it_is_a_sort_by_score_and_then_id(scores: np.ndarray, k: int) -> None:
    ids, _ = top_k_dense(scores, k)
    for row, found in zip(scores, ids, strict=True):
        expected = sorted(range(6), key=lambda label: (-row[label], label))[:k]
        assert found.tolist() == expected + [-1] * (k - len(expected))


def test_k_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="k = 0"):
        top_k_dense(np.zeros((1, 2)), 0)
