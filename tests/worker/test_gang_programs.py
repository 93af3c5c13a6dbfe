"""Gangs and merges in one process, against the same algorithms written out plainly."""

import numpy as np
import pytest

from daskxml.collectives.combine import CombineConfig
from daskxml.collectives.messages import ReceiveAny, Send
from daskxml.optim import OptimizerConfig, ScheduleConfig
from daskxml.session.ledger import Span
from daskxml.strategies.protocol import Asynchronous, Averaging, Central, LocalSteps, Mirrored
from daskxml.worker.evaluation import evaluate
from daskxml.worker.gang_programs import server_program
from harness.gangs import DATA, adasum, make_gang, make_workers, merge, run_gang

OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam", "lamb")


def flats(group):
    return [np.array(worker.replica.flat) for worker in group]


def same(arrays):
    for array in arrays[1:]:
        np.testing.assert_array_equal(array, arrays[0])


def close(a, b, tolerance=2e-6):
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def gradients(worker, gang, step):
    """The mean gradient of every rank's batch, at the member's weights."""
    found = []
    for batches in gang.batches:
        if step < len(batches):
            worker.runner.gradient(batches[step], worker.gradient, 1.0, {})
            found.append(np.array(worker.gradient.flat, dtype=np.float64))
        else:
            found.append(np.zeros(worker.layout.size))
    return found


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_mirrored_is_one_step_on_the_rows_of_all(name):
    group = make_workers(3, optimizer=OptimizerConfig(name=name))
    (alone,) = make_workers(1, optimizer=OptimizerConfig(name=name))
    run_gang(group, make_gang(Mirrored(), [10, 6, 16], [10, 6, 16], lrs=[0.05] * 3))
    alone.runner.step([Span(0, 0, 0, 32)], 0.05, {})
    same(flats(group))
    close(group[0].replica.flat, alone.replica.flat)


def test_mirrored_continues_where_a_rank_has_no_more_batches():
    group = make_workers(2)
    gang = make_gang(Mirrored(), [20, 10], [10, 10])
    results = run_gang(group, gang)
    (by_hand,) = make_workers(1)
    both = gradients(by_hand, gang, 0)
    by_hand.replica.flat[:] -= (0.5 * (both[0] + both[1]) / 2).astype(np.float32)
    by_hand.replica.flat[:] -= (0.5 * gradients(by_hand, gang, 1)[0]).astype(np.float32)
    same(flats(group))
    close(group[0].replica.flat, by_hand.replica.flat)
    assert [r.nonzeros > 0 for r in results] == [True, True]


def test_central_gives_what_mirrored_gives():
    mirrored, central = make_workers(3), make_workers(3)
    run_gang(mirrored, make_gang(Mirrored(), [30, 30, 20], [10, 10, 10]))
    run_gang(central, make_gang(Central(), [30, 30, 20], [10, 10, 10]))
    same(flats(central))
    close(central[0].replica.flat, mirrored[0].replica.flat)


@pytest.mark.parametrize("pattern", [Mirrored(), Central()], ids=["mirrored", "central"])
def test_the_sum_is_the_mean_times_the_ranks(pattern):
    summed = make_workers(2, combine=CombineConfig(rule="sum"))
    mean = make_workers(2)
    run_gang(summed, make_gang(pattern, [10, 10], [10, 10], lrs=[0.25, 0.25]))
    run_gang(mean, make_gang(pattern, [10, 10], [10, 10], lrs=[0.5, 0.5]))
    close(summed[0].replica.flat, mean[0].replica.flat)


def test_asynchronous_with_one_worker_is_sgd():
    group, (alone,) = make_workers(1), make_workers(1)
    (result, server) = run_gang(group, make_gang(Asynchronous(-1), [40], [10]))
    for start in range(0, 40, 10):
        alone.runner.step([Span(0, 0, start, start + 10)], 0.5, {})
    close(group[0].array("center"), alone.replica.flat)
    assert server.means["staleness"] == (0, 4)
    assert result.loss_sum > 0.0


def test_asynchronous_applies_every_gradient_once():
    group = make_workers(3)
    *_, server = run_gang(group, make_gang(Asynchronous(-1), [30, 20, 10], [10, 10, 10]))
    assert server.means["staleness"][1] == 6
    assert server.means["staleness"][0] > 0
    merge(group, [1.0, 0.0, 0.0])
    same(flats(group))
    np.testing.assert_array_equal(group[0].current, group[0].array("center"))


def test_no_rank_runs_ahead_where_no_staleness_is_allowed():
    """Then every worker sees a model that lacks at most one gradient of each other."""
    group = make_workers(3)
    *_, server = run_gang(group, make_gang(Asynchronous(0), [40, 40, 40], [10, 10, 10]))
    total, count = server.means["staleness"]
    assert count == 12
    assert total <= 2 * count


@pytest.mark.parametrize("bound", [0, 1, 2])
def test_a_worker_is_ahead_by_as_many_batches_as_the_bound_says(bound):
    """The other one's first gradient never comes."""
    gang = make_gang(Asynchronous(bound), [40, 40], [10, 10])
    server = server_program(make_workers(1)[0], gang)
    message, models, gradients = next(server), 0, 0
    while not isinstance(message, ReceiveAny) or gradients < models:
        gradients += isinstance(message, ReceiveAny)
        models += isinstance(message, Send) and message.to == 0
        message = server.send(0 if isinstance(message, ReceiveAny) else None)
    assert gradients == bound + 1


def test_crossbow_as_the_paper_writes_it():
    pull, momentum = 0.2, 0.5
    group = make_workers(3, kind="averages")
    plain = make_workers(3)
    rows, sizes = [30, 30, 30], [10, 10, 10]
    gang = make_gang(Averaging(pull, momentum), rows, sizes)
    run_gang(group, gang)
    center = np.array(plain[0].current, dtype=np.float64)
    before = center.copy()
    for step in range(3):
        corrections = []
        for worker, batches in zip(plain, gang.batches, strict=True):
            corrections.append(pull * (np.array(worker.replica.flat, np.float64) - center))
            worker.runner.step(batches[step], 0.5, {})
            worker.replica.flat[:] -= corrections[-1].astype(np.float32)
        moved = center + sum(corrections) + momentum * (center - before)
        center, before = moved, center
    for worker, by_hand in zip(group, plain, strict=True):
        close(worker.replica.flat, by_hand.replica.flat)
        close(worker.array("center"), center)
    assert np.abs(group[0].replica.flat - group[1].replica.flat).max() > 1e-4
    replicas = flats(group)
    merge(group, [1.0, 0.0, 0.0])
    for worker, replica in zip(group, replicas, strict=True):
        close(worker.current, center)
        close(worker.previous, before)
        np.testing.assert_array_equal(worker.replica.flat, replica)  # they live on


@pytest.mark.parametrize("rule", ["mean", "sum", "adasum"])
def test_local_steps_combine_what_changed(rule):
    group = make_workers(2, combine=CombineConfig(rule=rule))
    apart = make_workers(2)
    gang = make_gang(LocalSteps(2), [20, 20], [10, 10])
    results = run_gang(group, gang)
    start = np.array(apart[0].replica.flat, dtype=np.float64)
    for worker, batches in zip(apart, gang.batches, strict=True):
        for batch in batches:
            worker.runner.step(batch, 0.5, {})
    a, b = (np.array(m.replica.flat, dtype=np.float64) - start for m in apart)
    merged = np.zeros_like(start)
    for slot in group[0].layout.slots.values():
        part = slice(slot.offset, slot.offset + slot.size)
        merged[part] = combined(a[part], b[part], rule)
    same(flats(group))
    close(group[0].replica.flat, start + merged)
    named = {f"orthogonality/{name}" for name in group[0].layout.names}
    assert results[0].means.keys() == (named if rule == "adasum" else set())
    assert all(0.4 <= total <= 1.1 for total, _ in results[0].means.values())


def combined(a, b, rule):
    if rule != "adasum":
        return (a + b) / (2 if rule == "mean" else 1)
    dot = a @ b
    return (1 - dot / (2 * (a @ a))) * a + (1 - dot / (2 * (b @ b))) * b


def test_changes_of_local_steps_are_weighed_by_the_rows_of_all_of_them():
    group, apart = make_workers(2), make_workers(2)
    gang = make_gang(LocalSteps(2), [20, 12], [10, 10])  # the second one's last batch has two rows
    run_gang(group, gang)
    for worker, batches in zip(apart, gang.batches, strict=True):
        for batch in batches:
            worker.runner.step(batch, 0.5, {})
    first, second = flats(apart)
    close(group[1].replica.flat, (20.0 * first + 12.0 * second) / 32.0)


def test_a_lost_gang_is_as_if_it_had_never_been():
    group, fresh = (
        make_workers(2, optimizer=OptimizerConfig(name="adam")),
        make_workers(2, optimizer=OptimizerConfig(name="adam")),
    )
    run_gang(group, make_gang(Mirrored(), [20, 20], [10, 10], lrs=[0.01, 0.01]))
    run_gang(group, make_gang(Mirrored(), [30, 10], [10, 5], lrs=[0.01, 0.01], rewinds=True))
    run_gang(fresh, make_gang(Mirrored(), [30, 10], [10, 5], lrs=[0.01, 0.01]))
    np.testing.assert_array_equal(group[1].replica.flat, fresh[1].replica.flat)


def test_the_schedule_is_that_of_the_rows_place_in_the_run():
    schedule = ScheduleConfig(name="linear")
    (worker,) = make_workers(1, epochs=2.0, schedule=schedule)
    assert worker.runner.scheduled(1.0, [Span(0, 0, 60, 70)]) == pytest.approx(0.75)
    assert worker.runner.scheduled(1.0, [Span(1, 0, 60, 70)]) == pytest.approx(0.25)
    both = [Span(0, 0, 114, 120), Span(1, 0, 0, 4)]  # a batch of two epochs: where it begins
    assert worker.runner.scheduled(1.0, both) == pytest.approx(0.525)
    group = make_workers(2, epochs=2.0, schedule=schedule)
    (alone,) = make_workers(1)
    run_gang(group, make_gang(Mirrored(), [10, 10], [10, 10], first=60))
    alone.runner.step([Span(0, 0, 60, 80)], 0.5 * 0.75, {})
    close(group[0].replica.flat, alone.replica.flat)


# ------------------------------------------------------------------------ merges


def stepped(group, lr=0.5):
    for rank, worker in enumerate(group):
        worker.runner.step([Span(0, 0, 10 * rank, 10 * rank + 10)], lr, {})
    return [np.array(m.replica.flat, dtype=np.float64) for m in group]


def test_a_merge_is_line_11_of_algorithm_2():
    group = make_workers(3)
    old = np.array(group[0].current, dtype=np.float64)
    first = stepped(group)
    merge(group, [0.5, 0.3, 0.2], 0.9, generation=1)
    expected = 0.5 * first[0] + 0.3 * first[1] + 0.2 * first[2]
    close(group[0].current, expected)  # no momentum yet
    second = stepped(group)
    merge(group, [0.5, 0.3, 0.2], 0.9, generation=2)
    merged = 0.5 * second[0] + 0.3 * second[1] + 0.2 * second[2] + 0.9 * (expected - old)
    same([m.current for m in group])
    close(group[2].current, merged)
    close(group[2].previous, expected)
    same(flats(group))


def test_the_outer_optimizer_is_nesterovs():
    combine = CombineConfig(outer="nesterov", outer_lr=0.7, outer_momentum=0.8)
    group = make_workers(2, combine=combine)
    model, velocity = np.array(group[0].current, dtype=np.float64), 0.0
    for generation in range(1, 4):
        found = stepped(group, 0.3)
        gradient = model - (0.6 * found[0] + 0.4 * found[1])
        velocity = 0.8 * velocity + gradient
        model = model - 0.7 * (gradient + 0.8 * velocity)
        merge(group, [0.6, 0.4], 0.9, generation)
        close(group[0].current, model, 1e-5)
        same(flats(group))


@pytest.mark.parametrize("order", ["tree", "linear"])
def test_merging_by_adasum_combines_changes(order):
    group = make_workers(2, **adasum(order=order))
    old = np.array(group[0].current, dtype=np.float64)
    a, b = (flat - old for flat in stepped(group))
    notes = merge(group, [0.5, 0.5])
    for slot in group[0].layout.slots.values():
        part = slice(slot.offset, slot.offset + slot.size)
        close(group[1].current[part], old[part] + combined(a[part], b[part], "adasum"))
    same(flats(group))
    assert len(notes[0]) == len(group[0].layout.names)
    assert not notes[1]


@pytest.mark.parametrize("weights", [[0.75, 0.25], [0.9, 0.3]])  # perturbed ones may be more
def test_the_optimizers_state_is_averaged_if_asked(weights):
    group = make_workers(2, optimizer=OptimizerConfig(name="adam"), on_merge="average")
    stepped(group, 0.01)
    states = [{n: np.array(a) for n, a in m.replica.optimizer.state().items()} for m in group]
    merge(group, weights)
    for worker in group:
        for name, array in worker.replica.optimizer.state().items():
            close(array, 0.75 * states[0][name] + 0.25 * states[1][name])


def test_the_mean_of_counts_of_steps_is_the_nearest_whole_number():
    group = make_workers(2, optimizer=OptimizerConfig(name="adam"), on_merge="average")
    for workers in (group, group[:1], group[:1]):
        stepped(workers, 0.01)
    merge(group, [0.9, 0.1])  # of 3 steps and 1 step: 2.8
    assert [int(m.replica.optimizer.state()["steps"][0]) for m in group] == [3, 3]


def test_the_optimizers_state_is_kept_or_reset():
    for choice in ("keep", "reset"):
        group = make_workers(1, optimizer=OptimizerConfig(name="momentum"), on_merge=choice)
        stepped(group)
        merge(group, [1.0])
        (velocity,) = (a for n, a in group[0].replica.optimizer.state().items() if a.shape[0] > 1)
        assert velocity.any() == (choice == "keep")


def test_a_newcomer_gets_the_joint_model_and_its_optimizer():
    group = make_workers(3, optimizer=OptimizerConfig(name="adam"), kind="is_joint")
    run_gang(group[:2], make_gang(Mirrored(), [20, 20], [10, 10], lrs=[0.01, 0.01]))
    merge(group, [1.0, 0.0, 0.0])
    same(flats(group))
    states = [m.replica.optimizer.state() for m in group]
    for name in states[0]:
        np.testing.assert_array_equal(states[2][name], states[0][name])


def test_local_state_goes_round_a_checkpoint():
    changes = {"optimizer": OptimizerConfig(name="adam"), "kind": "averages"}
    (worker,), (other,) = make_workers(1, **changes), make_workers(1, **changes)
    stepped([worker], 0.01)
    other.set_local_state(worker.local_state())
    for one in (worker, other):
        one.runner.step([Span(0, 0, 50, 60)], 0.01, {})
    np.testing.assert_array_equal(worker.replica.flat, other.replica.flat)
    assert not make_workers(1)[0].local_state()


def test_replicas_that_live_on_are_evaluated_by_the_global_model():
    (worker,) = make_workers(1, kind="averages")
    before = evaluate(worker, [(0, 0, DATA[1].rows)], {})
    stepped([worker], 2.0)
    replica = np.array(worker.replica.flat)
    assert evaluate(worker, [(0, 0, DATA[1].rows)], {}) == before
    np.testing.assert_array_equal(worker.replica.flat, replica)


def test_momentum_is_added_to_changes_that_a_rule_has_combined():
    (worker,) = make_workers(1, **adasum())
    merge([worker], [1.0], 0.9, generation=1)
    worker.replica.flat += 0.5
    merge([worker], [1.0], 0.9, generation=2)
    before, current = worker.previous.copy(), worker.current.copy()
    worker.replica.flat += 0.25
    merge([worker], [1.0], 0.9, generation=3)
    expected = current + 0.25 + 0.9 * (current - before)
    np.testing.assert_allclose(worker.current, expected, rtol=1e-5)
