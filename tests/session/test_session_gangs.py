"""Sessions whose workers train together: whoever is lost or comes, each row counts once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskxml.session.commands import RunWork, StopRequest, WorkFailed
from daskxml.strategies import STRATEGIES
from daskxml.strategies.protocol import Measure
from harness.virtual_executor import MEGABATCH_ROWS, executor, kinds, new_session

JOINT = ["mirrored", "central", "asynchronous", "crossbow", "adasum"]


def gangs(name="mirrored", batches=8, **limits):
    kind = STRATEGIES[name]
    strategy = kind(kind.Config(batch_max=8, megabatch_batches=batches))
    return executor(new_session(strategy=strategy, **{"megabatches": 4, **limits}))


@pytest.mark.parametrize("name", JOINT)
def test_a_run_of_gangs(name):
    backend = gangs(name)
    assert backend.run() == "megabatches"
    backend.check_history()
    history = backend.session.history
    assert [row["rows"] for row in history] == [MEGABATCH_ROWS * i for i in range(1, 5)]
    assert not kinds(backend.log, Measure)
    for row in history:
        assert sum(w["weight"] for w in row["workers"].values()) == 1.0
        assert row["moved_bytes"] > 0
        assert row["loss"] == 0.5
        assert sum(w["nonzeros"] for w in row["workers"].values()) == 3 * MEGABATCH_ROWS
    begins = [command.begins for command in kinds(backend.log, RunWork)]
    assert begins.count(True) == 4


@pytest.mark.parametrize("stage", ["train", "merge", "evaluate", "checkpoint"])
@pytest.mark.parametrize("lost", ["a", "b"])
def test_a_loss_undoes_the_work_of_all(stage, lost):
    backend = gangs(can_checkpoint=True, checkpoint_every=1)
    backend.until(stage)
    if stage == "train":
        backend.advance()
    backend.lose(lost)
    rewinds = [command.rewinds for command in kinds(backend.log, RunWork)]
    assert rewinds[-1] == (stage in ("train", "merge"))
    backend.run()
    backend.check_history()
    events = [event for row in backend.session.history for event in row["events"]]
    assert [event["kind"] for event in events] == ["lost"]
    undone = events[0]["rows_returned"]
    assert (undone > 0) == (stage in ("train", "merge"))


@pytest.mark.parametrize("stage", ["train", "evaluate", "checkpoint"])
def test_a_joined_worker_takes_part_from_the_next_merge_on(stage):
    backend = gangs(can_checkpoint=True, checkpoint_every=1, megabatches=5)
    backend.until(stage)
    backend.join("c")
    backend.run()
    backend.check_history()
    last = backend.session.history[-1]["workers"]
    assert last["c"]["rows"] > 0


def test_a_gang_that_breaks_is_begun_again():
    backend = gangs()
    backend.advance()
    (open_gang,) = [task.command for task in backend.tasks]
    backend.tasks.clear()
    for replica in backend.workers.values():
        replica.rows.clear()
    backend.handle(WorkFailed(open_gang.number))
    assert kinds(backend.log, RunWork)[-1].rewinds
    backend.handle(WorkFailed(open_gang.number))  # heard before
    assert len(backend.tasks) == 1
    backend.run()
    backend.check_history()


def test_a_stop_ends_at_the_next_gang():
    backend = gangs(batches=80, megabatches=0, epochs=100.0)
    backend.advance()
    backend.handle(StopRequest("interrupt"))
    assert backend.run() == "interrupt"
    backend.check_history()
    assert 0 < backend.session.history[-1]["rows"] < 10 * MEGABATCH_ROWS / 2


def test_a_loss_after_a_stop_keeps_the_last_model():
    backend = gangs(megabatches=0, epochs=100.0)
    backend.until("evaluate")
    backend.until("train")
    backend.handle(StopRequest("interrupt"))
    backend.lose("a")
    assert backend.ended == "interrupt"
    backend.check_history()
    assert backend.session.history[-1]["rows"] == MEGABATCH_ROWS


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.sampled_from(JOINT))
def test_any_order_of_losses_and_arrivals(choices, name):
    backend, names = gangs(name, megabatches=6), iter("cdefghijklmnopqrstuvwxyz" * 2)
    for choice in choices:
        if backend.ended:
            break
        if choice == 0 and len(backend.workers) > 1:
            backend.lose(sorted(backend.workers)[0])
        elif choice == 1 and len(backend.workers) > 1:
            backend.lose(sorted(backend.workers)[-1])
        elif choice == 2 and backend.session.stage in ("train", "evaluate", "checkpoint"):
            newcomer = next(names)
            if newcomer not in backend.workers:
                backend.join(newcomer)
        else:
            backend.advance()
    if not backend.ended:
        backend.run()
    backend.check_history()
