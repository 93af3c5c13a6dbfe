"""Labels chosen for rows together: against all choices there are, and of every kind of measure."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix, vstack

from daskxml.cli import main
from daskxml.core.errors import ConfigError
from daskxml.data.rows import slice_rows, to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate, write_xml
from daskxml.metrics.decisions import f1_scores
from daskxml.models.together import MEASURES, Together
from harness.small_models import network_and_trees

ROWS = SyntheticSpec(rows=600, test_rows=400, features=60, labels=40, seed=2)
LABELS = 5


def measured(measure, choices, rows, constants):
    """What is expected of a measure: by its definition, in a sum over labels."""
    total = 0.0
    for label, constant in enumerate(constants):
        found = [row[label] for row, chosen in zip(rows, choices, strict=True) if label in chosen]
        total += {
            "macro-F1": 2 * sum(found) / (len(found) + constant),
            "macro-recall": sum(found) / constant,
            "PSP": sum(found) * constant,
            "coverage": 1 - math.prod(1 - p for p in found),
        }[measure]
    return total


def all_choices(row, k):
    return list(itertools.combinations(row, min(k, len(row))))


rows_of_some = st.lists(
    st.dictionaries(st.integers(0, LABELS - 1), st.integers(0, 15).map(lambda it: it / 16),
                    max_size=LABELS),
    min_size=1, max_size=4,
)  # fmt: skip
constant_lists = st.lists(
    st.integers(1, 12).map(lambda it: it / 4), min_size=LABELS, max_size=LABELS
)


def as_arrays(rows):
    ids, probabilities = np.full((2, len(rows), LABELS), -1.0)
    for place, row in enumerate(rows):
        best = sorted(row, key=lambda label: -row[label])
        ids[place, : len(row)] = best
        probabilities[place, : len(row)] = [row[label] for label in best]
    return ids.astype(np.int32), np.where(ids < 0, -np.inf, probabilities).astype(np.float32)


def as_choices(is_chosen, ids):
    return [set(row[chosen].tolist()) for row, chosen in zip(ids, is_chosen, strict=True)]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MEASURES), rows_of_some, constant_lists, st.integers(1, 3))
def test_no_other_choice_for_one_row_is_better(measure, rows, constants, k):
    ids, probabilities = as_arrays(rows)
    together = Together(measure, np.array(constants), k)
    chosen = as_choices(together.choose(ids, probabilities), ids)
    assert [len(each) for each in chosen] == [min(k, len(row)) for row in rows]
    reached = measured(measure, chosen, rows, constants)
    for place, row in enumerate(rows):
        for other in all_choices(row, k):
            tried = [*chosen[:place], other, *chosen[place + 1 :]]
            assert measured(measure, tried, rows, constants) <= reached + 1e-5
    if measure in ("macro-recall", "PSP"):
        every = itertools.product(*(all_choices(row, k) for row in rows))
        best = max(measured(measure, each, rows, constants) for each in every)
        assert reached == pytest.approx(best)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(MEASURES), rows_of_some, rows_of_some, constant_lists, st.integers(1, 3))
def test_a_row_alone_is_one_more_of_the_others(measure, others, rows, constants, k):
    together = Together(measure, np.array(constants), k)
    ids, probabilities = as_arrays(others)
    before = as_choices(together.choose(ids, probabilities), ids)
    ids, probabilities = as_arrays(rows)
    chosen = as_choices(together.choose_alone(ids, probabilities), ids)
    for row, found in zip(rows, chosen, strict=True):
        reached, *tried = (
            measured(measure, [*before, each], [*others, row], constants)
            for each in (found, *all_choices(row, k))
        )
        assert reached == pytest.approx(max(tried), abs=1e-6)


@pytest.fixture(scope="module")
def calibrated():
    parts = generate(ROWS)
    X, Y = (to_scipy(half) for half in (parts[1].features, parts[1].labels))
    models = [each.calibrate(X[:200], Y[:200]) for each in network_and_trees(parts[0])]
    return models, X[200:], parts[1]


@pytest.mark.parametrize("kind", [0, 1])
def test_a_model_chooses_more_labels_that_are_rare(calibrated, kind):
    models, X, part = calibrated
    model = models[kind]
    truth = slice_rows(part, 200, part.rows).labels
    top, _ = model.predict_top_k(X, 2)
    found = {each: model.choose_together(X, 2, measure=each)[0] for each in MEASURES}
    assert len(np.unique(found["coverage"])) > len(np.unique(top))
    before, after = (f1_scores(ids, truth)["macro-F1"] for ids in (top, found["macro-F1"]))
    assert after > before
    assert all((ids >= 0).all() and (ids[:, 0] != ids[:, 1]).all() for ids in found.values())
    wide, probabilities = model.predict_top_k(X, 40)
    by_hand = np.argsort(-probabilities * model.inverse_propensity[wide], axis=1, kind="stable")
    best = np.take_along_axis(wide, by_hand[:, :2], axis=1)
    np.testing.assert_array_equal(np.sort(found["PSP"], axis=1), np.sort(best, axis=1))


def test_rows_beside_others_do_not_depend_on_the_rows_with_them(calibrated):
    (_, model), X, _ = calibrated
    ids, scores = model.choose_together(X[:50], 3, beside=X[50:])
    for row in range(5):
        alone, its = model.choose_together(X[row], 3, beside=X[50:])
        np.testing.assert_array_equal(alone[0], ids[row])
        np.testing.assert_array_equal(its[0], scores[row])
    assert (np.diff(scores, axis=1) <= 0).all()


def test_the_command_chooses_together(calibrated, tmp_path, capsys):
    (_, model), *_ = calibrated
    model.save(tmp_path / "model")
    rows, file = str(write_xml(tmp_path / "test.txt", ROWS, "test")), tmp_path / "labels.jsonl"
    command = ["predict", str(tmp_path / "model"), rows, "--out", str(file), "--top-k", "3"]
    for measure in MEASURES:
        assert main([*command, "--measure", measure]) == 0
        found = [json.loads(line)["labels"] for line in file.read_text().splitlines()]
        ids, _ = model.choose_together(generate(ROWS)[1], 3, measure=measure)
        assert found == ids.tolist()
    (tmp_path / "test.txt").write_text("")
    assert main([*command, "--measure", "PSP"]) == main(command) != 1
    capsys.readouterr()
    assert main([*command, "--measure", "PSP", "--choose"]) == 2
    assert "give one" in capsys.readouterr().err
    assert main([*command, "--measure", "PSP", "--scheduler", "tcp://127.0.0.1:1"]) == 2
    assert "leave out --scheduler" in capsys.readouterr().err


def test_bad_values_and_no_rows(calibrated):
    (model, _), X, _ = calibrated
    with pytest.raises(ConfigError, match="must be one of macro-F1, macro-recall, PSP, coverage"):
        model.choose_together(X, 3, measure="micro-F1")
    with pytest.raises(ConfigError, match="k = 0"):
        model.choose_together(X, 0)
    assert model.choose_together(X[:0], 3)[0].shape == (0, 3)
    ids, scores = model.choose_together(X[:2], 45)
    assert ids.shape == (2, 45)
    assert (ids[:, 40:] == -1).all()
    assert np.isinf(scores[:, 40:]).all()


def test_a_row_without_features_gets_no_labels_and_counts_for_no_other():
    train, test = generate(ROWS)
    model, X = network_and_trees(train)[1], to_scipy(test.features)
    empty = csr_matrix((5, X.shape[1]), dtype=X.dtype)
    alone, _ = model.choose_together(X, 3, measure="coverage")
    ids, scores = model.choose_together(vstack([empty, X]), 3, measure="coverage")
    assert (ids[:5] == -1).all()
    assert (scores[:5] == -math.inf).all()
    assert np.array_equal(ids[5:], alone)
