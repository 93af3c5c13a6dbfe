"""The description of a network checks itself; the flat array, its views, and growing label sets."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml import XMLClassifier
from daskxml.core.errors import ConfigError, ModelError
from daskxml.models.network.spec import (
    Layout,
    ModelSpec,
    grown_parameters,
    initial_parameters,
)
from daskxml.models.store import ModelHeader
from daskxml.models.trained import Model
from daskxml.models.trees.spec import TreeSpec

SIZES = {"features": 12, "labels": 6, "hidden": (5,)}
small = st.integers(1, 40)
specs = st.builds(
    ModelSpec, features=small, labels=small, hidden=st.lists(small, max_size=3).map(tuple)
)


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("features", 0, "from 1 to 2147483647"),
        ("labels", 2.5, "a whole number, from 1 to 2147483647"),
        ("labels", "many", "from 1 to 2147483647"),
        ("hidden", (128, 0), "from 1 to 2147483647"),
        ("hidden", (128, True), "a whole number, from 1 to 2147483647"),
        ("activation", "tanh", "one of 'relu', 'sigmoid'"),
        ("loss", "hinge", "one of 'softmax', 'sigmoid'"),
        ("dropout", 1.0, "at least 0, below 1"),
        ("feature_dropout", -0.1, "at least 0, below 1"),
        ("feature_dropout", float("nan"), "at least 0, below 1"),
        ("output_bias", float("inf"), "from -1000 to 1000"),
        ("init_scale", 0.0, "above 0, at most 1000"),
        ("init_scale", "big", "above 0, at most 1000"),
    ],
)
def test_wrong_values_name_field_value_and_range(field, value, rule):
    with pytest.raises(ConfigError, match=rf"{field} = .*must be .*{rule}"):
        ModelSpec(**{"features": 3, "labels": 4, field: value})


def test_dictionary_and_back():
    spec = ModelSpec(features=3, labels=4, hidden=(5, 6), loss="sigmoid", output_bias=-5.0)
    assert ModelSpec.from_dict(spec.as_dict()) == spec
    assert spec.widths == (3, 5, 6, 4)


def test_unknown_and_missing_names_are_refused():
    with pytest.raises(ConfigError, match=r"unknown \['depth'\], missing \['labels'\]"):
        ModelSpec.from_dict({"features": 3, "depth": 2})


@settings(max_examples=30, deadline=None)
@given(specs)
def test_views_tile_the_flat_array_aligned_and_without_overlap(spec):
    layout = Layout(spec)
    flat = np.zeros(layout.size, np.float32)
    views = layout.views(flat)
    for view in views.values():
        assert np.shares_memory(view, flat)
        view += 1.0
    assert flat.max() == 1.0
    assert int(flat.sum()) == layout.count == sum(view.size for view in views.values())
    assert all(slot.offset % 16 == 0 for slot in layout.slots.values())
    assert layout.names[-2:] == ("output.weight", "output.bias")
    assert views["output.weight"].shape == (spec.labels, spec.widths[-2])


def test_shapes_of_a_deep_model():
    views = Layout(ModelSpec(features=9, labels=7, hidden=(4, 5))).slots
    assert {name: slot.shape for name, slot in views.items()} == {
        "hidden0.weight": (9, 4), "hidden0.bias": (4,),
        "hidden1.weight": (4, 5), "hidden1.bias": (5,),
        "output.weight": (7, 5), "output.bias": (7,),
    }  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(specs, st.integers(0, 2**40))
def test_padding_stays_zero_and_biases_start_as_told(spec, seed):
    layout, flat = Layout(spec), initial_parameters(spec, seed)
    views = layout.views(flat)
    assert (views["output.bias"] == spec.output_bias).all()
    for view in views.values():
        view[...] = 0.0
    assert not flat.any()


def test_seeds_give_the_same_bits_and_differ_from_each_other():
    spec = ModelSpec(features=30, labels=20, hidden=(8, 4), output_bias=-5.0)
    digest = hashlib.sha256(initial_parameters(spec, 1).tobytes()).hexdigest()
    assert digest == hashlib.sha256(initial_parameters(spec, 1).tobytes()).hexdigest()
    assert digest[:16] == "13736a964ebb84ca"  # the same on every machine and version
    assert (initial_parameters(spec, 1) != initial_parameters(spec, 2)).any()


def test_scale_and_fan_in():
    small = ModelSpec(features=50, labels=2000, hidden=(64,))
    large = ModelSpec(features=50, labels=2000, hidden=(64,), init_scale=2.0)
    one, two = (Layout(s).views(initial_parameters(s, 3)) for s in (small, large))
    assert (two["output.weight"] == 2 * one["output.weight"]).all()
    assert one["output.weight"].std() == pytest.approx(64**-0.5, rel=0.02)


def test_deep_sigmoid_layers_pass_a_signal_on() -> None:
    """Rows of unit length differ as much behind eight layers as behind one, within a factor."""
    spec = ModelSpec(features=200, labels=3, hidden=(128,) * 8, activation="sigmoid")
    views = Layout(spec).views(initial_parameters(spec, 5))
    rows = np.random.default_rng(1).normal(size=(64, 200))
    active = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    spreads, means = [], []
    for layer in range(8):
        z = active @ views[f"hidden{layer}.weight"] + views[f"hidden{layer}.bias"]
        active = 1.0 / (1.0 + np.exp(-z))
        spreads.append(active.std(axis=0).mean())
        means.append(z.mean())
    assert min(spreads) > 0.5 * spreads[0]
    assert max(map(abs, means)) < 0.2  # where the slope of the sigmoid is


def test_normal_weights_have_one_over_the_width_as_their_deviation():
    spec = ModelSpec(features=300, labels=400, hidden=(50, 20), init="normal", init_scale=2.0)
    views = Layout(spec).views(initial_parameters(spec, 3))
    for name, units in (("hidden0", 50), ("hidden1", 20), ("output", 400)):
        weights = views[f"{name}.weight"]
        assert weights.std() == pytest.approx(2.0 / units, rel=0.08)
        assert abs(weights.mean()) < 0.2 / units
        assert not views[f"{name}.bias"].any()
    assert (initial_parameters(spec, 3) == initial_parameters(spec, 3)).all()


def model_of(spec, flat, names=()):
    header = ModelHeader(spec=spec, training_rows=9, label_names=names)
    counts = np.ones(spec.labels, np.int64)
    return Model(header, Layout(spec).views(flat), counts, threads=1)


@pytest.mark.parametrize("hidden", [(), (5,), (7, 5)])
@pytest.mark.parametrize("loss", ["sigmoid", "softmax"])
def test_old_labels_scores_are_the_same_before_the_first_step(loss, hidden):
    spec = ModelSpec(**{**SIZES, "hidden": hidden}, loss=loss)
    wide = replace(spec, labels=11, features=15)
    old = model_of(spec, initial_parameters(spec, seed=3))
    new = model_of(wide, grown_parameters(wide, 8, old))
    rng = np.random.default_rng(1)
    X = rng.random((20, 12)) * (rng.random((20, 12)) < 0.4)
    padded = np.hstack([X, np.zeros((20, 3))])
    for name, array in old.parameters.items():
        assert np.array_equal(new.parameters[name][tuple(map(slice, array.shape))], array), name
    close = {"rtol": 1e-6, "atol": 1e-6}  # products of other shapes may be rounded otherwise
    np.testing.assert_allclose(new.logits(padded)[:, :6], old.logits(X), **close)
    if loss == "sigmoid":  # the softmax is over the new labels, too
        found = new.predict(padded, 11)[:, :6]
        np.testing.assert_allclose(found.toarray(), old.predict(X, 6).toarray(), **close)


def test_names_that_are_new_follow_those_of_a_stored_model(tmp_path):
    spec = ModelSpec(**SIZES, loss="sigmoid")
    names = tuple("abcdef")
    old = model_of(spec, initial_parameters(spec, seed=3), names)
    old.save(tmp_path / "model")
    X, still = np.eye(12), {"hidden": 5, "loss": "sigmoid", "learning_rate": 1e-30, "epochs": 1}
    y = [["f", "new"], ["a"], ["also"], []] * 3
    grown = XMLClassifier("adaptive-sgd", **still).fit(X, y, model=tmp_path / "model")
    assert grown.classes_.tolist() == [*names, "also", "new"]
    assert grown.model_.header.label_names == (*names, "also", "new")
    np.testing.assert_allclose(grown.decision_function(X)[:, :6], old.logits(X), atol=1e-20)
    np.testing.assert_array_equal(grown.model_.label_counts, [4, 1, 1, 1, 1, 4, 3, 3])


def test_only_networks_grow():
    spec = ModelSpec(**SIZES)
    header = ModelHeader(spec=TreeSpec(features=12, labels=6), training_rows=9)
    trees = Model(header, {}, np.ones(6, np.int64), threads=1)
    with pytest.raises(ModelError, match="is no network"):
        grown_parameters(spec, 0, trees)
