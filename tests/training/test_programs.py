"""Gangs and merges in one process, against the same algorithms written out plainly."""

from __future__ import annotations

import numpy as np
import pytest
from gangs import DATA, adasum, members, merge, order, play

from daskxml.combine import CombineConfig
from daskxml.optim import OptimizerConfig, ScheduleConfig
from daskxml.strategies.schemes import Asynchronous, Averaging, Central, LocalSteps, Mirrored
from daskxml.training.ledger import Span

OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam", "lamb")


def flats(crew):
    return [np.array(member.replica.flat) for member in crew]


def same(arrays):
    for array in arrays[1:]:
        np.testing.assert_array_equal(array, arrays[0])


def close(a, b, tolerance=2e-6):
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def gradients(member, gang, step):
    """The mean gradient of every rank's batch, at the member's weights."""
    found = []
    for batches in gang.batches:
        if step < len(batches):
            member.find_gradient(batches[step], 1.0, {})
            found.append(np.array(member.gradient.flat, dtype=np.float64))
        else:
            found.append(np.zeros(member.layout.size))
    return found


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_mirrored_is_one_step_on_the_rows_of_all(name):
    crew = members(3, optimizer=OptimizerConfig(name=name))
    (alone,) = members(1, optimizer=OptimizerConfig(name=name))
    play(crew, order(Mirrored(), [10, 6, 16], [10, 6, 16], lrs=[0.05] * 3))
    alone.step([Span(0, 0, 0, 32)], 0.05, {})
    same(flats(crew))
    close(crew[0].replica.flat, alone.replica.flat)


def test_mirrored_goes_on_where_a_rank_is_through():
    crew = members(2)
    gang = order(Mirrored(), [20, 10], [10, 10])
    results = play(crew, gang)
    (by_hand,) = members(1)
    both = gradients(by_hand, gang, 0)
    by_hand.replica.flat[:] -= (0.5 * (both[0] + both[1]) / 2).astype(np.float32)
    by_hand.replica.flat[:] -= (0.5 * gradients(by_hand, gang, 1)[0]).astype(np.float32)
    same(flats(crew))
    close(crew[0].replica.flat, by_hand.replica.flat)
    assert [r.nonzeros > 0 for r in results] == [True, True]


def test_central_gives_what_mirrored_gives():
    mirrored, central = members(3), members(3)
    play(mirrored, order(Mirrored(), [30, 30, 20], [10, 10, 10]))
    play(central, order(Central(), [30, 30, 20], [10, 10, 10]))
    same(flats(central))
    close(central[0].replica.flat, mirrored[0].replica.flat)


@pytest.mark.parametrize("scheme", [Mirrored(), Central()], ids=["mirrored", "central"])
def test_the_sum_is_the_mean_times_the_ranks(scheme):
    summed = members(2, rule="sum", combine=CombineConfig(rule="sum"))
    mean = members(2)
    play(summed, order(scheme, [10, 10], [10, 10], lrs=[0.25, 0.25]))
    play(mean, order(scheme, [10, 10], [10, 10], lrs=[0.5, 0.5]))
    close(summed[0].replica.flat, mean[0].replica.flat)


def test_asynchronous_with_one_worker_is_sgd():
    crew, (alone,) = members(1), members(1)
    (result, server) = play(crew, order(Asynchronous(-1), [40], [10]))
    for start in range(0, 40, 10):
        alone.step([Span(0, 0, start, start + 10)], 0.5, {})
    close(crew[0].array("center"), alone.replica.flat)
    assert server.notes["staleness"] == (0, 4)
    assert result.loss_sum > 0.0


def test_asynchronous_applies_every_gradient_once():
    crew = members(3)
    *_, server = play(crew, order(Asynchronous(-1), [30, 20, 10], [10, 10, 10]))
    assert server.notes["staleness"][1] == 6
    assert server.notes["staleness"][0] > 0
    merge(crew, [1.0, 0.0, 0.0])
    same(flats(crew))
    np.testing.assert_array_equal(crew[0].current, crew[0].array("center"))


def test_nobody_runs_ahead_where_no_staleness_is_allowed():
    """Then every worker sees a model that lacks at most one gradient of each other."""
    crew = members(3)
    *_, server = play(crew, order(Asynchronous(0), [40, 40, 40], [10, 10, 10]))
    total, count = server.notes["staleness"]
    assert count == 12
    assert total <= 2 * count


def test_crossbow_as_the_paper_writes_it():
    pull, momentum = 0.2, 0.5
    crew = members(3, averages=True, keeps_replicas=True)
    plain = members(3)
    rows, sizes = [30, 30, 30], [10, 10, 10]
    gang = order(Averaging(pull, momentum, restarts=False), rows, sizes)
    play(crew, gang)
    center = np.array(plain[0].current, dtype=np.float64)
    before = center.copy()
    for step in range(3):
        corrections = []
        for member, batches in zip(plain, gang.batches, strict=True):
            corrections.append(pull * (np.array(member.replica.flat, np.float64) - center))
            member.step(batches[step], 0.5, {})
            member.replica.flat[:] -= corrections[-1].astype(np.float32)
        moved = center + sum(corrections) + momentum * (center - before)
        center, before = moved, center
    for member, by_hand in zip(crew, plain, strict=True):
        close(member.replica.flat, by_hand.replica.flat)
        close(member.array("center"), center)
    assert np.abs(crew[0].replica.flat - crew[1].replica.flat).max() > 1e-4
    replicas = flats(crew)
    merge(crew, [1.0, 0.0, 0.0])
    for member, replica in zip(crew, replicas, strict=True):
        close(member.current, center)
        close(member.previous, before)
        np.testing.assert_array_equal(member.replica.flat, replica)  # they live on


def test_a_crossbow_that_restarts_begins_as_the_average():
    crew = members(2, averages=True, keeps_replicas=True)
    play(crew, order(Averaging(0.25, 0.0, restarts=False), [20, 20], [10, 10]))
    merge(crew, [1.0, 0.0])
    fresh = members(2, averages=True, keeps_replicas=True)
    for member in fresh:
        member.set_model(crew[0].current, crew[0].previous, 1)
    for those, restarts in ((crew, True), (fresh, False)):
        play(those, order(Averaging(0.25, 0.0, restarts), [20, 20], [10, 10], first=40))
    np.testing.assert_array_equal(crew[1].replica.flat, fresh[1].replica.flat)


@pytest.mark.parametrize("rule", ["mean", "sum", "adasum"])
def test_local_steps_combine_what_changed(rule):
    crew = members(2, rule=rule, combine=CombineConfig(rule=rule))
    apart = members(2)
    gang = order(LocalSteps(2), [20, 20], [10, 10])
    results = play(crew, gang)
    start = np.array(apart[0].replica.flat, dtype=np.float64)
    for member, batches in zip(apart, gang.batches, strict=True):
        for batch in batches:
            member.step(batch, 0.5, {})
    a, b = (np.array(m.replica.flat, dtype=np.float64) - start for m in apart)
    merged = np.zeros_like(start)
    for slot in crew[0].layout.slots.values():
        part = slice(slot.offset, slot.offset + slot.size)
        merged[part] = combined(a[part], b[part], rule)
    same(flats(crew))
    close(crew[0].replica.flat, start + merged)
    named = {f"orthogonality/{name}" for name in crew[0].layout.names}
    assert results[0].notes.keys() == (named if rule == "adasum" else set())
    assert all(0.4 <= total <= 1.1 for total, _ in results[0].notes.values())


def combined(a, b, rule):
    if rule != "adasum":
        return (a + b) / (2 if rule == "mean" else 1)
    dot = a @ b
    return (1 - dot / (2 * (a @ a))) * a + (1 - dot / (2 * (b @ b))) * b


def test_a_lost_gang_is_as_if_it_had_never_been():
    crew, fresh = (
        members(2, optimizer=OptimizerConfig(name="adam")),
        members(2, optimizer=OptimizerConfig(name="adam")),
    )
    play(crew, order(Mirrored(), [20, 20], [10, 10], lrs=[0.01, 0.01]))
    play(crew, order(Mirrored(), [30, 10], [10, 5], lrs=[0.01, 0.01], rewinds=True))
    play(fresh, order(Mirrored(), [30, 10], [10, 5], lrs=[0.01, 0.01]))
    np.testing.assert_array_equal(crew[1].replica.flat, fresh[1].replica.flat)


def test_the_schedule_is_that_of_the_rows_place_in_the_run():
    schedule = ScheduleConfig(name="linear")
    (member,) = members(1, schedule=schedule, epochs=2.0)
    assert member.scheduled(1.0, [Span(0, 0, 60, 70)]) == pytest.approx(0.75)
    assert member.scheduled(1.0, [Span(1, 0, 60, 70)]) == pytest.approx(0.25)
    crew = members(2, schedule=schedule, epochs=2.0)
    (alone,) = members(1)
    play(crew, order(Mirrored(), [10, 10], [10, 10], first=60))
    alone.step([Span(0, 0, 60, 80)], 0.5 * 0.75, {})
    close(crew[0].replica.flat, alone.replica.flat)


# ------------------------------------------------------------------------ merges


def stepped(crew, lr=0.5):
    for rank, member in enumerate(crew):
        member.step([Span(0, 0, 10 * rank, 10 * rank + 10)], lr, {})
    return [np.array(m.replica.flat, dtype=np.float64) for m in crew]


def test_a_merge_is_line_11_of_algorithm_2():
    crew = members(3)
    old = np.array(crew[0].current, dtype=np.float64)
    first = stepped(crew)
    merge(crew, [0.5, 0.3, 0.2], 0.9, generation=1)
    expected = 0.5 * first[0] + 0.3 * first[1] + 0.2 * first[2]
    close(crew[0].current, expected)  # no momentum yet
    second = stepped(crew)
    merge(crew, [0.5, 0.3, 0.2], 0.9, generation=2)
    merged = 0.5 * second[0] + 0.3 * second[1] + 0.2 * second[2] + 0.9 * (expected - old)
    same([m.current for m in crew])
    close(crew[2].current, merged)
    close(crew[2].previous, expected)
    same(flats(crew))


def test_the_outer_optimizer_is_nesterovs():
    combine = CombineConfig(outer="nesterov", outer_lr=0.7, outer_momentum=0.8)
    crew = members(2, combine=combine)
    model, velocity = np.array(crew[0].current, dtype=np.float64), 0.0
    for generation in range(1, 4):
        found = stepped(crew, 0.3)
        gradient = model - (0.6 * found[0] + 0.4 * found[1])
        velocity = 0.8 * velocity + gradient
        model = model - 0.7 * (gradient + 0.8 * velocity)
        merge(crew, [0.6, 0.4], 0.9, generation)
        close(crew[0].current, model, 1e-5)
        same(flats(crew))


@pytest.mark.parametrize("order_", ["tree", "linear"])
def test_merging_by_adasum_combines_changes(order_):
    crew = members(2, **adasum(order=order_))
    old = np.array(crew[0].current, dtype=np.float64)
    a, b = (flat - old for flat in stepped(crew))
    notes = merge(crew, [0.5, 0.5])
    for slot in crew[0].layout.slots.values():
        part = slice(slot.offset, slot.offset + slot.size)
        close(crew[1].current[part], old[part] + combined(a[part], b[part], "adasum"))
    same(flats(crew))
    assert len(notes[0]) == len(crew[0].layout.names)
    assert not notes[1]


def test_the_optimizers_state_is_averaged_if_asked():
    crew = members(2, optimizer=OptimizerConfig(name="adam"), on_merge="average")
    stepped(crew, 0.01)
    states = [{n: np.array(a) for n, a in m.replica.optimizer.state().items()} for m in crew]
    merge(crew, [0.75, 0.25])
    for member in crew:
        for name, array in member.replica.optimizer.state().items():
            close(array, 0.75 * states[0][name] + 0.25 * states[1][name])


def test_the_optimizers_state_is_kept_or_reset():
    for choice in ("keep", "reset"):
        crew = members(1, optimizer=OptimizerConfig(name="momentum"), on_merge=choice)
        stepped(crew)
        merge(crew, [1.0])
        (velocity,) = (a for n, a in crew[0].replica.optimizer.state().items() if a.shape[0] > 1)
        assert velocity.any() == (choice == "keep")


def test_a_newcomer_gets_the_joint_model_and_its_optimizer():
    crew = members(3, optimizer=OptimizerConfig(name="adam"), on_merge="average", is_joint=True)
    play(crew[:2], order(Mirrored(), [20, 20], [10, 10], lrs=[0.01, 0.01]))
    merge(crew, [1.0, 0.0, 0.0])
    same(flats(crew))
    states = [m.replica.optimizer.state() for m in crew]
    for name in states[0]:
        np.testing.assert_array_equal(states[2][name], states[0][name])


def test_local_state_goes_round_a_checkpoint():
    changes = {"optimizer": OptimizerConfig(name="adam"), "keeps_replicas": True}
    (member,), (other,) = members(1, **changes), members(1, **changes)
    stepped([member], 0.01)
    other.set_local_state(member.local_state())
    for one in (member, other):
        one.step([Span(0, 0, 50, 60)], 0.01, {})
    np.testing.assert_array_equal(member.replica.flat, other.replica.flat)
    assert not members(1)[0].local_state()


def test_replicas_that_live_on_are_evaluated_by_the_global_model():
    (member,) = members(1, keeps_replicas=True)
    before = member.evaluate([(0, 0, DATA[1].rows)], {})
    stepped([member], 2.0)
    replica = np.array(member.replica.flat)
    assert member.evaluate([(0, 0, DATA[1].rows)], {}) == before
    np.testing.assert_array_equal(member.replica.flat, replica)
