"""The automatic choice of the cost."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.core.arrays import Partition
from daskxml.core.errors import ConfigError
from daskxml.data.rows import concatenate, from_scipy, slice_rows, take_rows, to_scipy, unit_rows
from daskxml.models.trees.search import (
    COSTS,
    FIRST,
    _precision,
    choose_cost,
    climb,
    first_rows,
    prepare_trees,
    row_keys,
    sample_labels,
    sample_rows,
)
from daskxml.models.trees.spec import TreeSpec
from harness.small_data import random_rows

SPEC = TreeSpec(features=12, labels=30, leaf_labels=8)


def some_part(seed: int, rows: int = 200) -> Partition:
    rng = np.random.default_rng(seed)
    return Partition(random_rows(rng, rows, 12, 5), random_rows(rng, rows, 30, 3, ones=True))


def counts_of(part: Partition) -> np.ndarray:
    return np.bincount(part.labels.indices, minlength=30)


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 99), cut=st.integers(1, 199))
def test_the_choice_does_not_depend_on_how_rows_are_cut(seed: int, cut: int) -> None:
    part = some_part(seed)
    parts = [slice_rows(part, 0, cut), slice_rows(part, cut, 200)]
    one, many = (prepare_trees(p, counts_of(part), SPEC, seed)[0] for p in ([part], parts))
    assert one == many
    assert one.cost in COSTS


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 99))
def test_the_choice_does_not_depend_on_the_order_of_the_rows(seed: int) -> None:
    part = some_part(seed)
    shuffled = take_rows(part, np.random.default_rng(seed).permutation(200))
    parts = slice_rows(shuffled, 0, 90), slice_rows(shuffled, 90, 200)
    labels = np.arange(0, 30, 2)
    samples = [
        first_rows(concatenate([sample_rows(each, labels) for each in cut]))
        for cut in ([part], parts)
    ]
    np.testing.assert_array_equal(*(to_scipy(s.features).toarray() for s in samples))
    np.testing.assert_array_equal(*(to_scipy(s.labels).toarray() for s in samples))


def features_with_labels(rows: int, noise: float, wrong: float) -> Partition:
    """Rows of 60 features, of which 30 say the one label, but for a share that has another."""
    rng = np.random.default_rng(0)
    true = rng.integers(0, 30, rows)
    features = noise * rng.random((rows, 60)) * (rng.random((rows, 60)) < 0.2)
    features[np.arange(rows), true] += 1.0
    labels = np.where(rng.random(rows) < wrong, rng.integers(0, 30, rows), true)
    return Partition(unit_rows(from_scipy(features)), from_scipy(np.eye(30)[labels], ones=True))


@pytest.mark.parametrize(
    ("part", "chosen"),
    [
        (features_with_labels(600, noise=0.5, wrong=0.5), COSTS[:FIRST]),
        (features_with_labels(200, noise=0.5, wrong=0.0), COSTS[FIRST + 1 :]),
    ],
    ids=["wrong labels", "few rows and a rule"],
)
def test_wrong_labels_are_fitted_gently_and_a_rule_closely(
    part: Partition, chosen: tuple[float, ...]
) -> None:
    assert choose_cost([part], replace(SPEC, features=60), 0).cost in chosen


def test_what_is_given_stays() -> None:
    spec = replace(SPEC, cost=0.7, passes=3, value_power=0.9)
    assert prepare_trees([some_part(1)], counts_of(some_part(1)), spec, 0)[0] is spec


@pytest.mark.parametrize("given", [{}, {"cost": 0.8}])
@pytest.mark.parametrize(("counts", "power"), [(True, 0.5), (False, 1.0)])
def test_the_root_of_values_is_taken_where_few_would_decide(
    given: dict[str, float], counts: bool, power: float
) -> None:
    """Where a word that says nothing is often in a text; with equal values there is no choice."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 30, 900)
    features = np.zeros((900, 60))
    features[np.arange(900), labels] = 1.0
    often = 1.0 + (rng.geometric(0.1, (900, 8)) if counts else 0.0)
    np.put_along_axis(features, rng.integers(30, 60, (900, 8)), often, axis=1)
    part = Partition(unit_rows(from_scipy(features)), from_scipy(np.eye(30)[labels], ones=True))
    found = choose_cost([part], replace(SPEC, features=60, **given), 0)
    assert found.value_power == power
    assert found.cost == given.get("cost", found.cost)


@pytest.mark.parametrize(("kept", "passes"), [(0.5, 3 * SPEC.passes), (0.01, SPEC.passes)])
def test_dense_rows_of_unlike_features_get_more_passes(kept: float, passes: int) -> None:
    """Not sparse ones, which settle in a few."""
    rng = np.random.default_rng(0)
    labels = rng.random((900, 30)) < 0.1
    mixed = labels @ rng.standard_normal((30, 300)) + 0.3 * rng.standard_normal((900, 300))
    scaled = mixed * (rng.random((900, 300)) < kept) * 10.0 ** rng.uniform(-2, 2, 300)
    part = Partition(unit_rows(from_scipy(scaled)), from_scipy(labels, ones=True))
    assert choose_cost([part], replace(SPEC, features=300), 0).passes == passes


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_so_few_rows_get_the_middle_choice(rows: int) -> None:
    assert choose_cost([slice_rows(some_part(1), 0, rows)], SPEC, 0).cost == COSTS[FIRST + 1]


@pytest.mark.parametrize(("seed", "passes"), [(0, 3), (1, 6), (2, 6), (3, 6)])
def test_each_third_of_few_rows_is_held_out(seed: int, passes: int) -> None:
    """The choice is the best one on all of them, where going on from the middle finds it.

    Few sparse rows are fitted with four passes at most to find it.
    """
    part = first_rows(some_part(seed))
    part = replace(part, features=replace(part.features, columns=400))  # not dense
    thirds, pool = np.array_split(np.arange(198) + 2, 3), ThreadPoolExecutor(1)
    folds = [
        (take_rows(part, np.setdiff1d(np.arange(200), third)), take_rows(part, third))
        for third in thirds
    ]

    def score(spec: TreeSpec) -> float:
        quick = replace(spec, passes=min(passes, 4))
        return sum(_precision(pool, 1, quick, *fold, 0) for fold in folds) / 3

    spec = replace(SPEC, features=400, passes=passes)
    best = climb([replace(spec, cost=cost) for cost in COSTS], FIRST + 1, score)
    found = choose_cost([part], spec, 0)
    assert replace(found, value_power="auto") == best
    assert choose_cost([part], spec, 0, threads=3) == found


def test_a_sample_is_of_whole_parents_and_all_their_rows() -> None:
    part = some_part(2)
    order = np.random.default_rng(0).permutation(30).astype(np.int32)
    labels = sample_labels(order, np.full(30, 2000), SPEC)
    assert labels.tolist() == order[:8].tolist()
    sample = sample_rows(part, labels)
    wanted = to_scipy(part.labels).toarray()[:, labels]
    chosen = Partition(part.features, from_scipy(wanted, ones=True))
    rows = [row for row in np.argsort(row_keys(chosen), kind="stable") if wanted[row].any()]
    np.testing.assert_array_equal(to_scipy(sample.labels).toarray(), wanted[rows])
    features = to_scipy(part.features).toarray()
    np.testing.assert_array_equal(to_scipy(sample.features).toarray(), features[rows])


def test_the_search_stops_where_nothing_is_gained() -> None:
    line = [replace(SPEC, passes=passes) for passes in range(1, 8)]
    asked = []

    def score(spec: TreeSpec) -> float:
        asked.append(spec.passes)
        return -abs(spec.passes - 5.0)

    assert climb(line, 2, score).passes == 5
    assert asked == [3, 4, 5, 6]


@pytest.mark.parametrize("cost", ["much", 0])
def test_other_words_are_refused(cost: object) -> None:
    with pytest.raises(ConfigError, match="'auto'"):
        replace(SPEC, cost=cost)  # type: ignore[arg-type]
