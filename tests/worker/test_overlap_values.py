"""What overlapped merges make of numbers: by hand, on a quadratic, and with every rule."""

from __future__ import annotations

import numpy as np
import pytest

from daskxml.collectives.combine import CombineConfig
from daskxml.collectives.messages import run_together
from daskxml.optim import OptimizerConfig
from daskxml.session.commands import MergeReplicas
from daskxml.session.ledger import Span, cut_batches
from daskxml.worker.evaluation import evaluate, training_loss
from daskxml.worker.merge_program import merge_program
from harness.gangs import make_workers

OVERLAP = CombineConfig(overlap=True)


def two(combine=OVERLAP, **changes):
    """Two members whose models are all zeros."""
    pair = make_workers(2, combine=combine, **changes)
    zeros = np.zeros_like(pair[0].current)
    for worker in pair:
        worker.set_model(zeros, zeros, 0)
    return pair


def move(pair, *steps):
    """What training does: a step of each member."""
    for worker, step in zip(pair, steps, strict=True):
        flat = worker.replica.flat
        flat += np.float32(step)


def merge_of(generation, weights=(0.5, 0.5), momentum=0.0):
    return MergeReplicas(generation, dict(zip("ab", weights, strict=True)), momentum, overlaps=True)


def merge(pair, generation, weights, momentum=0.0):
    order = merge_of(generation, weights, momentum)
    run_together([merge_program(m, order, rank, ("here",) * 2) for rank, m in enumerate(pair)])


def values(pair):
    """Return the replicas, and the global model as each of them has it."""
    for worker in pair:
        for array in (worker.replica.flat, worker.current):
            assert np.all(array == array[0])
    return [float(m.replica.flat[0]) for m in pair], {float(m.current[0]) for m in pair}


def test_three_merges_of_two_workers_by_hand():
    a, b = pair = two()
    move(pair, 1.0, 3.0)
    for worker in pair:
        worker.take_snapshot(merge_of(1))  # 1 and 3
    move(pair, 2.0, -1.0)  # training goes on: replicas are 3 and 2
    merge(pair, 1, [0.25, 0.75])  # 1/4 + 9/4 = 2.5
    assert values(pair) == ([3.0, 2.0], {0.0})
    a.commit(1)  # 3 + (2.5 - 1)
    move(pair, 0.5, 1.0)  # a is corrected before this step, b after it
    b.commit(1)  # 3 + (2.5 - 3)
    assert values(pair) == ([5.0, 2.5], {2.5})  # 2.5 and all that each did since its snapshot

    for worker in pair:
        worker.take_snapshot(merge_of(2, momentum=0.5))
    assert values(pair)[0] == [6.25, 3.75]  # the momentum (2.5 - 0) / 2 is known already
    merge(pair, 2, [0.5, 0.5], momentum=0.5)  # (5 + 2.5) / 2 + 1.25 = 5
    move(pair, 1.0, 1.0)  # 7.25 and 4.75
    for worker in pair:
        worker.commit(2)
    assert values(pair) == ([6.0, 6.0], {5.0})  # 7.25 + (5 - 6.25), 4.75 + (5 - 3.75)
    assert float(a.previous[0]) == 2.5

    merge(pair, 3, [0.75, 0.25])  # nobody goes on: no snapshot is taken, 6
    for worker in pair:
        worker.commit(3)
    assert values(pair) == ([6.0, 6.0], {6.0})


def test_a_snapshot_is_taken_once_for_each_merge():
    pair = two()
    move(pair, 1.0, 3.0)
    for worker in pair:
        worker.take_snapshot(merge_of(1))
    move(pair, 8.0, 8.0)
    for worker in pair:
        worker.take_snapshot(merge_of(1))  # the merge is begun again, without a third worker say
    merge(pair, 1, [0.5, 0.5])
    for worker in pair:
        worker.commit(1)
        worker.commit(1)  # told twice
    assert values(pair) == ([10.0, 10.0], {2.0})


@pytest.mark.parametrize(
    ("combine", "merged"),
    [
        (CombineConfig(overlap=True, rule="sum"), 4.0),  # 0 + 1 + 3
        (CombineConfig(overlap=True, outer="nesterov", outer_lr=0.5, outer_momentum=0.5), 1.5),
    ],
)
def test_every_rule_takes_the_snapshots(combine, merged):
    """Nesterov: the mean change is 2, its step (1 + 1/2) 1/2 of that."""
    pair = two(combine)
    move(pair, 1.0, 3.0)
    for worker in pair:
        worker.take_snapshot(merge_of(1))
    move(pair, 8.0, 8.0)
    merge(pair, 1, [0.5, 0.5])
    for worker in pair:
        worker.commit(1)
    assert values(pair) == ([merged + 8.0] * 2, {merged})


@pytest.mark.parametrize("delay", [0, 3, 6])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_two_quadratics_meet_at_their_common_minimum(delay, momentum):
    """Worker i descends c_i (w - m_i)^2 / 2; corrections come ``delay`` of 6 steps late."""
    curvatures, minima, rate, steps = (1.0, 3.0), (2.0, -1.0), 0.005, 6
    target = np.dot(curvatures, minima) / np.sum(curvatures)  # (2 - 3) / 4
    pair = two()

    def descend(count):
        for _ in range(count):
            at = [float(m.replica.flat[0]) for m in pair]
            slopes = [c * (w - m) for c, w, m in zip(curvatures, at, minima, strict=True)]
            move(pair, *(-rate * slope for slope in slopes))

    descend(steps)
    for generation in range(1, 400):
        for worker in pair:
            worker.take_snapshot(merge_of(generation, momentum=momentum))
        merge(pair, generation, [0.5, 0.5], momentum)
        descend(delay)
        for worker in pair:
            worker.commit(generation)
        descend(steps - delay)
    (found,) = values(pair)[1]
    # What is left is the drift of several local steps, in the order of rate * steps.
    assert found == pytest.approx(target, abs=0.05)


@pytest.mark.parametrize("on_merge", ["keep", "reset"])
def test_moments_stay_or_are_forgotten_when_a_replica_is_corrected(on_merge):
    pair = make_workers(
        2, combine=OVERLAP, optimizer=OptimizerConfig(name="momentum"), on_merge=on_merge
    )
    batches = cut_batches([Span(0, 0, 0, 32)], 8)
    for worker in pair:
        worker.lease(batches, 0.1, {})
        worker.take_snapshot(merge_of(1))
        worker.lease(batches, 0.1, {})
    before = {n: np.array(a) for n, a in pair[0].replica.optimizer.state().items()}
    assert any(np.any(array) for array in before.values())
    merge(pair, 1, [0.5, 0.5])
    for n, array in pair[0].replica.optimizer.state().items():
        assert np.array_equal(array, before[n])
    pair[0].commit(1)
    after = pair[0].replica.optimizer.state()
    if on_merge == "keep":
        assert all(np.array_equal(after[n], before[n]) for n in before)
    else:
        assert not any(np.any(array) for array in after.values())


def test_the_global_model_is_evaluated_and_training_continues_from_the_replica():
    pair = make_workers(2, combine=OVERLAP)
    batches = cut_batches([Span(0, 0, 0, 64)], 8)
    for worker in pair:
        worker.lease(batches, 0.5, {})
        worker.take_snapshot(merge_of(1))
    merge(pair, 1, [0.5, 0.5])
    equal = make_workers(1)[0]
    equal.set_model(pair[0].scratch.copy(), pair[0].current.copy(), 1)
    for worker in pair:
        worker.lease(batches, 0.5, {})
        worker.commit(1)
    before = np.array(pair[0].replica.flat)
    assert not np.array_equal(before, pair[0].current)
    assert evaluate(pair[0], [(0, 0, 30)], {}) == evaluate(equal, [(0, 0, 30)], {})
    assert training_loss(pair[0], [(0, 0, 120)], {}) == training_loss(equal, [(0, 0, 120)], {})
    assert np.array_equal(pair[0].replica.flat, before)


def test_it_costs_one_model_more():
    (worker,) = make_workers(1, combine=OVERLAP)
    worker.take_snapshot(merge_of(1))
    with worker.global_model():
        pass
    assert list(worker._arrays) == ["snapshot"]
