"""A replica's steps of one row: one kernel where it applies, and what the many kernels do."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.core.arrays import Segment
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.kernels import get_kernels
from daskxml.models.network.mlp import takes_row_steps
from daskxml.models.network.spec import ModelSpec, initial_parameters
from daskxml.optim import OptimizerConfig
from daskxml.worker.replica import Replica

ROWS, FEATURES, LABELS = 30, 50, 700
ONE, TWO = get_kernels("cpu", 1), get_kernels("cpu", 2)
PART = generate(SyntheticSpec(rows=ROWS, test_rows=1, features=FEATURES, labels=LABELS))[0]
EMPTY = Segment(PART, np.arange(0))


def make_replica(kernels, spec, optimizer=OptimizerConfig(), budget=1 << 20):  # noqa: B008
    replica = Replica(spec, optimizer, kernels, max_batch_rows=4, logits_budget_bytes=budget)
    replica.flat[:] = initial_parameters(spec, 3)
    return replica


def train(replica, rows, lr=0.1):
    return [replica.step([EMPTY, Segment(PART, np.array([row]))], lr, 0) for row in rows]


@settings(max_examples=20, deadline=None)
@given(
    rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=12),
    hidden=st.sampled_from([(24,), (24, 16), (8, 8, 8, 8)]),
    activation=st.sampled_from(["relu", "sigmoid"]),
    loss=st.sampled_from(["softmax", "sigmoid"]),
    output_lr=st.sampled_from([1.0, 0.3]),
)
def test_one_kernel_does_what_many_do(rows, hidden, activation, loss, output_lr):
    spec = ModelSpec(
        features=FEATURES, labels=LABELS, hidden=hidden, activation=activation, loss=loss
    )
    optimizer = OptimizerConfig(output_lr=output_lr)
    fused, others = (make_replica(kernels, spec, optimizer) for kernels in (ONE, TWO))
    # Sigmoids of 700 labels: at larger rates losses grow, and with them what rounding differs by.
    found, expected = (train(replica, rows, lr=0.001) for replica in (fused, others))
    losses = [[step.loss_sum for step in steps] for steps in (found, expected)]
    np.testing.assert_allclose(*losses, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(fused.flat, others.flat, atol=1e-4)
    for a, b in zip(found, expected, strict=True):
        assert (a.rows, a.nonzeros, a.labels_scored) == (b.rows, b.nonzeros, b.labels_scored)


def test_the_same_bits_again():
    spec = ModelSpec(features=FEATURES, labels=LABELS, hidden=(24, 16))
    replicas = [make_replica(ONE, spec) for _ in range(2)]
    assert train(replicas[0], range(ROWS)) == train(replicas[1], range(ROWS))
    assert replicas[0].flat.tobytes() == replicas[1].flat.tobytes()


@pytest.mark.parametrize(
    ("options", "budget"),
    [({"hidden": ()}, 1 << 20), ({"dropout": 0.5}, 1 << 20), ({"feature_dropout": 0.5}, 1 << 20),
     ({}, 4 * LABELS - 1)],
)  # fmt: skip
def test_models_that_it_is_not_made_for(options, budget):
    spec = ModelSpec(**{"features": FEATURES, "labels": LABELS, "hidden": (24,), **options})
    assert not takes_row_steps(spec, ONE, budget)
    check_alike(spec, budget=budget)


def check_alike(spec, **options):
    """Check that one thread and two train the same."""
    one, two = (make_replica(kernels, spec, **options) for kernels in (ONE, TWO))
    for replica in (one, two):
        train(replica, range(6))
    np.testing.assert_allclose(one.flat, two.flat, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [{"name": "momentum"}, {"weight_decay": 0.1}, {"clip_norm": 0.01}, {"output": "adam"}],
)
def test_optimizers_that_it_is_not_made_for(options):
    optimizer = OptimizerConfig(**options)
    assert not optimizer.is_plain_sgd
    spec = ModelSpec(features=FEATURES, labels=LABELS, hidden=(24,))
    check_alike(spec, optimizer=optimizer)


def test_threads_that_step_on_one_model_have_buffers_of_their_own():
    spec = ModelSpec(features=FEATURES, labels=LABELS, hidden=(24,))
    replica = make_replica(ONE, spec)
    twin = replica.twin(ONE, 4, 1 << 20)
    assert twin._row_step._net.flat is replica.flat
    assert not np.shares_memory(twin._row_step._net.scratch, replica._row_step._net.scratch)
