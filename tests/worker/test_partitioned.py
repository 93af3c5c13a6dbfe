"""Workers that each have a part of the labels, against one worker that has all."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from daskxml.collectives.messages import run_together
from daskxml.config import load_run_config
from daskxml.core.errors import ConfigError, ModelError, TrainingError
from daskxml.data.rows import label_counts
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.models.network import partitioned
from daskxml.models.network.partitioned import LabelOrder, cut_labels
from daskxml.models.network.spec import Layout, initial_parameters
from daskxml.session.commands import Evaluate, MergeReplicas
from daskxml.session.ledger import Span
from daskxml.strategies.protocol import Partitioned
from daskxml.worker.assembly import assemble, is_whole
from daskxml.worker.gang_programs import gang_program
from daskxml.worker.merge_program import merge_program
from daskxml.worker.part_memory import plan_part
from daskxml.worker.partitioned_programs import evaluate_together
from daskxml.worker.partitioned_worker import PartitionedWorker
from daskxml.worker.settings import WorkerSlot
from daskxml.worker.training_worker import TrainingWorker
from harness.gangs import DATA, LABELS, ROWS, SPEC, make_gang, merge, run_gang
from harness.worker_settings import make_settings

STEP = ((60, 15), (40, 10), (20, 5))  # rows of a gang, and of a step, of each of three ranks
WIDE = generate(SyntheticSpec(rows=ROWS, test_rows=8, features=SPEC.features, labels=2000, seed=4))
TINY_BUDGET = 2000  # logits are computed twice, and most updates do not wait


def settings_for(
    spec, *, optimizer="sgd", budget=1 << 20, transfer="float32", class_weight="none",
    sampling=None, **rule,
):  # fmt: skip
    config = load_run_config(
        {
            "run": {"seed": 11},
            "model": {"output": "partitioned"},
            "optimizer": {"name": optimizer, **rule},
            "combine": {"transfer": transfer},
            "sampling": sampling or {},
            "training": {"megabatches": 1, "class_weight": class_weight},
            "evaluation": {"batch_rows": 12, "k": [1, 3]},
        }
    )
    made = make_settings(spec, rows=ROWS)
    return replace(made, config=config, logits_budget_bytes=budget)


def make_parts(count, spec=SPEC, **changes):
    """Return workers that hold every row."""
    made = [PartitionedWorker(settings_for(spec, **changes)) for _ in range(count)]
    for worker in made:
        worker.initialize()
        hold(worker)
    return made


def hold(worker):
    worker.rows.hold_all([DATA[0]], [DATA[1]])
    worker.count_labels(label_counts(DATA[0].labels, LABELS))


def gang(shares=(3, 2, 1), *, first=0, steps=4, **flags):
    """Return a gang of as many ranks as there are shares."""
    sizes = [size for _, size in STEP[: len(shares)]]
    rows = [steps * size for size in sizes]
    lrs = [0.1] * len(shares)
    return make_gang(Partitioned(shares), rows, sizes, lrs=lrs, first=first, **flags)


def one_worker(spec, gangs, **changes):
    """Return one worker that took the same steps."""
    alone = TrainingWorker(replace(make_settings(spec, rows=ROWS)))
    alone = TrainingWorker(replace(alone.settings, config=settings_for(spec, **changes).config))
    alone.initialize()
    hold(alone)
    for each in gangs:
        for step in range(each.steps):
            batches = [batch[step] for batch in each.batches if step < len(batch)]
            alone.runner.step([span for batch in batches for span in batch], each.lrs[0], {})
    return alone


def whole(group):
    """Return the model of the last merge, put together."""
    layout = Layout(group[0].spec)
    flat = np.zeros(layout.size, np.float32)
    held = [worker.held_arrays(with_copies=True) for worker in group]
    assemble(layout.views(flat), "current", group[0].spec, group[0].order, held)
    return flat


def scores(group, target=0):
    command = Evaluate(1, "a", ((0, 0, 30),))
    programs = [
        evaluate_together(worker, command, rank, len(group), target)
        for rank, worker in enumerate(group)
    ]
    return run_together(programs)[target]


# -------------------------------------------------------------------- the arithmetic


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("budget", [1 << 20, TINY_BUDGET])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "row-rms"])
def test_parts_step_as_one_worker_does(loss, budget, optimizer):
    spec = replace(SPEC, loss=loss, dropout=0.2)
    group = make_parts(3, spec, budget=budget, optimizer=optimizer)
    gangs = [gang(), gang(first=60, steps=2, begins=False)]
    losses = [run_gang(group, each) for each in gangs]
    alone = one_worker(spec, gangs, optimizer=optimizer)
    merge(group, [1.0, 0.0, 0.0])
    np.testing.assert_allclose(whole(group), alone.replica.flat, rtol=0, atol=2e-6)
    assert [work.rows for work in losses[0]] == [60, 40, 20]
    mine = scores(group).result()
    theirs = alone.evaluate(((0, 0, 30),), {})
    assert mine["P@3"] == theirs.result()["P@3"]


@pytest.mark.parametrize(
    "rule",
    [
        {"optimizer": "lamb"},
        {"optimizer": "sgd", "output": "lamb"},
        {"optimizer": "lamb", "output": "sgd", "weight_decay": 0.01},
        {"optimizer": "adam", "clip_norm": 0.02},
        {"optimizer": "lamb", "clip_norm": 0.02},
        {"optimizer": "nesterov", "output_lr": 0.5},
    ],
)
def test_steps_that_depend_on_norms_over_all_labels(rule):
    group, gangs = make_parts(3, **rule), [gang(), gang(first=60, steps=2, begins=False)]
    for each in gangs:
        run_gang(group, each)
    merge(group, [1.0, 0.0, 0.0])
    expected = one_worker(SPEC, gangs, **rule).replica.flat
    np.testing.assert_allclose(whole(group), expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(group[0].part.lower, group[2].part.lower)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("budget", [1 << 20, TINY_BUDGET])
@pytest.mark.parametrize("class_weight", ["none", "balanced", "propensity"])
def test_rows_and_labels_have_the_weights_of_one_worker(loss, budget, class_weight, monkeypatch):
    drawn = np.random.default_rng(5).uniform(0, 3, ROWS).astype(np.float32)
    monkeypatch.setitem(globals(), "DATA", (replace(DATA[0], weights=drawn), DATA[1]))
    spec = replace(SPEC, loss=loss)
    group = make_parts(3, spec, budget=budget, class_weight=class_weight)
    gangs = [gang()]
    loss_sum = sum(work.loss_sum for work in run_gang(group, gangs[0]))
    merge(group, [1.0, 0.0, 0.0])
    alone = one_worker(spec, gangs, class_weight=class_weight)
    np.testing.assert_allclose(whole(group), alone.replica.flat, rtol=0, atol=2e-6)
    again = one_worker(spec, [], class_weight=class_weight)
    steps = [[span for batch in gangs[0].batches for span in batch[step]] for step in range(4)]
    assert loss_sum == pytest.approx(again.lease(steps, 0.1, {}).loss_sum, rel=1e-5)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("active", [0.1, 0.7])  # labels of the rows only, and more
@pytest.mark.parametrize("sets", ["batch", "row"])
@pytest.mark.parametrize("method", ["random", "simhash"])
def test_a_sample_of_all_labels_is_divided_among_the_parts(loss, weighted, active, sets, method):
    sampling = {"method": method, "active": active, "weighted": weighted, "sets": sets}
    sampling |= {"rebuild_every": 60, "k": 4} if method == "simhash" else {}
    spec, given = replace(SPEC, loss=loss), {"sampling": sampling, "optimizer": "adam"}
    group, first = make_parts(3, spec, **given), gang((12, 12, 1))
    gangs = [first, replace(first, begins=False)]
    work = [run_gang(group, each) for each in gangs]
    merge(group, [1.0, 0.0, 0.0])
    alone = one_worker(spec, gangs, **given)
    np.testing.assert_allclose(whole(group), alone.replica.flat, rtol=0, atol=5e-6)
    steps = [[span for batch in gangs[0].batches for span in batch[step]] for step in range(4)]
    expected = one_worker(spec, [], **given).lease(steps, 0.1, {})
    assert sum(each.loss_sum for each in work[0]) == pytest.approx(expected.loss_sum, rel=1e-5)
    scored, rows = (sum(each.means["active"][i] for each in work[0]) for i in (0, 1))
    assert scored / rows == pytest.approx(expected.means["active"][0] / 120, rel=1e-6)


def test_the_best_model_is_put_together_of_what_all_kept():
    group = make_parts(3)
    run_gang(group, gang(steps=2))
    merge(group, [1.0, 0.0, 0.0])
    best = whole(group)
    for worker in group:
        worker.keep_best(1)
    run_gang(group, gang((1, 1, 4), first=60, steps=2))
    merge(group, [1.0, 0.0, 0.0], generation=2)
    found, layout = np.zeros_like(best), Layout(SPEC)
    held = [worker.held_of_best() for worker in group[1:]]  # with the first one's labels
    assemble(layout.views(found), "best", SPEC, group[0].order, held)
    np.testing.assert_array_equal(found, best)
    assert np.abs(whole(group) - best).max() > 0
    assert not is_whole("best", held[:1])


def test_a_hundred_steps_are_those_of_one_worker_within_1e_5():
    group = make_parts(3)
    gangs = [gang(begins=number == 0) for number in range(25)]
    total = [sum(work.loss_sum for work in run_gang(group, each)) for each in gangs]
    alone = one_worker(SPEC, gangs)
    merge(group, [1.0, 0.0, 0.0])
    np.testing.assert_allclose(whole(group), alone.replica.flat, rtol=0, atol=1e-5)
    assert total[-1] < 0.8 * total[0]


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("budget", [1 << 22, 1 << 19])  # all logits; blocks, some of which wait
def test_several_threads_and_layers(loss, budget, monkeypatch):
    monkeypatch.setattr(partitioned, "WAITING_BYTES", 1 << 15)
    spec = replace(SPEC, labels=2000, loss=loss, hidden=(12, 8), output_bias=-5.0)
    slot = WorkerSlot(threads=2)
    settings = replace(settings_for(spec, budget=budget), slot=slot)
    group = [PartitionedWorker(settings) for _ in range(2)]
    alone = TrainingWorker(replace(make_settings(spec, rows=ROWS), slot=slot))
    for worker in (*group, alone):
        worker.initialize()
        worker.rows.hold_all([WIDE[0]], [WIDE[1]])
    run_gang(group, gang((5, 1)))
    merge(group, [1.0, 0.0])
    for step in range(4):
        rows = [Span(0, 0, step * 15, step * 15 + 15), Span(0, 0, 60 + step * 10, 70 + step * 10)]
        alone.runner.step(rows, 0.1, {})
    np.testing.assert_allclose(whole(group), alone.replica.flat, rtol=0, atol=2e-6)
    found = group[0].part.mlp.output
    assert found.waiting_labels(25) < found.labels


def test_the_layers_below_are_the_same_bits_on_all_ranks_and_every_time():
    found = []
    for _ in range(2):
        group = make_parts(3)
        run_gang(group, gang())
        found += [worker.part.lower for worker in group]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_a_rank_without_rows_steps_too():
    group = make_parts(2)
    alone_rows = make_gang(Partitioned((1, 1)), [20, 0], [10, 10], lrs=[0.1, 0.1])
    work = run_gang(group, alone_rows)
    merge(group, [1.0, 0.0])
    expected = one_worker(SPEC, [alone_rows]).replica.flat
    np.testing.assert_allclose(whole(group), expected, rtol=0, atol=2e-6)
    assert [(each.rows, each.updates) for each in work] == [(20, 2), (0, 0)]


def test_bfloat16_gradients_travel_in_half_the_bytes():
    group, exact = make_parts(3, transfer="bfloat16"), make_parts(3)
    for each in (group, exact):
        run_gang(each, gang())
        merge(each, [1.0, 0.0, 0.0])
    found, expected = whole(group), whole(exact)
    assert 0 < np.abs(found - expected).max() < 1e-3
    np.testing.assert_array_equal(group[0].part.lower, group[2].part.lower)


# ----------------------------------------------------------------- moving of labels


@pytest.mark.parametrize("shares", [(1, 1, 4), (1, 3), (2, 1, 1, 1)])
def test_labels_that_move_keep_their_bits_and_moments(shares):
    group, steady = make_parts(3, optimizer="adam"), make_parts(3, optimizer="adam")
    for each in (group, steady):
        run_gang(each, gang())
        merge(each, [1.0, 0.0, 0.0])
    before = whole(group)
    if len(shares) > 3:
        late = make_parts(1, optimizer="adam")[0]
        late.set_models({}, 1, 0)
        group.append(late)
    elif len(shares) < 3:
        group = group[:2]  # the copies of the third one's labels are on the first
    sizes = [5] * len(shares)
    moved = make_gang(Partitioned(shares), sizes, sizes, lrs=[0.0] * len(shares), first=60)
    run_gang(group, moved)
    merge(group, [1.0, *[0.0] * (len(shares) - 1)], generation=2)
    assert [worker.part.cuts for worker in group] == len(shares) * [cut_labels(LABELS, shares)]
    np.testing.assert_array_equal(whole(group), before)
    if len(shares) == 3:
        run_gang(steady, replace(moved, pattern=Partitioned((3, 2, 1))))
        for each in (group, steady):
            run_gang(each, gang(shares if each is group else (3, 2, 1), first=75, steps=1))
            merge(each, [1.0, 0.0, 0.0], generation=each[0].generation + 1)
        np.testing.assert_allclose(whole(group), whole(steady), rtol=0, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "momentum"])
def test_a_loss_leads_back_to_the_last_merge_with_its_moments(optimizer):
    group = make_parts(3, optimizer=optimizer)
    run_gang(group, gang())
    merge(group, [1.0, 0.0, 0.0])
    run_gang(group, gang(first=60, steps=2))  # lost with the worker in the middle
    left = [group[0], group[2]]
    again = make_gang(Partitioned((2, 3)), [10, 20], [5, 10], lrs=[0.1] * 2, first=60, rewinds=True)
    run_gang(left, again)
    merge(left, [1.0, 0.0], generation=2)
    both = make_gang(Partitioned((3, 2, 1)), [10, 20], [5, 10], lrs=[0.1] * 2, first=60)
    expected = one_worker(SPEC, [gang(), both], optimizer=optimizer).replica.flat
    np.testing.assert_allclose(whole(left), expected, rtol=0, atol=2e-6)


def test_labels_move_between_two_gangs_of_a_megabatch():
    group, steady = make_parts(3, optimizer="adam"), make_parts(3, optimizer="adam")
    for each, shares in ((group, (1, 1, 4)), (steady, (3, 2, 1))):
        run_gang(each, gang(steps=2))
        run_gang(each, gang(shares, first=60, steps=2, begins=False))
    assert [worker.part.cuts for worker in group] == 3 * [cut_labels(LABELS, (1, 1, 4))]
    for each in (group, steady):
        merge(each, [1.0, 0.0, 0.0])
    np.testing.assert_allclose(whole(group), whole(steady), rtol=0, atol=2e-6)
    gangs = [gang(steps=2), gang(first=60, steps=2)]
    again = one_worker(SPEC, gangs, optimizer="adam").replica.flat
    np.testing.assert_allclose(whole(steady), again, rtol=0, atol=2e-6)


def test_a_worker_takes_no_more_labels_than_it_has_room_for():
    group = make_parts(2, optimizer="adam")
    plan = plan_part(group[0].settings, group[0].kernels)
    assert plan.parts == 12  # of the part, of the last merge, and twice another's, with moments
    assert group[0].fit(plan.total_bytes(11)) == 10 / LABELS
    assert group[0].fit(plan.fixed_bytes - 1) == 0.0
    with pytest.raises(TrainingError, match="20 labels are too many for a worker that has room"):
        run_gang(group, gang((1, 1)))


def test_survivors_evaluate_with_copies_of_the_lost_ones_labels():
    group = make_parts(3)
    run_gang(group, gang())
    merge(group, [1.0, 0.0, 0.0])
    assert scores(group).result() == scores(group[:2], target=1).result()


# --------------------------------------------------- deaths between any two messages


class DeathError(Exception):
    """What ends a rank, and with it the work of all."""


def dying(program, at):
    """Run a program until its ``at``-th operation."""
    for number, operation in enumerate(program):
        if number == at:
            raise DeathError
        yield operation


def deaths(make, victim, every):
    """Yield workers, for every few operations of a rank once, in which it died."""
    for at in range(0, 10_000, every):
        group, programs = make()
        programs[victim] = dying(programs[victim], at)
        try:
            run_together(programs)
        except DeathError:
            yield group
        else:
            assert at > 12
            return
    raise AssertionError("it never ends")


def programs_of(group, command):
    hosts = ("here",) * len(group)
    return [gang_program(worker, command, rank, hosts, {}) for rank, worker in enumerate(group)]


def merged_parts(first):
    """Return workers after a gang and its merge."""
    count = len(first.workers)
    group = make_parts(count, optimizer="momentum")
    run_gang(group, first)
    merge(group, [1.0, *[0.0] * (count - 1)])
    return group


STEPS = gang(first=60, steps=1)
MOVES = gang((1, 1, 4), first=60, steps=1)
REWOUND = make_gang(Partitioned((2, 3)), [10, 20], [10, 20], lrs=[0.1] * 2, first=60, rewinds=True)


EVERY = pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.slow)])


@functools.cache
def rewound():
    """The model of one worker after all that."""
    return one_worker(SPEC, [gang(), REWOUND], optimizer="momentum").replica.flat


def check_survivors(left):
    """Let two survivors take the same rows again."""
    run_gang(left, REWOUND)
    merge(left, [1.0, 0.0], generation=2)
    np.testing.assert_allclose(whole(left), rewound(), rtol=0, atol=2e-6)


@EVERY
@pytest.mark.parametrize("phase", ["step", "move", "copy"])
def test_a_death_between_any_two_messages_changes_nothing(phase, every):
    def make():
        group = merged_parts(gang())
        if phase == "copy":
            run_gang(group, STEPS)
            merging = MergeReplicas(2, {"a": 1.0, "b": 0.0, "c": 0.0}, 0.0)
            hosts = ("here",) * 3
            return group, [merge_program(m, merging, r, hosts) for r, m in enumerate(group)]
        return group, programs_of(group, MOVES if phase == "move" else STEPS)

    for group in deaths(make, 1, every):
        check_survivors([group[0], group[2]])


@EVERY
def test_a_death_while_labels_of_another_lost_one_are_dealt_changes_nothing(every):
    """Of four, the second is lost, then the last: their copies are on the third and the first."""
    four, rates = [*STEP, (0, 5)], {"lrs": [0.1] * 4}
    rows, sizes = ([4 * size for _, size in four[:3]] + [0], [size for _, size in four])
    first = make_gang(Partitioned((2, 1, 1, 1)), rows, sizes, **rates)
    again = make_gang(
        Partitioned((1, 1, 1)), [10] * 3, [10] * 3, lrs=[0.1] * 3, first=60, rewinds=True
    )

    def make():
        group = merged_parts(first)
        return group, programs_of([group[0], group[2], group[3]], again)

    for group in deaths(make, 2, every):
        check_survivors([group[0], group[2]])


def test_a_death_between_two_commits_loses_nothing():
    """Once all have the copies the merge counts."""
    group = merged_parts(gang())
    run_gang(group, STEPS)
    hosts, merging = ("here",) * 3, MergeReplicas(2, {"a": 1.0, "b": 0.0, "c": 0.0}, 0.0)
    run_together([merge_program(m, merging, r, hosts) for r, m in enumerate(group)])
    for worker in (group[0], group[2]):  # the second is killed before its own
        worker.commit(2)
    expected = one_worker(SPEC, [gang(), STEPS], optimizer="momentum").replica.flat
    np.testing.assert_allclose(whole([group[0], group[2]]), expected, rtol=0, atol=2e-6)


@EVERY
@pytest.mark.parametrize("target", [0, 1])
def test_a_death_while_test_rows_are_ranked_changes_no_metric(target, every):
    command = Evaluate(1, "a", ((0, 0, 30),))
    expected = scores(merged_parts(gang())).result()

    def make():
        group = merged_parts(gang())
        return group, [
            evaluate_together(worker, command, rank, 3, target)
            for rank, worker in enumerate(group)
        ]  # fmt: skip

    for group in deaths(make, 1, every):
        assert scores([group[0], group[2]]).result() == expected


def test_two_losses_of_neighbours_are_told():
    group = make_parts(3)
    run_gang(group, gang())
    merge(group, [1.0, 0.0, 0.0])
    with pytest.raises(TrainingError, match="labels were lost with the workers that had them"):
        run_gang(group[:1], gang((1,), first=60, rewinds=True))
    with pytest.raises(ModelError, match="no worker has some of the labels any more"):
        whole(group[:1])


# ------------------------------------------------------------------------ the model


def test_parts_begin_with_the_seeds_model():
    order = LabelOrder.of(LABELS, 11)
    flat = initial_parameters(SPEC, 11)
    views = Layout(SPEC).views(flat)
    part = initial_parameters(SPEC, 11, order.labels[5:20])
    mine = Layout(replace(SPEC, labels=15)).views(part)
    np.testing.assert_array_equal(mine["output.weight"], views["output.weight"][order.labels[5:20]])
    np.testing.assert_array_equal(mine["hidden0.weight"], views["hidden0.weight"])


def test_more_workers_than_labels_are_refused():
    with pytest.raises(ConfigError, match="3 labels cannot be cut for 4 workers"):
        cut_labels(3, (1, 1, 1, 1))
    assert cut_labels(4, (1, 1, 1, 4000)) == (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"model": {"hidden": []}}, "needs a hidden layer"),
        ({"gpu": {"output_dtype": "float16"}}, "steps in float32"),
        ({"optimizer": {"on_merge": "average"}}, "merges no moments"),
        ({"evaluation": {"training_loss": True}}, "measures no loss over all rows"),
        ({"strategy": {"name": "elastic"}}, "leave one of the two out"),
        ({"model": {"output": "cut"}}, "must be one of 'replicated', 'partitioned'"),
    ],
)
def test_what_is_not_supported_is_refused(section, message):
    values = {"training": {"megabatches": 1}, **section}
    values["model"] = {"output": "partitioned", **section.get("model", {})}
    with pytest.raises(ConfigError, match=message):
        load_run_config(values)


def test_the_setting_survives_its_own_text():
    config = load_run_config({"model": {"output": "partitioned"}, "training": {"megabatches": 1}})
    assert config.strategy_name == "partitioned"
    assert config.as_dict()["model"]["output"] == "partitioned"
    assert load_run_config(config.as_dict()) == config
    named = load_run_config({"strategy": {"name": "partitioned"}, "training": {"megabatches": 1}})
    assert named == config
