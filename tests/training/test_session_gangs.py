"""Sessions whose workers train together: whoever is lost or comes, each row counts once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_executor import MEGABATCH_ROWS, executor, kinds, new_session

from daskxml.strategies import STRATEGIES
from daskxml.training.orders import GangBroken, GangOrder, MeasureOrder, StopRequest

JOINT = ["mirrored", "central", "asynchronous", "crossbow", "adasum"]


def gangs(name="mirrored", batches=8, **limits):
    kind = STRATEGIES[name]
    strategy = kind(kind.Config(batch_max=8, megabatch_batches=batches))
    return executor(new_session(strategy=strategy, **{"megabatches": 4, **limits}))


@pytest.mark.parametrize("name", JOINT)
def test_a_run_of_gangs(name):
    play = gangs(name)
    assert play.run() == "megabatches"
    play.check_history()
    history = play.session.history
    assert [row["rows"] for row in history] == [MEGABATCH_ROWS * i for i in range(1, 5)]
    assert not kinds(play.log, MeasureOrder)
    for row in history:
        assert sum(w["weight"] for w in row["workers"].values()) == 1.0
        assert row["moved_bytes"] > 0
        assert row["loss"] == 0.5
        assert sum(w["nonzeros"] for w in row["workers"].values()) == 3 * MEGABATCH_ROWS
    begins = [order.begins for order in kinds(play.log, GangOrder)]
    assert begins.count(True) == 4


@pytest.mark.parametrize("stage", ["train", "merge", "evaluate", "checkpoint"])
@pytest.mark.parametrize("lost", ["a", "b"])
def test_a_loss_undoes_the_work_of_all(stage, lost):
    play = gangs(can_checkpoint=True, checkpoint_every=1)
    play.until(stage)
    if stage == "train":
        play.advance()
    play.lose(lost)
    rewinds = [order.rewinds for order in kinds(play.log, GangOrder)]
    assert rewinds[-1] == (stage in ("train", "merge"))
    play.run()
    play.check_history()
    events = [event for row in play.session.history for event in row["events"]]
    assert [event["kind"] for event in events] == ["lost"]
    undone = events[0]["rows_returned"]
    assert (undone > 0) == (stage in ("train", "merge"))


@pytest.mark.parametrize("stage", ["train", "evaluate", "checkpoint"])
def test_who_comes_takes_part_from_the_next_merge_on(stage):
    play = gangs(can_checkpoint=True, checkpoint_every=1, megabatches=5)
    play.until(stage)
    play.join("c")
    play.run()
    play.check_history()
    last = play.session.history[-1]["workers"]
    assert last["c"]["rows"] > 0


def test_a_gang_that_breaks_is_begun_again():
    play = gangs()
    play.advance()
    (open_gang,) = [task.order for task in play.tasks]
    play.tasks.clear()
    for replica in play.workers.values():
        replica.rows.clear()
    play.tell(GangBroken(open_gang.gang))
    assert kinds(play.log, GangOrder)[-1].rewinds
    play.tell(GangBroken(open_gang.gang))  # heard before
    assert len(play.tasks) == 1
    play.run()
    play.check_history()


def test_a_stop_ends_at_the_next_gang():
    play = gangs(batches=80, megabatches=0, epochs=100.0)
    play.advance()
    play.tell(StopRequest("interrupt"))
    assert play.run() == "interrupt"
    play.check_history()
    assert 0 < play.session.history[-1]["rows"] < 10 * MEGABATCH_ROWS / 2


def test_a_loss_after_a_stop_keeps_the_last_model():
    play = gangs(megabatches=0, epochs=100.0)
    play.until("evaluate")
    play.until("train")
    play.tell(StopRequest("interrupt"))
    play.lose("a")
    assert play.ended == "interrupt"
    play.check_history()
    assert play.session.history[-1]["rows"] == MEGABATCH_ROWS


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.sampled_from(JOINT))
def test_any_order_of_losses_and_arrivals(choices, name):
    play, names = gangs(name, megabatches=6), iter("cdefghijklmnopqrstuvwxyz" * 2)
    for choice in choices:
        if play.ended:
            break
        if choice == 0 and len(play.workers) > 1:
            play.lose(sorted(play.workers)[0])
        elif choice == 1 and len(play.workers) > 1:
            play.lose(sorted(play.workers)[-1])
        elif choice == 2 and play.session.stage in ("train", "evaluate", "checkpoint"):
            newcomer = next(names)
            if newcomer not in play.workers:
                play.join(newcomer)
        else:
            play.advance()
    if not play.ended:
        play.run()
    play.check_history()
