import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from daskxml.core.arrays import Csr
from daskxml.core.errors import ConfigError, InputError
from daskxml.metrics import MetricSums, metric_sums, propensities
from harness.naive_metrics import naive_metrics, top_k_dense


def labels_of(rows: list[list[int]], columns: int) -> Csr:
    indptr = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    indices = np.array([label for row in rows for label in row], dtype=np.int32)
    return Csr(indptr, indices, None, columns)


# Three rows, four labels, k = 1 and 3, inverse propensities q = 1, 2, 4, 8.
#
#   row 0: true {0, 3}, predicted 3, 1, 0   hits at places 1 and 3
#   row 1: true {1},    predicted 0, 1, 2   hit at place 2
#   row 2: true {},     predicted 0, 1, 2   nothing to hit
TRUTH = labels_of([[0, 3], [1], []], columns=4)
IDS = np.array([[3, 1, 0], [0, 1, 2], [0, 1, 2]], dtype=np.int32)
WEIGHTS = np.array([1.0, 2.0, 4.0, 8.0])
# Discounts 1 / log2(2, 3, 4) = 1, d, 1/2, so D(1) = 1, D(2) = 1 + d.
D2 = 1 / math.log2(3)
EXPECTED = {
    "P@1": 1 / 3,  # 1, 0 and 0 hits
    "P@3": (2 / 3 + 1 / 3) / 3,
    "nDCG@1": 1 / 3,
    "nDCG@3": (1.5 / (1 + D2) + D2) / 3,
    "PSP@1": 8 / (8 + 2),  # attained 8, 0, 0; attainable 8, 2, 0
    "PSP@3": (8 + 1 + 2) / (8 + 1 + 2),  # everything was found
    "PSnDCG@1": 8 / (8 + 2),
    "PSnDCG@3": (8.5 / (1 + D2) + 2 * D2) / ((8 + D2) / (1 + D2) + 2),
    "recall@1": (1 / 2) / 3,
    "recall@3": (1 + 1) / 3,
    "rows": 3,
    "rows_without_labels": 1,
}


def test_values_worked_out_by_hand() -> None:
    result = metric_sums(IDS, TRUTH, WEIGHTS, ks=(1, 3)).result()
    assert list(result) == list(EXPECTED)
    assert result == pytest.approx(EXPECTED, abs=1e-12)
    assert result["P@1"] == 1 / 3  # hits are whole: no rounding at all


def test_the_naive_twin_agrees_with_the_hand() -> None:
    naive = naive_metrics(IDS, TRUTH, WEIGHTS, (1, 3))
    assert naive == pytest.approx({key: EXPECTED[key] for key in naive}, abs=1e-15)


def test_rows_without_labels_only_give_zeros() -> None:
    result = metric_sums(IDS, labels_of([[], [], []], 4), WEIGHTS, (1, 3)).result()
    counts = (result.pop("rows"), result.pop("rows_without_labels"))
    assert counts == (3, 3)
    assert set(result.values()) == {0.0}


@st.composite
def rankings(draw: st.DrawFn) -> tuple[np.ndarray, Csr, np.ndarray, list[int]]:
    columns = draw(st.integers(1, 12))
    rows = draw(st.integers(0, 8))
    k = draw(st.integers(1, 9))
    label_sets = st.sets(st.integers(0, columns - 1)).map(sorted)
    truth = labels_of(draw(st.lists(label_sets, min_size=rows, max_size=rows)), columns)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    ids, scores = top_k_dense(rng.integers(0, 4, (rows, columns)).astype(float), k)
    ids[scores == 0] = -1  # fewer predictions than k, as a sparse matrix holds them
    counts = rng.integers(0, 50, columns)
    ks = draw(st.sets(st.integers(1, k), min_size=1).map(sorted))
    return ids, truth, propensities(counts, rows=1000), ks


@settings(max_examples=80, deadline=None)
@given(rankings())
def test_the_kernel_equals_its_naive_twin(case: tuple) -> None:
    result = metric_sums(*case).result()
    naive = naive_metrics(*case)
    assert {key: result[key] for key in naive} == pytest.approx(naive, abs=2**-39)
    assert all(0 <= value <= 1 + 2**-39 for value in (result[key] for key in naive))


@settings(max_examples=100, deadline=None)
@given(rankings(), st.data())
def test_any_split_and_order_of_the_rows_gives_the_same_bits(case: tuple, data) -> None:
    ids, truth, weights, ks = case
    order = data.draw(st.permutations(range(len(ids))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4)))
    bounds = zip([0, *cuts], [*cuts, len(ids)], strict=True)
    parts = [order[start:stop] for start, stop in bounds]
    sums = [metric_sums(ids[part], take(truth, part), weights, ks) for part in parts]
    assert sum(sums, MetricSums.zero(ks)) == metric_sums(ids, truth, weights, ks)


def take(labels: Csr, rows: list[int]) -> Csr:
    spans = [labels.indices[labels.indptr[r] : labels.indptr[r + 1]].tolist() for r in rows]
    return labels_of(spans, labels.columns)


def test_large_sums_do_not_overflow() -> None:
    rows = 200_000  # 200,000 * 1e6 * 2**40 is 2**77
    truth = Csr(np.arange(rows + 1), np.zeros(rows, np.int32), None, columns=1)
    sums = metric_sums(np.zeros((rows, 1), np.int32), truth, np.array([1e6]), (1,))
    assert sums.attained == (rows * 10**6 << 40,)
    assert sums.result()["PSP@1"] == 1.0


def test_fewer_predictions_than_ranks_are_none_for_the_others() -> None:
    padded = np.pad(IDS, ((0, 0), (0, 2)), constant_values=-1)
    assert metric_sums(IDS, TRUTH, WEIGHTS, (1, 5)) == metric_sums(padded, TRUTH, WEIGHTS, (1, 5))


@pytest.mark.parametrize(
    ("ids", "weights", "ks", "error"),
    [
        (IDS[:2], WEIGHTS, (1,), InputError),
        (IDS[0], WEIGHTS, (1,), InputError),
        (IDS, WEIGHTS[:3], (1,), InputError),
        (IDS, WEIGHTS * np.nan, (1,), ConfigError),
        (IDS, WEIGHTS * 2.0**20, (1,), ConfigError),
        (IDS, -WEIGHTS, (1,), ConfigError),
        (IDS, WEIGHTS, (), ConfigError),
    ],
)
def test_what_does_not_fit_is_refused(ids, weights, ks, error) -> None:
    with pytest.raises(error):
        metric_sums(ids, TRUTH, weights, ks)


def test_a_label_id_out_of_range_is_refused() -> None:
    with pytest.raises(InputError, match=r"0\.\.3"):
        metric_sums(IDS, labels_of([[4], [], []], 4), WEIGHTS, (1,))


def test_napkinxc_finds_the_same() -> None:
    peer = pytest.importorskip("napkinxc.metrics", reason="napkinXC is not installed")
    rng = np.random.default_rng(5)
    truth_sets = [sorted(rng.choice(40, rng.integers(0, 7), replace=False)) for _ in range(60)]
    truth, k = labels_of(truth_sets, 40), 5
    weights = propensities(rng.integers(0, 99, 40), rows=500)
    ids, _ = top_k_dense(rng.random((60, 40)), k)
    result = metric_sums(ids, truth, weights, range(1, k + 1)).result()
    ranked = ids.tolist()
    theirs = {
        "P": peer.precision_at_k(truth_sets, ranked, k),
        "nDCG": peer.ndcg_at_k(truth_sets, ranked, k),
        "recall": peer.recall_at_k(truth_sets, ranked, k),
        "PSP": peer.psprecision_at_k(truth_sets, ranked, weights, k),
        "PSnDCG": peer.psndcg_at_k(truth_sets, ranked, weights, k),
    }
    for name, values in theirs.items():
        ours = [result[f"{name}@{at}"] for at in range(1, k + 1)]
        np.testing.assert_allclose(ours, values, atol=1e-11, err_msg=name)


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
