"""Calibrated models and thresholds: against slow twins, for every kind of model, and bad input."""

import json
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

import daskxml
from daskxml.cli import main
from daskxml.core.errors import ConfigError, InputError, ModelError
from daskxml.data.rows import label_csr, to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate, write_xml
from daskxml.metrics.decisions import calibration_error, f1_scores, find_hits
from daskxml.models.decisions import (
    Decisions,
    fit_calibration,
    fit_label_thresholds,
    fit_threshold,
)
from harness.commands import refusal
from harness.naive_decisions import naive_cuts, naive_f1, naive_isotonic, naive_thresholds
from harness.small_models import network_and_trees

ROWS = SyntheticSpec(rows=600, test_rows=400, features=60, labels=40, seed=2)
KINDS = ("mlp", "tree", "mixture")

levels = st.integers(0, 12).map(lambda it: it / 16)  # many are equal
pair_lists = st.lists(st.tuples(st.integers(0, 4), levels, st.booleans()), min_size=1, max_size=40)


@pytest.fixture(scope="module")
def parts():
    return generate(ROWS)


@pytest.fixture(scope="module")
def models(parts):
    network, trees = network_and_trees(parts[0])
    mixed = daskxml.mix([trees, network], weights=(0.5, 0.5))
    return dict(zip(KINDS, (network, trees, mixed), strict=True))


@pytest.fixture(scope="module")
def halves(parts):
    X, Y = (to_scipy(half) for half in (parts[1].features, parts[1].labels))
    return (X[:200], Y[:200]), (X[200:], Y[200:])


# ------------------------------------------------------------------------- fits


def columns(pairs):
    ids, scores, hits = zip(*pairs, strict=True)
    return np.array(ids), np.array(scores), np.array(hits)


@settings(max_examples=30)
@given(pair_lists)
def test_the_calibration_rises_through_the_steps_of_isotonic_regression(pairs):
    _, scores, hits = columns(pairs)
    points, shares = fit_calibration(scores, hits)
    peer = IsotonicRegression().fit(scores, hits)
    assert (np.diff(points) > 0).all()
    assert (np.diff(shares) >= 0).all()
    assert set(np.round(shares, 9)) == {0.0, *np.round(peer.predict(scores), 9)} - (
        {0.0} if points[0] == 0 < shares[0] else set()
    )
    order = np.lexsort((hits, scores))
    by_level = [hits[scores == level].mean() for level in scores[order]]
    twin = naive_isotonic(by_level)
    np.testing.assert_allclose(twin, peer.predict(scores[order]), atol=1e-9)
    for share in set(np.round(twin, 9)):  # a step's point lies in its middle
        inside = np.round(twin, 9) == share
        middle = scores[order][inside].mean()
        assert np.isclose(np.interp(middle, points, shares), share)


def test_no_probability_is_below_zero_and_the_order_of_labels_stays():
    made = Decisions(k=9, scores=(0.0, 0.5), probabilities=(0.0, 0.9), threshold=0.3)
    ids = np.array([[7, 6, 5, 4, 3], [1, 2, 3, 4, 5]])
    found = made.calibrated(ids, np.float32([[0.5, 0, 0, 0, 0], [0, 0, 0, 0, 0]]))
    assert found.min() == 0.0
    assert (np.diff(found[0]) < 0).all()  # ids that descend are an order by probability alone
    assert found[0, 0] == np.float32(0.9)
    assert not found[1].any()


@settings(max_examples=30)
@given(pair_lists, st.integers(0, 5))
def test_the_global_threshold_has_the_best_micro_f1(pairs, missed):
    _, scores, hits = columns(pairs)
    positives = int(hits.sum()) + missed
    found = fit_threshold(scores, hits, positives)
    everything = [(0, score, hit) for _, score, hit in pairs]
    if positives:
        best = max(naive_f1(everything, 0, [positives], cut, 0) for cut in naive_cuts(scores))
        assert naive_f1(everything, 0, [positives], found, 0) == best


@settings(max_examples=30)
@given(pair_lists, st.lists(st.integers(0, 3), min_size=5, max_size=5), levels, st.integers(0, 9))
def test_labels_own_thresholds_are_those_of_the_slow_twin(pairs, missed, threshold, prior):
    ids, scores, hits = columns(pairs)
    positives = np.bincount(ids[hits], minlength=5) + missed
    found = fit_label_thresholds(ids, scores, hits, positives, threshold, float(prior))
    labels, cuts = (array.tolist() for array in found)
    if not positives.any():
        assert labels == []
        return
    wanted = naive_thresholds(pairs, positives.tolist(), threshold, prior)
    for label in wanted.keys() | set(labels):  # equally good ones may round to either side
        own = dict(zip(labels, cuts, strict=True)).get(label, threshold)
        best = wanted.get(label, threshold)
        reached, most = (
            float(naive_f1(pairs, label, positives.tolist(), cut, prior)) for cut in (own, best)
        )
        assert reached == pytest.approx(most, rel=1e-12)
    assert all(positives[label] for label in labels)


def test_a_label_with_few_rows_stays_nearer_to_all_others():
    rng = np.random.default_rng(0)
    ids = np.repeat([0, 1], [2000, 2])
    scores = np.concatenate([rng.random(2000), [0.1, 0.05]])
    hits = np.concatenate([scores[:2000] > 0.5, [True, False]])
    positives = np.bincount(ids[hits])
    bounds = [
        dict(zip(*fit_label_thresholds(ids, scores, hits, positives, 0.5, prior), strict=True))
        for prior in (0.0, 30.0)
    ]
    assert bounds[0][1] < 0.1
    assert 1 not in bounds[1]
    assert not fit_label_thresholds(ids, scores, hits, positives, 0.5, np.inf)[0].size


# ----------------------------------------------------------------------- models


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_hold_better_and_choices_are_better_on_other_rows(models, halves, kind):
    (X, Y), (other_X, other_Y) = halves
    plain = models[kind]
    model = plain.calibrate(X, Y)
    made = model.header.decisions
    assert made.measured["calibration_error"] < made.measured["calibration_error_before"]
    assert made.measured["macro-F1"] > made.measured["macro-F1_before"]
    truth = label_csr(other_Y, *other_Y.shape)
    errors, f1 = {}, {}
    for name, each in (("plain", plain), ("calibrated", model)):
        ids, scores = each.predict_top_k(other_X, made.k)
        is_there = ids >= 0
        errors[name] = calibration_error(scores[is_there], find_hits(ids, truth)[is_there])
        f1[name] = f1_scores(each.choose(other_X)[0], truth)
    assert errors["calibrated"] < errors["plain"]
    assert f1["calibrated"]["macro-F1"] > f1["plain"]["macro-F1"]
    micro = plain.calibrate(X, Y, f1="micro")
    assert micro.header.decisions.labels == ()
    assert f1_scores(micro.choose(other_X)[0], truth)["micro-F1"] > f1["plain"]["micro-F1"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_labels_stays(models, halves, kind):
    X, Y = halves[0]
    model = models[kind].calibrate(X, Y)
    before, (ids, scores) = models[kind].predict_top_k(X, 9), model.predict_top_k(X, 9)
    np.testing.assert_array_equal(before[0], ids)
    assert scores[ids >= 0].max() <= 1.0
    np.testing.assert_array_equal(np.isinf(scores), ids < 0)
    for row, found in zip(ids, scores, strict=True):
        there = row >= 0
        order = np.lexsort((row[there], -found[there]))
        np.testing.assert_array_equal(order, np.arange(there.sum()))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_chosen_is_above_its_threshold(models, halves, kind):
    X, Y = halves[0]
    model = models[kind].calibrate(X, Y, k=7)
    made = model.header.decisions
    ids, raw = models[kind].predict_top_k(X, 7)
    chosen, scores = model.choose(X)
    own = dict(zip(made.labels, made.thresholds, strict=True))
    for row in range(X.shape[0]):
        wanted = [
            label
            for label, score in zip(ids[row].tolist(), raw[row].tolist(), strict=True)
            if label >= 0 and score > own.get(label, made.threshold)
        ]
        assert chosen[row][chosen[row] >= 0].tolist() == wanted
        assert np.isfinite(scores[row][: len(wanted)]).all()
    two, _ = model.choose(X, 2)
    assert two.shape[1] == 2
    above, found = model.choose(X, threshold=0.5)
    assert (found[above >= 0] > 0.5).all()


def test_it_is_stored_with_the_model_and_dropped_where_it_does_not_hold(models, halves, tmp_path):
    X, Y = halves[0]
    model = models["tree"].calibrate(X, Y)
    model.save(tmp_path / "model")
    for again in (daskxml.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        assert again.header == model.header
        np.testing.assert_array_equal(again.predict(X).toarray(), model.predict(X).toarray())
    assert model.calibrate(X, Y).header == model.header  # from the plain scores again
    small = model.compress(drop=0.01)
    assert small.header.decisions == model.header.decisions
    mixed = daskxml.mix([model, models["mlp"]], valid=(X, Y))
    plain = daskxml.mix([models["tree"], models["mlp"]], valid=(X, Y))
    assert mixed.header == plain.header
    assert mixed.header.decisions is None


def test_a_damaged_calibration_is_refused(models, halves):
    made = models["mlp"].calibrate(*halves[0]).header.decisions
    values = json.loads(json.dumps(made.as_dict()))
    assert Decisions.from_dict(values) == made
    for broken in (
        {"k": 0}, {"threshold": float("nan")}, {"scores": [0.5]}, {"probabilities": [0.0, 2.0]},
        {"scores": [], "probabilities": []}, {"labels": [3, 2], "thresholds": [0.1, 0.2]},
        {"labels": [[3]], "thresholds": [[0.1]]}, {"more": 1}, {"scores": ["a"]},
    ):  # fmt: skip
        with pytest.raises((ConfigError, TypeError, ValueError)):
            Decisions.from_dict(values | broken)


def test_bad_rows_are_one_line(models, halves):
    X, Y = halves[0]
    model = models["mlp"]
    for rows, error, message in (
        ((X, sp.csr_matrix(Y.shape)), InputError, "no held-out row has a label"),
        ((X[:1], Y[:1]), InputError, "1 held-out rows: give 5"),
        ((X[:, :50], Y), InputError, "X has 50 features"),
        ((X, Y[:, :5]), InputError, "Y is"),
        ((X,), InputError, "Y is missing"),
    ):
        with pytest.raises(error, match=message):
            model.calibrate(*rows)
    with pytest.raises(ConfigError, match="'macro' or 'micro'"):
        model.calibrate(X, Y, f1="weighted")
    with pytest.raises(ConfigError):
        model.calibrate(X, Y, k=0)
    ids, _ = model.predict_top_k(X, 1)
    wrong = sp.csr_matrix((np.ones(200), (np.arange(200), (ids[:, 0] + 1) % 40)), Y.shape)
    with pytest.raises(InputError, match="no true label"):
        model.calibrate(X, wrong, k=1)
    broken = {**model.parameters, "output.bias": model.parameters["output.bias"] + np.nan}
    nan = daskxml.Model(model.header, broken, model.label_counts)
    with pytest.raises(ModelError, match="scores are not finite"):
        nan.calibrate(X, Y)


# ---------------------------------------------------------------------- command


def test_the_command_calibrates_in_place_and_predict_chooses(models, tmp_path, capsys):
    models["tree"].save(tmp_path / "model")
    rows = str(write_xml(tmp_path / "test.txt", ROWS, "test"))
    model = str(tmp_path / "model")
    assert main(["calibrate", model, rows]) == 0
    out = capsys.readouterr().out
    assert "calibration error" in out
    assert "macro F1" in out
    assert "replaced" not in out
    assert main(["calibrate", model, rows, "--f1", "micro"]) == 0
    assert "an earlier calibration is replaced" in capsys.readouterr().out
    assert main(["calibrate", model, rows, "--json", "--out", f"{model}2"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["macro-F1"] > told["macro-F1_before"]
    file = tmp_path / "chosen.jsonl"
    assert main(["predict", f"{model}2", rows, "--choose", "--out", str(file)]) == 0
    chosen = [json.loads(line)["labels"] for line in file.read_text().splitlines()]
    ids, _ = daskxml.load(f"{model}2").choose(generate(ROWS)[1])
    assert chosen == [row[row >= 0].tolist() for row in ids]


def test_the_commands_errors_are_one_line(models, tmp_path, capsys):
    models["tree"].save(tmp_path / "model")
    bad = tmp_path / "bad.txt"
    for text, message in (
        ("5 60 40\n" + " 1:1\n" * 5, "no held-out row has a label"),
        ("1 61 40\n0 1:1\n", "its header has 61 features"),
    ):
        bad.write_text(text)
        assert message in refusal(capsys, "calibrate", tmp_path / "model", bad)
    assert "run.toml" in refusal(capsys, "calibrate", tmp_path / "model")
