"""The flat array and its views."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.models.network.spec import Layout, ModelSpec, initial_parameters

small = st.integers(1, 40)
specs = st.builds(
    ModelSpec, features=small, labels=small, hidden=st.lists(small, max_size=3).map(tuple)
)


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
