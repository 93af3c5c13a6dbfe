"""Compressed models: nearly the same answers, ordinary directories, and what is refused."""

import pickle
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

import daskxml
from daskxml.cli import main
from daskxml.core.errors import ConfigError, ModelError
from daskxml.data.synthetic import SyntheticSpec, generate, write_xml
from daskxml.kernels.operands import Quantised, quantise
from daskxml.models.network.spec import Layout, ModelSpec, initial_parameters
from daskxml.models.store import ModelHeader, read_model, write_model
from daskxml.models.tensors import read_tensors, write_tensors
from daskxml.models.trained import Model
from daskxml.models.trees.forest import ARRAYS, pruned, smallest_kept
from harness.commands import refusal
from harness.small_models import network_and_trees

ROWS = SyntheticSpec(rows=300, test_rows=120, features=60, labels=40, seed=2)


@pytest.fixture(scope="module")
def parts():
    return generate(ROWS)


@pytest.fixture(scope="module")
def models(parts):
    network, trees = network_and_trees(parts[0])
    return {
        "mlp": network,
        "trees": trees,
        "mixture": daskxml.mix([trees, network], valid=parts[1]),
    }


def network_of(**spec):
    sizes = ModelSpec(**({"features": 12, "labels": 300, "hidden": (33,)} | spec))
    arrays = Layout(sizes).views(initial_parameters(sizes, seed=5))
    header = ModelHeader(spec=sizes, training_rows=100)
    return Model(header, arrays, np.ones(sizes.labels, np.int64), threads=1)


def rows_of(count, columns=12):
    return sp.random(count, columns, 0.4, "csr", rng=np.random.default_rng(1))


def size(model):
    return sum(array.nbytes for array in model.parameters.values())


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("kind", ["mlp", "trees", "mixture"])
def test_a_compressed_model_is_a_model_like_any_other(models, parts, tmp_path, kind, bits):
    model, test = models[kind], parts[1]
    small = model.compress(bits=bits)
    assert size(small) < 0.8 * size(model)
    before, after = (each.evaluate(test, k=(1, 5)) for each in (model, small))
    assert after["P@5"] == pytest.approx(before["P@5"], abs=0.02)
    small.save(tmp_path / "small")
    expected = small.predict_top_k(test, 3)
    for other in (
        Model.load(tmp_path / "small"),
        Model.load(tmp_path / "small", verify=False),
        pickle.loads(pickle.dumps(small)),
        pickle.loads(pickle.dumps(Model.load(tmp_path / "small"))),
    ):
        found = other.predict_top_k(test, 3)
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)
    assert repr(small) == repr(model)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("hidden", [(), (33,), (33, 8)])
@pytest.mark.parametrize("bits", [8, 16])
def test_a_row_alone_is_ranked_as_among_others(loss, hidden, bits):
    small = network_of(loss=loss, hidden=hidden).compress(bits=bits)
    X = rows_of(30)
    together, scores = small.predict_top_k(X, 4)
    each = [small.predict_top_k(row, 4) for row in X]
    np.testing.assert_array_equal(np.concatenate([ids for ids, _ in each]), together)
    tolerance = 1e-5 if loss == "sigmoid" else 0.01  # the others' exponentials are of 8 bits
    np.testing.assert_allclose(np.concatenate([s for _, s in each]), scores, rtol=tolerance)


def test_sixteen_bits_score_as_thirty_two():
    model, X = network_of(), rows_of(30)
    small = model.compress()
    np.testing.assert_allclose(small.logits(X), model.logits(X), atol=1e-4)
    np.testing.assert_array_equal(small.predict_top_k(X, 5)[0], model.predict_top_k(X, 5)[0])


def test_labels_are_explained_by_the_weights_that_are_there():
    model, row = network_of(), rows_of(1)
    small = model.compress()
    ids, added = small.explain(row, 7)
    wanted = model.explain(row, 7)
    np.testing.assert_array_equal(ids, wanted[0])
    np.testing.assert_allclose(added, wanted[1], atol=1e-4)


def test_a_compressed_network_is_never_unpacked_whole(tmp_path):
    network_of(labels=40_000, hidden=(64,)).compress(bits=8).save(tmp_path / "model")
    loaded = Model.load(tmp_path / "model", threads=1, verify=False)
    loaded.warm_up()
    tracemalloc.start()
    for rows in (1, 10):
        loaded.predict_top_k(rows_of(rows), 4)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 * 2**20  # 40,000 x 64 numbers of float32 are 10 MB


def test_training_goes_on_from_a_compressed_model(models, parts):
    from daskxml.models.network.spec import grown_parameters

    model = models["mlp"]
    small = model.compress()
    flat, wanted = (grown_parameters(model.spec, 1, each) for each in (small, model))
    np.testing.assert_allclose(flat, wanted, atol=1e-4)


def naively_pruned(tree, smallest):
    """The features, children and weights of every node that are kept, one by one."""
    nodes = []
    for node in range(len(tree["node_starts"]) - 1):
        held = []
        for chunk in range(*tree["node_starts"][node : node + 2]):
            span = range(*tree["chunk_starts"][chunk : chunk + 2])
            held += [
                (int(tree["features"][chunk]), int(tree["children"][e]), float(tree["weights"][e]))
                for e in span
                if abs(tree["weights"][e]) >= smallest
            ]
        nodes.append(held)
    return nodes


@pytest.mark.parametrize("smallest", [0.0, 0.15, 0.4, 99.0])
def test_trees_lose_their_small_weights_and_nothing_else(models, smallest):
    arrays = models["trees"].parameters
    small = pruned(arrays, smallest)
    for tree in range(4):
        old, new = (
            {name: held[f"tree{tree}.{name}"] for name in ARRAYS} for held in (arrays, small)
        )
        assert naively_pruned(new, 0.0) == naively_pruned(old, smallest)
        assert (np.diff(new["chunk_starts"]) > 0).all()
        assert [new[name].dtype for name in ARRAYS] == list(ARRAYS.values())


@pytest.mark.parametrize("weights", [[], [0.0, 0.0]])
def test_trees_without_weights_have_none_to_lose(weights):
    arrays = {"tree0.order": np.arange(2), "tree0.weights": np.float32(weights)}
    assert smallest_kept(arrays, 0.5) == 0.0
    assert smallest_kept({}, 0.5) == 0.0


def test_the_description_says_which_weights_are_left(models):
    trees = models["trees"]
    small = trees.compress(drop=0.2)
    before, after = (
        np.abs(np.concatenate([each.parameters[f"tree{t}.weights"] for t in range(4)]))
        for each in (trees, small)
    )
    assert small.spec == replace(trees.spec, smallest_weight=float(after.min()))
    assert np.square(after).sum() / np.square(before).sum() == pytest.approx(0.8, abs=0.01)
    same = trees.compress(drop=0.0)
    assert all((same.parameters[name] == array).all() for name, array in trees.parameters.items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 4}, "bits = 4: must be 8 or 16"),
        ({"drop": 1.0}, r"drop = 1.0: must be in \[0, 1\)"),
        ({"drop": float("nan")}, "drop = nan"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ConfigError, match=message):
        network_of().compress(**options)


def test_what_cannot_be_compressed():
    with pytest.raises(ConfigError, match="compressed already"):
        network_of().compress().compress()
    model = network_of()
    model.parameters["output.weight"] = np.full_like(model.parameters["output.weight"], np.nan)
    with pytest.raises(ConfigError, match=r"output.weight of the model is not finite"):
        model.compress()


def rewritten(path, change):
    """Write the arrays of a file again with a change, and return them."""
    arrays, metadata = read_tensors(path, verify=False)
    held = {name: array.copy() for name, array in arrays.items()}
    change(held)
    write_tensors(path, held, metadata)


@pytest.mark.parametrize(
    "change",
    [
        lambda held: held.pop("output.weight.scale"),
        lambda held: held.pop("output.weight.second"),
        lambda held: held.update({"output.weight.scale": np.ones(3, np.float32)}),
        lambda held: held.update({"output.weight.first": np.zeros((300, 32), np.int8)}),
        lambda held: held.update({"hidden0.weight.first": np.zeros((12, 33), np.uint8)}),
        lambda held: held.update({"output.weight": np.zeros((300, 33), np.float32)}),
        lambda held: held.update({"surplus.first": np.zeros((1, 1), np.int8)}),
    ],
)
@pytest.mark.parametrize("verify", [True, False])
def test_damaged_arrays_are_refused(tmp_path, change, verify, monkeypatch):
    network_of().compress().save(tmp_path)
    rewritten(tmp_path / "model.safetensors", change)
    # As if somebody had written the description of the damaged arrays as well.
    monkeypatch.setattr(
        "daskxml.models.store._matching_header", lambda *given: (network_of().header, None)
    )
    with pytest.raises(ModelError) as caught:
        read_model(tmp_path, verify=verify)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_first_and_output_layer_may_be_quantised(tmp_path):
    model = network_of(hidden=(33, 8))
    arrays = dict(model.parameters) | {
        "hidden1.weight": quantise(model.parameters["hidden1.weight"], 8)
    }
    with pytest.raises(ModelError, match=r"'hidden1\.weight' is quantised"):
        write_model(tmp_path, model.header, arrays, model.label_counts)


def test_the_command_tells_what_it_costs(models, tmp_path, capsys):
    models["mixture"].save(tmp_path / "model")
    write_xml(tmp_path / "test.txt", ROWS, "test")
    out, rows = str(tmp_path / "small"), str(tmp_path / "test.txt")
    given = ["compress", str(tmp_path / "model"), "--out", out]
    assert main([*given, "--bits", "8", rows]) == 0
    before, after = capsys.readouterr().out.splitlines()
    wanted = models["mixture"].evaluate(generate(ROWS)[1])
    assert before.startswith(f"P@1 {wanted['P@1']:.4f}  P@3 {wanted['P@3']:.4f}")
    assert before.endswith(f"MB  {tmp_path / 'model'}")
    assert after.endswith(f"MB  {out}")
    assert any(isinstance(array, Quantised) for array in Model.load(out).parameters.values())
    assert main(["evaluate", out, rows]) == 0
    capsys.readouterr()
    for options, message in (
        ([*given], "holds a model already"),
        (["compress", str(tmp_path / "none"), "--out", out], "no such directory"),
        ([*given, "--bits", "4"], "--bits"),
        ([*given, str(tmp_path / "none.txt")], "none.txt"),
        ([*given, "--drop", "-1"], "--drop"),
        (["compress", out, "--out", str(tmp_path / "again")], "compressed already"),
    ):
        assert message in refusal(capsys, *options)
