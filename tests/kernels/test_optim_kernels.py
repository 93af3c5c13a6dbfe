"""The kernels of the optimizers against their naive twins."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskxml.kernels.cpu import thread_team
from daskxml.kernels.cpu.kernels import CpuKernels
from daskxml.kernels.operands import RowGradient, RuleStep
from harness.kernel_cases import (
    EVERY,
    EVERY_THREADS,
    NAIVE,
    ONE,
    TWO,
    close,
    modest,
    normal,
    seeds,
    wide,
)

ADAM = RuleStep(lr=0.1, beta1=0.9, beta2=0.99, epsilon=1e-6, weight_decay=0.2, step=3)
MOMENTUM = replace(ADAM, momentum=0.5)
NESTEROV = replace(MOMENTUM, is_nesterov=True)


@pytest.fixture(scope="module", autouse=True)
def _threads_for_the_smallest_work():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thread_team, "ROW_GRAIN", 1)
        yield


@st.composite
def steps(draw):
    """Weights, two moments, and a gradient of some of the rows, in any order, or of all."""
    rng = np.random.default_rng(draw(seeds))
    rows, width = draw(st.integers(0, 9)), draw(st.sampled_from([1, 3, 16, 40]))
    ids = None if draw(st.booleans()) else rng.permutation(rows)[: rows // 2].astype(np.int32)
    values = normal(rng, rows if ids is None else len(ids), width)
    values[rng.random(len(values)) < 0.3] = 0.0
    gradient = RowGradient(values, ids, draw(st.booleans()), draw(st.sampled_from([1.0, 0.3])))
    return [normal(rng, rows, width), normal(rng, rows, width), normal(rng, rows, width) ** 2], (
        gradient
    )


def compare(fast, case, run):
    """Run both on the same arrays; return what they are before and after, fast and naive."""
    arrays, gradient = case
    before = [array.copy() for array in arrays]
    slow = [wide(array) for array in arrays]
    values = wide(gradient.values)
    run(fast, *arrays, gradient)
    run(NAIVE, *slow, RowGradient(values, gradient.ids, gradient.skip_zero_rows, gradient.scale))
    for array, expected in zip(arrays, slow, strict=True):
        close(array, expected)
    still = np.ones(len(before[0]), bool)
    ids = np.arange(len(values)) if gradient.ids is None else gradient.ids
    still[ids[values.any(axis=1) | (not gradient.skip_zero_rows)]] = False
    for array, old in zip(arrays, before, strict=True):
        assert (array[still] == old[still]).all()


RUNS = {
    "sgd": lambda k, w, m, v, g: k.sgd_rows(w, g, 0.1, 0.9),
    "momentum": lambda k, w, m, v, g: k.moment_rows("momentum", w, (m,), g, MOMENTUM),
    "nesterov": lambda k, w, m, v, g: k.moment_rows("momentum", w, (m,), g, NESTEROV),
    "adam": lambda k, w, m, v, g: k.moment_rows("adam", w, (m, v), g, ADAM),
    "row-rms": lambda k, w, m, v, g: k.moment_rows("row-rms", w, (v,), g, ADAM),
    "lamb": lambda k, w, m, v, g: k.lamb_rows(w, m, v, g, ADAM, np.array([0.7])),
    "lamb moments": lambda k, w, m, v, g: k.lamb_moments(norms_of(k, g), w, m, v, g, ADAM),
}


def norms_of(kernels, gradient):
    return kernels.empty((2, len(gradient.values)), "float64")


@EVERY_THREADS
@pytest.mark.parametrize("rule", RUNS)
@modest
@given(case=steps())
def test_steps(fast, rule, case):
    compare(fast, case, RUNS[rule])


@EVERY_THREADS
@modest
@given(steps())
def test_norms_of_lamb(fast, case):
    arrays, gradient = case
    norms, slow = norms_of(fast, gradient), norms_of(NAIVE, gradient)
    wide_gradient = RowGradient(wide(gradient.values), *vars_of(gradient)[1:])
    NAIVE.lamb_moments(slow, *map(wide, arrays), wide_gradient, ADAM)
    fast.lamb_moments(norms, *arrays, gradient, ADAM)
    close(norms, slow, 1e-4)


def vars_of(gradient):
    return gradient.values, gradient.ids, gradient.skip_zero_rows, gradient.scale


@EVERY
@pytest.mark.parametrize("rows", [0, 1, 9, 3000])
@pytest.mark.parametrize("factor", [1.0, 0.0])
def test_the_trust_ratio_of_lamb(ops, rows, factor):
    norms, trust = np.square(wide(normal(np.random.default_rng(1), 2, rows))), np.zeros(1)
    norms[1] *= factor
    slow = np.zeros(1)
    ops.lamb_trust(trust, norms)
    NAIVE.lamb_trust(slow, norms)
    close(trust, slow, 1e-12)
    assert factor or trust[0] == 1.0


@pytest.mark.parametrize("rule", RUNS)
def test_the_same_bits_with_any_number_of_threads(rule):
    results = []
    for fast in (ONE, TWO, CpuKernels(3)):
        rng = np.random.default_rng(1)
        arrays = [normal(rng, 50, 33), normal(rng, 50, 33), normal(rng, 50, 33) ** 2]
        RUNS[rule](fast, *arrays, RowGradient(normal(rng, 50, 33)))
        results.append([array.tobytes() for array in arrays])
    assert results[0] == results[1] == results[2]


@EVERY
@pytest.mark.parametrize("rule", RUNS)
def test_a_gradient_that_is_not_a_number_does_not_hide(ops, rule):
    arrays = [np.ones((2, 3), np.float32) for _ in range(3)]
    values = np.zeros((2, 3), np.float32)
    values[1, 2] = np.nan
    RUNS[rule](ops, *arrays, RowGradient(values, skip_zero_rows=True))
    assert all((array[0] == 1.0).all() for array in arrays)
    assert any(np.isnan(array[1, 2]) for array in arrays) or rule == "lamb"
