"""The kernel of a step with one row against its naive twin."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskxml.kernels.cpu.kernels import CpuKernels
from daskxml.kernels.cpu.row_step import row_step
from daskxml.kernels.operands import ROW_BLOCK, RowNet, scratch_floats
from daskxml.models.network.mlp import takes_row_steps
from daskxml.models.network.spec import ModelSpec
from harness import naive_row_step
from harness.kernel_cases import close, modest, normal, random_csr, seeds, wide

LABELS = (1, 2, 17, ROW_BLOCK, 2 * ROW_BLOCK + 3)


def make_net(rng, widths, activation="relu", loss="softmax", spread=1.0):
    """Return a net whose parameters lie apart from each other, on 64 bytes, zeros between."""
    places, parts, end = [], [], 0
    for inputs, outputs in pairwise(widths):
        starts = []
        for size in (inputs * outputs, outputs):
            starts.append(end)
            parts.append(np.pad(normal(rng, size, spread=spread * inputs**-0.5), (0, -size % 16)))
            end += len(parts[-1])
        places.append([*starts, inputs, outputs])
    places = np.array(places, np.int64)
    scratch = np.full(scratch_floats(places), np.nan, np.float32)
    return RowNet(
        flat=np.concatenate(parts), places=places, scratch=scratch,
        activation=activation, loss=loss,
    )  # fmt: skip


@st.composite
def cases(draw):
    """Draw a net and some rows: without features, without labels, or with neither values."""
    rng = np.random.default_rng(draw(seeds))
    hidden = draw(st.lists(st.sampled_from([1, 3, 16, 40]), min_size=1, max_size=4))
    features, labels = draw(st.integers(1, 30)), draw(st.sampled_from(LABELS))
    kinds = (
        draw(st.sampled_from(["relu", "sigmoid"])),
        draw(st.sampled_from(["softmax", "sigmoid"])),
    )
    net = make_net(rng, [features, *hidden, labels], *kinds, draw(st.sampled_from([0.5, 2.0])))
    x = random_csr(rng, 4, features, draw(st.floats(0, 1)), draw(st.booleans()))
    y = random_csr(rng, 4, labels, draw(st.sampled_from([0.0, 0.01, 0.5])), ones=True)
    return net, x, y


def test_only_a_single_thread_steps_with_one_row():
    spec = ModelSpec(features=5, labels=9)
    steps = [takes_row_steps(spec, CpuKernels(threads), 1 << 20) for threads in (1, 2)]
    assert steps == [True, False]


@modest
@given(cases(), st.sampled_from([0.0, 0.05]), st.sampled_from([0.0, 0.1]))
def test_steps(case, lr, output_lr):
    net, x, y = case
    for row in range(4):
        slow = replace(net, flat=wide(net.flat))
        loss = row_step(net, x, y, row, lr, output_lr)
        close(loss, naive_row_step.row_step(slow, x, y, row, lr, output_lr), 1e-4)
        close(net.flat, slow.flat, 1e-4)


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_a_row_without_labels_has_no_softmax(activation):
    rng = np.random.default_rng(0)
    net = make_net(rng, [5, 7, 9], activation)
    x, y = random_csr(rng, 1, 5, 1.0), random_csr(rng, 1, 9, 0.0, ones=True)
    before = net.flat.copy()
    assert row_step(net, x, y, 0, 1.0, 1.0) == 0.0
    assert (net.flat == before).all()


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_a_weight_that_is_not_a_number_does_not_hide(loss):
    rng = np.random.default_rng(0)
    net = make_net(rng, [5, 7, 1200], "sigmoid", loss)
    x, y = random_csr(rng, 1, 5, 1.0), random_csr(rng, 1, 1200, 0.1, ones=True)
    net.flat[net.places[1, 0] + 7 * 1100] = np.nan
    assert np.isnan(row_step(net, x, y, 0, 1.0, 1.0))


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_logits_beyond_the_reach_of_exp(loss):
    rng = np.random.default_rng(0)
    net = make_net(rng, [5, 7, 600], "sigmoid", loss, spread=300.0)
    x, y = random_csr(rng, 1, 5, 1.0), random_csr(rng, 1, 600, 0.1, ones=True)
    slow = replace(net, flat=wide(net.flat))
    expected = naive_row_step.row_step(slow, x, y, 0, 0.1, 0.1)
    np.testing.assert_allclose(row_step(net, x, y, 0, 0.1, 0.1), expected, rtol=1e-5)
    np.testing.assert_allclose(net.flat, slow.flat, rtol=1e-3, atol=1e-3)


def test_weights_of_units_that_are_off_are_left_alone():
    rng = np.random.default_rng(0)
    net = make_net(rng, [5, 7, 6, 3])
    net.flat[net.places[0, 1] + 2] = -1e6  # a bias: unit 2 is off
    x, y = random_csr(rng, 1, 5, 1.0), random_csr(rng, 1, 3, 1.0, ones=True)
    rows = [net.flat[start : start + 6] for start in net.places[1, 0] + 6 * np.arange(7)]
    before = [row.copy() for row in rows]
    row_step(net, x, y, 0, 0.1, 0.1)
    same = [bool((row == old).all()) for row, old in zip(rows, before, strict=True)]
    assert same[2]
    assert not all(same)
