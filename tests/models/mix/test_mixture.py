"""Mixtures of trained models, and ranked labels of which there are fewer than asked for."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import daskxml
from daskxml.api.in_process import train_here
from daskxml.cli import main
from daskxml.core.arrays import Csr
from daskxml.core.errors import ModelError
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate, write_xml
from daskxml.kernels import get_kernels
from daskxml.models.kinds import spec_from_dict
from daskxml.models.mix.kind import MixtureSpec, stacked
from daskxml.models.mix.mixing import choose_weights
from daskxml.models.network.spec import ModelSpec
from daskxml.models.rankings import candidates
from daskxml.models.trees.spec import TreeSpec

ROWS = SyntheticSpec(rows=300, test_rows=120, features=60, labels=40, seed=2)
KERNELS = get_kernels("cpu", 1)


@pytest.fixture(scope="module")
def rows():
    train, test = generate(ROWS)
    return [(to_scipy(part.features), to_scipy(part.labels)) for part in (train, test)]


@pytest.fixture(scope="module")
def models(rows):
    matrices = daskxml.Matrices(*rows[0])
    return [
        train_here(name, train=matrices, overrides={number: 2, "run.seed": 3}).model
        for name, number in (("best", "training.trees"), ("adaptive-sgd", "training.epochs"))
    ]


def naive_mixture(models, weights, X, k):
    """The weighted probabilities of the parts' candidates, summed up one by one."""
    best, count = [], candidates(k, models[0].spec.labels)
    for row in range(X.shape[0]):
        totals = {}
        for model, weight in zip(models, weights, strict=True):
            ids, scores = model.predict_top_k(X[[row]], count)
            for label, score in zip(ids[0].tolist(), scores[0].tolist(), strict=True):
                if label >= 0:
                    totals[label] = totals.get(label, 0.0) + weight * score
        best.append(sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:k])
    return best


def test_a_mixture_ranks_by_the_weighted_sum_of_probabilities(rows, models):
    X = rows[1][0][:40]
    mixture = daskxml.mix(models, weights=[0.3, 0.7])
    ids, scores = mixture.predict_top_k(X, 3)
    for row, wanted in enumerate(naive_mixture(models, [0.3, 0.7], X, 3)):
        found = dict(zip(ids[row].tolist(), scores[row].tolist(), strict=True))
        assert found == pytest.approx(dict(wanted), rel=1e-5)
        assert scores[row].tolist() == sorted(scores[row].tolist(), reverse=True)


@given(st.integers(1, 4), st.integers(2, 3), st.integers(1, 6), st.integers(1, 8), st.randoms())
def test_rankings_are_mixed_as_by_a_dictionary(rows, parts, count, k, random):
    rng = np.random.default_rng(random.getrandbits(32))
    ids = np.stack([[rng.permutation(9)[:count] for _ in range(rows)] for _ in range(parts)])
    kept = rng.integers(0, count + 1, (parts, rows, 1))
    ids[np.arange(count) >= kept] = -1  # a ranking has no more
    scores = rng.random(ids.shape).astype(np.float32)
    weights = rng.dirichlet(np.ones(parts)).astype(np.float32)
    rankings = stacked(list(zip(ids.astype(np.int32), scores, strict=True)))
    found, sums = KERNELS.average_rankings(*rankings, weights, k)
    for row in range(rows):
        totals = {}
        for part in range(parts):
            for label, score in zip(ids[part, row], scores[part, row], strict=True):
                if label >= 0:
                    totals[label] = totals.get(label, 0.0) + float(weights[part] * score)
        best = sorted(totals.values(), reverse=True)[:k]
        there = found[row] >= 0
        assert there.sum() == len(best)
        np.testing.assert_allclose(sums[row][there], best, rtol=1e-5)
        assert [totals[label] for label in found[row][there]] == pytest.approx(best, rel=1e-5)


def test_chosen_weights_are_never_worse_than_equal_ones(rows, models):
    X, Y = rows[1]
    chosen = daskxml.mix(models, valid=(X, Y))
    assert sum(chosen.spec.weights) == pytest.approx(1)

    def quality(model):
        found = model.evaluate(X, Y)
        return sum(found[f"P@{k}"] for k in (1, 3, 5))

    assert quality(chosen) >= quality(daskxml.mix(models, weights=[0.5, 0.5])) - 1e-9


def test_a_part_that_is_always_wrong_gets_no_weight():
    ids = np.array([[[1, 2]] * 8, [[3, 4]] * 8], np.int32)
    scores = np.array([[[0.2, 0.1]] * 8, [[0.9, 0.8]] * 8], np.float32)
    truth = Csr(np.arange(9), np.ones(8, np.int32), None, 5)
    assert choose_weights((ids, scores), truth, KERNELS, ks=(1,))[1] < 0.2


def test_a_mixture_is_stored_and_loaded_and_pickled(rows, models, tmp_path):
    mixture = daskxml.mix(models, valid=rows[1], out=tmp_path / "mixture")
    for again in (daskxml.load(tmp_path / "mixture"), pickle.loads(pickle.dumps(mixture))):
        assert again.spec == mixture.spec
        for first, second in zip(
            again.predict_top_k(rows[1][0], 5), mixture.predict_top_k(rows[1][0], 5), strict=True
        ):
            np.testing.assert_array_equal(first, second)
    assert "mixture of 2 models" in repr(mixture)


@pytest.mark.parametrize("damage", ["missing", "more", "other"])
def test_arrays_that_are_not_those_of_the_parts_are_refused(models, tmp_path, damage):
    mixture = daskxml.mix(models, weights=[0.5, 0.5])
    arrays = mixture.parameters
    if damage == "missing":
        del arrays["part1.output.bias"]
    elif damage == "more":
        arrays["part2.output.bias"] = arrays["part1.output.bias"]
    else:
        arrays["part1.output.bias"] = arrays["part1.output.bias"][:-1]
    with pytest.raises(ModelError, match=r"of one model$"):
        mixture.save(tmp_path / "mixture")


def test_a_description_is_checked():
    parts = ModelSpec(features=3, labels=2), TreeSpec(features=3, labels=2)
    good = MixtureSpec(features=3, labels=2, parts=parts, weights=(0.25, 0.75))
    values = json.loads(json.dumps(good.as_dict()))
    assert spec_from_dict(values) == good
    for broken in (
        {"parts": [1, 2]}, {"parts": [values, values]}, {"weights": [0.5]}, {"weights": [2, -1]},
        {"features": 4}, {"parts": values["parts"][:1], "weights": [1.0]}, {"more": 1},
    ):  # fmt: skip
        with pytest.raises(daskxml.ConfigError):
            spec_from_dict(values | broken)


def test_a_mixture_that_was_stored_by_an_older_version(models):
    """The names of its kind, of its parts' kinds and of its arrays are those of then."""
    spec = daskxml.mix(models, weights=[0.25, 0.75]).spec
    values = spec.as_dict()
    assert [values["kind"], *(part.get("kind") for part in values["parts"])] == [
        "mix", "trees", None,
    ]  # fmt: skip
    values["kind"], values["parts"][0]["kind"] = "mixture", "tree"
    assert spec_from_dict(values) == spec


def test_all_forms_of_held_out_rows_give_the_same_weights(rows, models, tmp_path):
    for name, model in zip(("trees", "network"), models, strict=True):
        model.save(tmp_path / name)
    write_xml(tmp_path / "test.txt", ROWS, "test")
    chosen = {
        daskxml.mix(parts, valid=valid).spec.weights
        for parts, valid in (
            (models, rows[1]),
            (models, daskxml.Matrices(*rows[1])),
            (models, generate(ROWS)[1]),
            ([tmp_path / "trees", str(tmp_path / "network")], tmp_path / "test.txt"),
            (models, [tmp_path / "test.txt"]),
        )
    }
    assert len(chosen) == 1
    with pytest.raises(daskxml.InputError, match="valid: give files"):
        daskxml.mix(models, valid=rows[1][0])


def test_models_that_do_not_fit_together(rows, models):
    wide = train_here(
        "tree", train=daskxml.Matrices(rows[0][0][:, :50], rows[0][1]), overrides={"run.seed": 1}
    ).model
    mixture = daskxml.mix(models, weights=[0.5, 0.5])
    other = daskxml.Model(
        replace(models[1].header, normalize="none"), models[1].parameters, models[1].label_counts
    )
    for parts, message in (
        ([models[0]], "a mixture of one model"),
        ([models[0], wide], r"part 1 of the mixture has 50 features and 40 labels, not 60 and 40"),
        ([models[0], mixture], "model 1 is a mixture itself: give its parts"),
        ([models[0], other], "models 0 and 1 differ in normalize"),
    ):
        with pytest.raises(daskxml.ConfigError, match=message):
            daskxml.mix(parts, weights=[0.5, 0.5][: len(parts)])
    with pytest.raises(daskxml.ConfigError, match="give rows on which they are chosen"):
        daskxml.mix(models)
    with pytest.raises(daskxml.ConfigError, match=r"weights = \(0\.5, 0\.4\)"):
        daskxml.mix(models, weights=[0.5, 0.4])
    probabilities = [model.probabilities(rows[0][0]) for model in (*models, mixture)]
    np.testing.assert_allclose(probabilities[2], np.mean(probabilities[:2], axis=0))


@pytest.mark.parametrize("which", ["trees", "network", "mixture"])
def test_more_labels_are_asked_for_than_there_are(rows, models, which):
    model = {
        "trees": models[0], "network": models[1],
        "mixture": daskxml.mix(models, weights=[0.5, 0.5]),
    }[which]  # fmt: skip
    X = rows[1][0][:7]
    ids, scores = model.predict_top_k(X, 44)
    assert ids.shape == scores.shape == (7, 44)
    assert (ids[:, 40:] == -1).all()
    assert np.isneginf(scores[ids < 0]).all()
    for row in ids:
        assert len(set(row[row >= 0])) == (row >= 0).sum()
    predicted = model.predict(X, 44)
    assert predicted.nnz == (ids >= 0).sum()
    assert [len(row) for row in model.predict_labels(X, 44)] == (ids >= 0).sum(axis=1).tolist()


def test_a_beam_that_holds_fewer_labels_than_asked_for(rows, tmp_path):
    """They are left out: -1 is no column, and not the last name."""
    model = train_here(
        "tree", train=daskxml.Matrices(*rows[0]),
        overrides={"model.leaf_labels": 5, "model.beam": 1},
    ).model  # fmt: skip
    X = rows[1][0][:5]
    assert (model.predict_top_k(X, 20)[0] == -1).any()
    assert model.predict(X, 20).has_canonical_format
    assert model.predict(X, 20).indices.min() >= 0
    named = daskxml.Model(
        replace(model.header, label_names=tuple(f"name {n}" for n in range(40))),
        model.parameters, model.label_counts,
    )  # fmt: skip
    assert max(map(len, named.predict_labels(X, 20))) < 20
    named.save(tmp_path / "named")
    write_xml(tmp_path / "test.txt", ROWS, "test")
    out = tmp_path / "best.jsonl"
    status = main(["predict", str(tmp_path / "named"), str(tmp_path / "test.txt"), "--top-k", "20",
                   "--out", str(out)])  # fmt: skip
    assert status == 0
    for line in out.read_text().splitlines():
        found = json.loads(line)
        assert len(found["labels"]) == len(found["scores"]) == len(set(found["labels"])) < 20


def test_the_command_mixes_runs_that_hold_out_the_same_rows(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_xml(tmp_path / "train.txt", ROWS)
    files = {"train": tmp_path / "train.txt"}
    for name, seed in (("tree", 1), ("adaptive-sgd", 1), ("other", 2)):
        number = "epochs" if name == "adaptive-sgd" else "trees"
        overrides = {f"training.{number}": 1, "run.seed": seed, "checkpoint.every": 0,
                     "data.validation": 0.2, "cluster.workers": 1}  # fmt: skip
        file = "tree" if name == "other" else name
        daskxml.train(file, **files, out=f"runs/{name}", overrides=overrides)
    tree, network, other = "runs/tree", "runs/adaptive-sgd", "runs/other"
    assert main(["mix", tree, network, "--out", "mixture"]) == 0
    told = capsys.readouterr().out
    assert "on 60 rows that no part was trained on" in told
    assert main(["evaluate", "mixture", "train.txt"]) == 0
    assert main(["mix", tree, network, "--out", "again", "--weights", "0.2,0.8"]) == 0
    assert daskxml.load("again").spec.weights == (0.2, 0.8)
    assert main(["mix", tree, other, "--out", "third"]) == 2
    told = capsys.readouterr().err
    assert "runs/other has held out other rows than runs/tree" in told
    assert "or give --valid FILE, or --weights" in told
    assert main(["mix", tree, other, "--out", "third", "--valid", "train.txt"]) == 0
    assert main(["mix", tree, network, "--out", "mixture"]) == 2
    assert "holds a model already" in capsys.readouterr().err
