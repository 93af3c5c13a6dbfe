"""Indexes of a network's labels: found, kept, asked for less, and refused where they cannot be."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp

import daskxml
from daskxml.cli import main
from daskxml.core.errors import ConfigError, InputError, ModelError
from daskxml.kernels.quantised import Quantised
from daskxml.models.network.indexing import recall_of
from daskxml.models.network.label_index import index_of, node_bounds
from daskxml.models.network.spec import Layout, ModelSpec, initial_parameters
from daskxml.models.store import ModelHeader, read_model
from daskxml.models.tensors import read_tensors, write_tensors
from daskxml.models.trained import Model
from daskxml.models.trees.spec import TreeSpec

FEATURES, LABELS = 30, 800


def network(loss="softmax", labels=LABELS, hidden=(16,)):
    """Return a network whose labels come in kinds of ten that are alike."""
    spec = ModelSpec(features=FEATURES, labels=labels, hidden=hidden, loss=loss)
    arrays, rng = Layout(spec).views(initial_parameters(spec, seed=5)), np.random.default_rng(0)
    kinds = rng.standard_normal((labels // 10 + 1, spec.widths[-2]))
    alike = kinds[np.arange(labels) // 10] + 0.2 * rng.standard_normal((labels, spec.widths[-2]))
    arrays["output.weight"][:] = 4 * alike[rng.permutation(labels)]
    header = ModelHeader(spec=spec, training_rows=100)
    return Model(header, arrays, np.ones(labels, np.int64), threads=1)


def rows_of(count, seed=1):
    return sp.random(count, FEATURES, 0.4, "csr", np.float32, rng=np.random.default_rng(seed))


@pytest.fixture(scope="module")
def indexed():
    return daskxml.index(network(), rows_of(300), recall=0.95)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("recall", [0.8, 0.99, 1.0])
def test_as_many_labels_are_found_as_asked(loss, recall):
    plain, rows = network(loss), rows_of(300)
    model = daskxml.index(plain, rows, recall=recall)
    ids, scores = model.predict_top_k(rows)
    wanted, exact = plain.predict_top_k(rows)
    assert recall_of(ids, wanted) >= recall
    index = index_of(model.parameters)
    assert recall < 1.0 or index.probed_clusters > 1
    assert index.probed_clusters < len(index.clusters)
    same = ids == wanted
    if loss == "sigmoid":
        np.testing.assert_allclose(scores[same], exact[same], rtol=1e-5)
    else:  # the labels that are not looked at are estimated
        error = np.abs(scores[same] / exact[same] - 1)
        assert error.max() < 0.7
        assert np.median(error) < 0.2
    for row, expected in zip(rows[:20], ids, strict=False):
        np.testing.assert_array_equal(model.predict_top_k(row)[0][0], expected)


def test_fewer_clusters_are_looked_into_for_less():
    probed = [
        index_of(daskxml.index(network(), rows_of(300), recall=recall).parameters).probed_clusters
        for recall in (0.5, 0.9, 1.0)
    ]
    assert probed == sorted(set(probed))


def test_every_label_is_looked_at_where_that_is_asked(indexed):
    plain, rows = network(), rows_of(50, seed=3)
    for k, model in ((5, indexed.exact), (6, indexed)):  # it was made for 5
        found, wanted = (each.predict_top_k(rows, k)[0] for each in (model, plain))
        np.testing.assert_array_equal(found, wanted)
    assert plain.exact is plain
    np.testing.assert_array_equal(indexed.logits(rows), plain.logits(rows))


@pytest.mark.parametrize("bits", [0, 8, 16])
def test_an_index_is_kept(indexed, tmp_path, bits):
    model = daskxml.compress(indexed, bits=bits) if bits else indexed
    model.save(tmp_path)
    rows = rows_of(50, seed=3)
    expected = model.predict_top_k(rows)[0]
    for other in (
        Model.load(tmp_path, threads=1),
        Model.load(tmp_path, threads=2, verify=False),
        pickle.loads(pickle.dumps(model)),
    ):
        assert index_of(other.parameters) is not None
        np.testing.assert_array_equal(other.predict_top_k(rows)[0], expected)
    assert recall_of(expected, network().predict_top_k(rows)[0]) > 0.85


def test_parts_of_a_mixture_have_indexes(indexed, tmp_path):
    other = network(loss="sigmoid")
    wide = daskxml.index(other, rows_of(200), recall=1.0, k=20)  # a part is asked for more than 5
    mixture = daskxml.mix([wide, other], weights=(0.5, 0.5))
    mixture.save(tmp_path)
    rows = rows_of(20, seed=4)
    wanted = daskxml.mix([other, other], weights=(0.5, 0.5)).predict_top_k(rows)[0]
    loaded = Model.load(tmp_path)
    assert recall_of(loaded.predict_top_k(rows)[0], wanted) > 0.9
    np.testing.assert_array_equal(loaded.exact.predict_top_k(rows)[0], wanted)


@pytest.mark.parametrize("labels", [1, 2, 5, 9, 33])
def test_few_labels(labels):
    model = daskxml.index(network(labels=labels), rows_of(40), recall=1.0, k=min(labels, 5))
    k = min(labels, 5)
    found, wanted = (each.predict_top_k(rows_of(40), k)[0] for each in (model, model.exact))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("labels", [1, 7, 100, 21_764, 670_000])
def test_groups_hold_whole_clusters(labels):
    groups, clusters = node_bounds(labels)
    assert (groups.size - 1) * 8 == clusters.size - 1 or clusters.size < 9
    assert set(groups) <= set(clusters)
    assert np.diff(clusters).min() >= 1
    assert np.diff(clusters).max() <= 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recall": 0.0}, "recall = 0.0: must be above 0 and at most 1"),
        ({"recall": 1.01}, "recall = 1.01"),
        ({"recall": float("nan")}, "recall = nan"),
        ({"k": 0}, "k = 0"),
        ({"k": LABELS + 1}, "k = 801"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ConfigError, match=message):
        daskxml.index(network(), rows_of(3), **options)


def test_what_cannot_have_an_index():
    spec = TreeSpec(features=FEATURES, labels=9)
    tree = Model(ModelHeader(spec=spec, training_rows=1), {}, np.ones(9, np.int64))
    with pytest.raises(ConfigError, match=r"label trees need no index: .* by their beam"):
        daskxml.index(tree, rows_of(3))
    with pytest.raises(ConfigError, match="hidden layer"):
        daskxml.index(network(hidden=()), rows_of(3))
    with pytest.raises(ConfigError, match="make those of the parts"):
        daskxml.index(daskxml.mix([network(), network()], weights=(0.5, 0.5)), rows_of(3))
    with pytest.raises(InputError, match="no rows"):
        daskxml.index(network(), rows_of(0))
    with pytest.raises(InputError, match="features"):
        daskxml.index(network(), sp.csr_matrix((3, FEATURES + 1)))
    broken = network()
    broken.parameters["output.bias"][3] = np.inf
    with pytest.raises(ConfigError, match=r"output\.bias of the model is not finite"):
        daskxml.index(broken, rows_of(3))


def moved(name, place, value):
    def change(held):
        held[name][place] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda held: held.pop("index.order"), "'index.order' is missing"),
        (lambda held: held.update({"index.more": np.ones(1)}), "'index.more' is surplus"),
        (moved("index.order", 0, LABELS), "every label once"),
        (moved("index.order", 0, -1), "every label once"),
        (lambda held: moved("index.order", 0, held["index.order"][1])(held), "every label once"),
        (moved("index.probes", 0, 0), "'index.probes' are"),
        (moved("index.probes", 1, 10**9), "'index.probes' are"),
        (lambda held: held.update({"index.group_bias": np.ones(2, "f")}), "'index.group_bias'"),
        (lambda held: held.update({"index.probes": np.ones(3, "f")}), "'index.probes' is not"),
        (lambda held: held.pop("index.clusters.scale"), "index.clusters"),
    ],
)
def test_a_damaged_index_is_refused(indexed, tmp_path, monkeypatch, change, message):
    indexed.save(tmp_path)
    arrays, metadata = read_tensors(tmp_path / "model.safetensors", verify=False)
    held = {name: array.copy() for name, array in arrays.items()}
    change(held)
    write_tensors(tmp_path / "model.safetensors", held, metadata)
    with pytest.raises(ModelError, match="damaged"):  # of other bytes than the description says
        Model.load(tmp_path)
    # As if somebody had written the description of the damaged arrays as well.
    monkeypatch.setattr(
        "daskxml.models.store._matching_header", lambda directory, verify: indexed.header
    )
    with pytest.raises(ModelError, match=message) as caught:
        read_model(tmp_path)
    assert "\n" not in str(caught.value)


def test_the_command(tmp_path, capsys):
    plain, rows = network(), rows_of(200)
    run, text = str(tmp_path / "run"), tmp_path / "rows.txt"
    plain.save(run)
    lines = [" ".join(f"{i}:{v:.3f}" for i, v in zip(r.indices, r.data, strict=True)) for r in rows]
    text.write_text("\n".join(["200 30 800", *(f" {line}" for line in lines), ""]))
    given = ["index", run, "--rows", str(text)]
    out = str(tmp_path / "out")
    assert main([*given, "--recall", "0.9", "--out", out]) == 0
    told = capsys.readouterr().out
    assert "of the best 5 on 100 rows (asked: 0.9 on 100 others)" in told
    assert "groups and" in told
    assert "ms by every label" in told
    assert index_of(Model.load(run).parameters) is None
    assert main([*given, "--recall", "0.9"]) == 0
    assert index_of(Model.load(run).parameters) is not None
    assert main([*given, "--recall", "1"]) == 0  # another one in its place
    capsys.readouterr()
    answers = []
    for extra in ([], ["--exact"]):
        command = ["predict", run, str(text), "--out", str(tmp_path / "found.jsonl"), *extra]
        assert main(command) == 0
        answers.append((tmp_path / "found.jsonl").read_text().splitlines())
    assert len(answers[0]) == 200
    assert answers[0] != answers[1]  # in their probabilities
    capsys.readouterr()
    bad = tmp_path / "bad.txt"
    bad.write_text("1 31 800\n 0:1\n")
    for options, message in (
        ([*given, "--out", out], "holds a model already"),
        (["index", run], "give --rows FILE"),
        (["index", run, "--rows", str(bad)], "31 features"),
        ([*given, "--recall", "0"], "recall = 0.0"),
        ([*given, "--recall", "1.5"], "--recall"),
        ([*given, "--k", "0"], "--k"),
        (["index", str(tmp_path / "none")], "no such directory"),
    ):
        assert main(options) == 2, options
        assert message in (problem := capsys.readouterr().err)
        assert problem.count("\n") == 1


def test_centres_are_of_eight_bits(indexed):
    index = index_of(indexed.parameters)
    assert isinstance(index.clusters, Quantised)
    size = sum(a.nbytes for n, a in indexed.parameters.items() if n.startswith("index."))
    assert size < 1.1 * LABELS * (16 / 2 + 4 + 4)  # beside 4 bytes a weight
