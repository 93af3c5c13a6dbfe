"""Runs of the cluster's own code under simulated faults: see `harness.faults`.

`make simulate-faults` makes as many as wanted; here are the first ones.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from harness.faults.invariants import TreeTruth, Truth
from harness.faults.life import live
from harness.faults.machines import Cluster
from harness.faults.pace import draw_paced, paced
from harness.faults.planted import PLANTS
from harness.faults.schedule import TREES, Case, Fault, draw_case
from harness.faults.simulation import SETTLE_S, simulate

PLANTED = {plant.name: plant for plant in PLANTS}
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    "first",
    # Some 450 runs in a row have every pair of a step and a kind of fault; most of them are slow.
    [
        first if first < 25 else pytest.param(first, marks=pytest.mark.slow)
        for first in range(0, 2000, 25)
    ],
)
def test_no_invariant_is_violated(first: int) -> None:
    for seed in range(first, first + 25):
        case = draw_case(seed)
        assert not (problem := simulate(case).problem), f"{problem}\nseed {seed}: {case}"


@pytest.mark.parametrize("seed", [3, 8, 10])
def test_equal_seeds_give_equal_runs(seed: int) -> None:
    assert simulate(draw_case(seed)) == simulate(draw_case(seed))


def test_runs_leave_nothing_on_a_scheduler_and_workers_that_live_on() -> None:
    problem, rows = live(hours=1.0)
    assert not problem
    assert len(rows) > 15
    assert {row["worker objects"] for row in rows} == {rows[0]["worker objects"]}
    first, last = rows[:9], rows[-9:]
    most = max(row["scheduler objects"] for row in first)
    assert max(row["scheduler objects"] for row in last) < 2 * most


@pytest.mark.slow
def test_equal_seeds_give_equal_runs_in_another_process() -> None:
    """Its sets and dictionaries of text have another order."""
    seeds = range(30)
    code = (
        "from harness.faults.schedule import draw_case\n"
        "from harness.faults.simulation import simulate\n"
        f"print([simulate(draw_case(seed)).digest for seed in {[*seeds]}])"
    )
    env = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/tests"}
    command = [sys.executable, "-c", code]
    other = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert other.stdout == f"{[simulate(draw_case(seed)).digest for seed in seeds]}\n"


def test_planted_faults_are_changes_of_the_product() -> None:
    for name, plant in PLANTED.items():
        function = plant.function()
        before = function.__code__
        with plant.planted():
            assert function.__code__ != before, name
        assert function.__code__ is before, name


@pytest.mark.parametrize(
    ("name", "first"),  # a seed from which on it is soon found
    [
        ("a row is leased twice at the end of a lease", 120),
        ("all replicas are merged with one weight", 120),
        ("a lost worker's lease stays open", 130),
        pytest.param(
            "of a lost worker's evaluation only the first piece is done again", 120,
            marks=pytest.mark.slow,
        ),
        ("a replica that has trained on is evaluated", 120),
        ("a lease does not commit the merge before it", 147),
        ("a lease goes before an earlier one whose rows are fetched", 120),
        ("a task does not wait until its worker has committed", 120),
        pytest.param("a gang that was undone does not rewind", 120, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_planted_fault_is_found(name: str, first: int) -> None:
    with PLANTED[name].planted():
        assert any(simulate(draw_case(seed)).problem for seed in range(first, first + 240))


@pytest.mark.parametrize("name", ["", "a silent worker is waited for a minute"])
def test_the_others_go_on_while_one_is_frozen(name: str) -> None:
    frozen = replace(draw_paced(0), epochs=4)
    with PLANTED[name].planted() if name else nullcontext():
        assert ("waited" in paced(frozen)[0]) == bool(name)


def test_a_frozen_worker_that_is_alone_in_a_merge_is_left_behind() -> None:
    """Others that have the model of the last merge go on without it."""
    struck = Fault(114, "freeze", 0, 19.7, -1.0, same_address=False)
    alone = Case(30, "adaptive-sgd", True, True, workers=3, epochs=6, checkpoint_every=2,
                 faults=(struck,), machines=2, transport="tcp")  # fmt: skip
    assert not paced(alone)[0]


def ends_of_megabatches(monkeypatch: pytest.MonkeyPatch, kind: type[Truth]) -> list[float]:
    """Return the list to which virtual times are added: when each mega-batch, or tree, ends."""
    ends_s, published = list[float](), kind._published

    def note(truth: Truth, driver: Any, event: dict[str, Any]) -> None:
        if event["kind"] == "megabatch":
            ends_s.append(truth.cluster.loop.now_s)
        published(truth, driver, event)

    monkeypatch.setattr(kind, "_published", note)
    return ends_s


def test_the_others_do_not_wait_long_for_one_that_freezes_in_a_merge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    merged_s = ends_of_megabatches(monkeypatch, Truth)
    frozen = fault("freeze here", "daskxml_merge", at=120, lasts_s=60.0, returns_s=-1.0)
    assert not simulate(by_quorum(3, "adaptive-sgd", 3, 20, 20, frozen)).problem
    assert max(after - before for before, after in pairwise(merged_s)) < 1.0


@pytest.mark.parametrize(
    ("strategy", "quorum", "when"),
    [
        ("adaptive-sgd", True, "create_worker"),
        ("adaptive-sgd", False, "batch"),
        ("adaptive-sgd", True, "store_model"),
        ("crossbow", False, "run_gang"),
        (TREES, False, "fit"),
        (TREES, False, "rank"),
    ],
)
def test_a_frozen_worker_that_holds_a_run_up_is_restarted(
    strategy: str, quorum: bool, when: str
) -> None:
    frozen = Fault(1, "freeze here", 0, 250.0, -1.0, same_address=False, when=when)
    outcome = simulate(
        Case(3, strategy, quorum, True, workers=2, epochs=2, checkpoint_every=2, faults=(frozen,))
    )
    assert not outcome.problem
    assert 15.0 < outcome.virtual_s - SETTLE_S < 45.0


def test_a_restart_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, restart = [], Cluster.restart

    async def fail_first(self: Cluster, addresses: Sequence[str], **values: Any) -> None:
        asked.append(addresses)
        if len(asked) == 1:
            raise RuntimeError("the nanny answers nonsense")
        await restart(self, addresses, **values)

    monkeypatch.setattr(Cluster, "restart", fail_first)
    frozen = Fault(1, "freeze here", 0, 250.0, -1.0, same_address=False, when="batch")
    outcome = simulate(
        Case(3, "adaptive-sgd", False, True, 2, 2, checkpoint_every=2, faults=(frozen,))
    )
    assert outcome.virtual_s - SETTLE_S < 45.0
    assert len(asked) == 2


def test_a_worker_joins_though_merges_are_quicker_than_its_copies_of_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others wait for it, once that has happened a few times."""
    joined, published = [], Truth._published

    def note(truth: Truth, driver: Any, event: dict[str, Any]) -> None:
        if event["kind"] == "megabatch":
            joined.extend(it for it in event["row"]["events"] if it["kind"] == "joined")
        published(truth, driver, event)

    monkeypatch.setattr(Truth, "_published", note)
    slow = fault("slow here", "copy_model", at=61, lasts_s=4.0)
    case = Case(1, "adaptive-sgd", False, True, workers=2, epochs=20, checkpoint_every=20,
                faults=(fault("join", "daskxml_merge", at=60), slow))  # fmt: skip
    assert not simulate(case).problem
    assert len(joined) == 1


@pytest.mark.parametrize(("when", "at"), [("batch", 60), ("daskxml_merge", 7)])
def test_a_worker_that_was_given_up_comes_back_with_nothing_of_its_own(
    monkeypatch: pytest.MonkeyPatch, when: str, at: int
) -> None:
    """It is heard again, copies the model, and takes part; in a merge its silence was noticed."""
    happened, published = [], Truth._published

    def note(truth: Truth, driver: Any, event: dict[str, Any]) -> None:
        if event["kind"] == "megabatch":
            happened.extend((it["kind"], it["worker"]) for it in event["row"]["events"])
        published(truth, driver, event)

    monkeypatch.setattr(Truth, "_published", note)
    frozen = fault("freeze here", when, at=at, lasts_s=4.5, returns_s=-1.0)
    case = Case(3, "adaptive-sgd", True, True, workers=3, epochs=20, checkpoint_every=20,
                faults=(frozen,))  # fmt: skip
    assert not simulate(case).problem
    assert ("joined", "2") in happened[happened.index(("given up", "2")) :]


def test_the_scheduler_is_not_given_all_tasks_at_once() -> None:
    case = draw_case(5)
    assert case.strategy == TREES
    with PLANTED["the scheduler is given all tasks of a tree at once"].planted():
        assert "tasks at once" in simulate(case).problem


def test_workers_that_come_at_once_do_not_have_shards_loaded_for_each_of_them() -> None:
    case = draw_case(1136284)
    assert not case.is_replicated
    assert sum(fault.kind == "join" for fault in case.faults) == 5
    assert not simulate(case).problem


def fault(
    kind: str, when: str, at: int = 1, lasts_s: float = 0.0, returns_s: float = 0.01, lag: int = 0
) -> Fault:
    return Fault(at, kind, 0, lasts_s, returns_s, same_address=True, when=when, lag=lag)


def case(*faults: Fault) -> Case:
    return Case(1, "adaptive-sgd", False, True, workers=1, epochs=2, checkpoint_every=1,
                faults=faults)  # fmt: skip


def silent(when: str) -> Case:
    """A worker that goes silent for long in a task of a tree: another is asked."""
    fault = Fault(1, "freeze here", 0, 100.0, 0.0, True, when, 1)
    return Case(
        7, "label-trees", False, True, workers=2, epochs=2, checkpoint_every=1, faults=(fault,)
    )


@pytest.mark.parametrize(
    "when",
    ["order", "plan", "fit", "put_together", "rank", "store_member"],
)
def test_others_do_the_work_of_a_silent_worker(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed_s = ends_of_megabatches(monkeypatch, TreeTruth)
    assert not simulate(silent(when)).problem
    assert len(closed_s) == 2
    assert closed_s[-1] < 60.0


def users(
    *faults: Fault, strategy: str = "adaptive-sgd", follows: bool = False, seed: int = 2
) -> Case:
    return Case(seed, strategy, False, True, 2, 1, 2, faults, follows=follows)


def by_quorum(
    seed: int, strategy: str, workers: int, epochs: int, checkpoint_every: int, *faults: Fault,
    **how: Any,
) -> Case:  # fmt: skip
    """A run whose merges have a quorum, with all rows on each worker."""
    settings = {"is_replicated": True, **how}
    return Case(seed, strategy, True, workers=workers, epochs=epochs,
                checkpoint_every=checkpoint_every, faults=faults, **settings)  # fmt: skip


def frozen(when: str, lasts_s: float, at: int = 1, lag: int = 0) -> Fault:
    return fault("freeze here", when, at=at, lasts_s=lasts_s, lag=lag)


# Frozen while it commits a merge in which it is alone.
ALONE_IN_A_MERGE = by_quorum(1472, "elastic", 2, 1, 3, frozen("daskxml_commit", 7.03))


# Stopped before the rows of epoch 0 that a worker was lost with are leased again.
STOPPED_AFTER_A_LOSS = Case(
    900621, "cpu-gpu-hogbatch", False, True, workers=2, epochs=3, checkpoint_every=1,
    transport="tcp", pools=1,
    faults=(
        replace(fault("kill", "daskxml_lease", at=27, lasts_s=0.8068460186174381, returns_s=0.1),
                pick=2, same_address=False),
        replace(fault("kill here", "", at=138, lasts_s=0.7541954279593268, returns_s=5.0),
                pick=1, same_address=False),
        fault("stop", "report", at=140),
    ),
)  # fmt: skip


def test_rows_that_were_not_leased_again_are_not_forgotten() -> None:
    assert not simulate(STOPPED_AFTER_A_LOSS).problem


def test_a_worker_that_is_alone_in_a_merge_is_waited_for() -> None:
    assert not simulate(ALONE_IN_A_MERGE).problem


MENDED: dict[str, Case] = {
    "a history whose last row was not written ends well":
        case(fault("full", "write_rows", at=160, lasts_s=0.0001)),
    "a full disk under a model is a traceback":
        case(fault("full", "rename model.safetensors.partial", lasts_s=5.0)),
    "a directory that Dask let the next worker at an address lock ends the run": Case(
        44, "static", False, True, workers=2, epochs=1, checkpoint_every=2,
        faults=(
            Fault(92, "kill", 0, 0.03401304864312761, 0.01, False, "daskxml_commit"),
            Fault(92, "kill", 0, 6.230878269221285, 0.0, True, "daskxml_commit", 16),
            Fault(117, "kill here", 2, 9.289907091457383e-06, 0.0, False, "open history"),
        ),
    ),
    "checkpoints of a history that was given up stay": Case(
        125, "hogbatch", False, False, workers=3, epochs=1, checkpoint_every=3, transport="tcp",
        pools=1,
        faults=(
            fault("stop", "remove 00", at=43, lag=32),
            fault("kill all", "remove 00", at=138, returns_s=-1.0),
        ),
    ),
    "a pool's threads outlive their run":
        Case(1, "hogbatch", False, True, 1, 1, 1, faults=(), pools=1),
    "who attaches gets the rows that the run's user has written":
        users(fault("power", "store_model"), fault("attach", "load_checkpoint"), follows=True),
    "a directory that Dask let the next worker at an address lock stays locked": Case(
        7056, "static", False, True, workers=3, epochs=1, checkpoint_every=2, slots=3, pools=1,
        faults=(
            replace(fault("kill here", "", at=6, lasts_s=0.7848, returns_s=0.0), pick=3),
            replace(fault("stop", "", at=6, lag=16), pick=3),
        ),
    ),
    "a user who has launched a run writes beside the worker": Case(
        14, "label-trees", False, True, workers=1, epochs=2, checkpoint_every=3, machines=2,
        transport="tcp", faults=(fault("slow disk", "open environment", lasts_s=0.001),),
    ),
    "a checkpoint brings a directory back that a user has removed": Case(
        94578, "static", False, True, workers=2, epochs=1, checkpoint_every=1, follows=True,
        faults=(
            fault("interrupt", "store_local", at=22),
            fault("interrupt", "store_local", at=37, lag=2),
            fault("interrupt", "store_local", at=37, lag=4),
        ),
    ),
    "a tree that is still being stored when its run is resumed has no row": Case(
        2507113, "label-trees", False, True, workers=1, epochs=3, checkpoint_every=1, machines=2,
        slots=2, transport="tls", follows=True,
        faults=(
            fault("slow disk", "remove 00", at=52, lasts_s=6.79, lag=1),
            fault("client", "remove 00", at=52, lasts_s=0.572, lag=8),
        ),
    ),
    "a directory with a checkpoint under way is removed": replace(
        users(
            fault("slow disk", "open 00", lasts_s=0.3),
            fault("interrupt", "open 00"),
            fault("interrupt", "open 00", lag=3),
            follows=True,
        ),
        checkpoint_every=1,
    ),
    "the result of a merge is sent once":
        users(*(fault("cut", "daskxml_merge", lag=8 * number) for number in range(12))),
    "a checkpoint that may not be on the disk is resumed from": users(
        fault("scheduler", "fsync folder checkpoints"),
        fault("power", "load_checkpoint"),
        seed=0,
    ),
    "Ctrl-C while a directory is locked leaves it locked":
        users(fault("interrupt", "exists", lag=2), seed=11),
    "Ctrl-C while a run is started leaves it there":
        users(fault("interrupt", "open environment"), follows=True, seed=4),
    "a run begins after its user is gone": users(fault("client", "daskxml_start")),
    "a run whose user is gone goes on beside the one that resumes it": replace(
        users(fault("client", "evaluate_pieces", at=100, lasts_s=1.0, lag=8), follows=True),
        epochs=2,
        checkpoint_every=1,
    ),
    "a run that is being forgotten waits for a lost worker": users(
        fault("interrupt", "create_worker"),
        fault("kill here", "daskxml_close", returns_s=-1.0),
    ),
    "a failed run whose directory cannot be written stays on its workers": Case(
        54457, "adaptive-hogbatch", False, True, workers=1, epochs=3, checkpoint_every=1,
        faults=(
            fault("full", "open history", lasts_s=2.4),
            replace(fault("join", "", at=7), pick=2),
            replace(fault("kill here", "batch", at=15, lasts_s=0.0009, returns_s=5.0, lag=2),
                    pick=1),
            fault("client", "", at=24, lasts_s=1.0),
            fault("full", "", at=24, lasts_s=2.28, lag=4),
        ),
    ),
    "a worker that is lost after the last message to it ends the run": Case(
        51714, "hogbatch", False, False, workers=2, epochs=1, checkpoint_every=2, slots=3,
        faults=(
            fault("power", "", at=23, lasts_s=0.0008526016621664985),
            replace(fault("power", "store_local", at=99, lag=7), pick=2),
            fault("cut", "", at=245),
            replace(fault("kill here", "", at=245, lasts_s=0.4954630042034762, lag=2), pick=3,
                    returns_s=0.0, same_address=False),
            fault("early", "", at=245),
        ),
    ),
    "two users who resume at once both start": Case(
        3, "elastic", False, False, workers=2, epochs=1, checkpoint_every=1, slots=2, machines=2,
        transport="tcp", follows=True,
        faults=(
            fault("client", "remove_worker", at=27, lasts_s=0.7334681633971554, returns_s=0.0),
            fault("cut", "remove_worker", at=27, lag=1),
            replace(fault("freeze client", "", at=39, lasts_s=0.3693816820632553, returns_s=1.0),
                    pick=2, same_address=False),
            replace(fault("client", "report", at=65, returns_s=0.0), pick=3),
            replace(fault("kill here", "store_checkpoint", at=96, lasts_s=0.0005098509036091396,
                          returns_s=0.1), pick=1),
            replace(fault("stop", "evaluate_pieces", at=102, lasts_s=0.06561707266312125,
                          returns_s=0.0), same_address=False),
            fault("kill", "evaluate_pieces", at=102, lasts_s=6.081393735377256, returns_s=1.0,
                  lag=4),
        ),
    ),
    "a detached run is resumed while it is under way": Case(
        147954, "static", False, True, workers=1, epochs=2, checkpoint_every=3, transport="tcp",
        pools=1,
        faults=(
            replace(fault("join", "store_checkpoint", at=7, lasts_s=6.11545934244732), pick=2),
            fault("stop", "open 00", at=84),
            fault("scheduler", "daskxml_read", at=86, lag=4),
            fault("client", "daskxml_read", at=86, lasts_s=5.629122298911454, lag=8),
            fault("stop", "", at=172, lasts_s=0.22967868147042625),
        ),
    ),
    "a run that is being forgotten does not see who comes": Case(
        137462, "static", False, True, workers=4, epochs=1, checkpoint_every=3, transport="tcp",
        pools=1,
        faults=(
            fault("scheduler", "batch"),
            replace(fault("cut", "message", at=3, lag=1), pick=1),
            replace(fault("kill all", "lock_directory", at=71, lasts_s=0.8477287030592651,
                          returns_s=0.0), pick=3),
            fault("client", "lock_directory", at=71, lasts_s=0.0007900849921114364),
            fault("scheduler", "", at=235),
        ),
    ),
    "a worker is created by the next process at an address": Case(
        160604, "adaptive-sgd", False, False, workers=4, epochs=3, checkpoint_every=2,
        transport="tcp", pools=1,
        faults=(
            fault("kill here", "", at=29, returns_s=0.0),  # it is being created
            fault("interrupt", "", at=29, lag=2),
        ),
    ),
    "a task that was given up writes beside one of the next run": Case(
        146432, "static", False, True, workers=4, epochs=1, checkpoint_every=2, slots=3, machines=2,
        transport="tcp", follows=True,
        faults=(
            replace(fault("break", "message", at=14), pick=2),
            fault("slow disk", "fsync 00", at=20, lasts_s=2.289514147162333),
            fault("client", "rename 00", at=91, lasts_s=0.031484006952499435),
        ),
    ),
    "a run is forgotten while a worker writes its files": replace(
        users(
            fault("slow disk", "store_model", lasts_s=2.0),
            fault("client", "store_model", lasts_s=0.001, lag=4),
            strategy="label-trees",
            follows=True,
            seed=6,
        ),
        slots=3,
    ),
    "rows that were given up are held on to":
        by_quorum(1016, "elastic", 2, 2, 1, frozen("daskxml_lease", 8.0)),
    "a late worker writes the checkpoint": by_quorum(
        1246, "static", 3, 3, 1, frozen("batch", 3.28, at=83), transport="tcp"
    ),
    "a silent worker is not left behind":
        by_quorum(653159, "static", 2, 1, 1, frozen("daskxml_merge", 4.72, at=2)),
    "a checkpoint forgets rows that late workers hold": by_quorum(
        1101, "static", 2, 2, 2,
        frozen("daskxml_merge", 8.0),
        replace(fault("kill here", "daskxml_merge", at=105, lasts_s=8.0), same_address=False),
        is_replicated=False,
    ),
    "rows that others do again are counted for the late worker as well": by_quorum(
        944662, "elastic", 3, 1, 1,
        fault("slow here", "message", lasts_s=4.65, lag=3), follows=True,
    ),
    "a model that a merge has overtaken is taken for the newest": by_quorum(
        1006, "elastic", 3, 1, 1,
        frozen("daskxml_merge", 0.95, lag=2), fault("slow here", "message", lasts_s=3.1),
        follows=True,
    ),
    "a lease of a session that is over counts in the next one": by_quorum(
        2512997, "elastic", 2, 2, 2,
        replace(fault("kill here", "evaluate_pieces", at=128, returns_s=-1.0), same_address=False),
        machines=2, transport="tcp", follows=True, grace=0.01,
    ),
    "a warning after its end hides how a run ended": Case(
        2538514, "adaptive-sgd", False, True, workers=4, epochs=1, checkpoint_every=3, machines=2,
        transport="tls", pools=1,
        faults=(
            Fault(39, "kill here", 2, 0.3098767811104433, 5.0, False),
            Fault(39, "kill here", 1, 1.070405797928796, 0.01, True, lag=1),
            fault("full", "", at=137, lasts_s=0.4315904008345159),
            fault("attach", "", at=186),
        ),
    ),
    "a late worker's change is dropped": by_quorum(
        1043, "static", 3, 2, 1,
        frozen("evaluate_pieces", 0.74, lag=1), frozen("evaluate_pieces", 2.65),
    ),
    "a worker that was given up keeps its change": by_quorum(
        997303, "adaptive-sgd", 3, 3, 3,
        frozen("copy_model", 0.5, at=2, lag=1), frozen("store_checkpoint", 0.385, at=3, lag=3),
        transport="tcp",
    ),
    # Frozen while it writes a checkpoint that another writes as well, and those after it.
    "a writer that was frozen removes the checkpoints of others": by_quorum(
        1101214, "static", 4, 1, 1,
        fault("freeze", "store_checkpoint", at=89, lasts_s=8.20109992821218),
        replace(fault("stop", "message", at=142, returns_s=5.0), same_address=False),
        transport="tcp", follows=True, grace=0.01,
    ),
    "a late worker's change counts twice": by_quorum(293058, "elastic", 4, 1, 1),
    "a late worker is rebased twice at once": by_quorum(
        875804, "adaptive-sgd", 3, 2, 2,
        fault("freeze", "copy_model", at=2, lasts_s=0.27, lag=1),
        fault("slow here", "batch", at=128, lasts_s=8.0, lag=8),
        slots=2,
    ),
    "a worker is admitted while it is rebased once more": by_quorum(
        342652, "adaptive-sgd", 4, 3, 1,
        fault("freeze", "evaluate_pieces", lasts_s=7.637308846693483, lag=3),
        fault("slow here", "copy_model", lasts_s=6.2107305909439825, lag=1), slots=2,
    ),
    "the result is a late worker's model": by_quorum(
        1227, "static", 3, 3, 1,
        fault("slow here", "store_checkpoint", lasts_s=8.0),
        frozen("daskxml_commit", 8.0, at=131, lag=8),
        is_replicated=False, slots=2, transport="tcp", follows=True,
    ),
    "a task for leases that was cancelled at once waits for its worker": Case(
        7539, "adaptive-hogbatch", False, False, workers=3, epochs=3, checkpoint_every=3,
        faults=(Fault(55, "kill all", 1, 1.66, 1.0, same_address=False),),
        machines=1, transport="tls", follows=True,
    ),
    # A detached run is stopped while it loads, and forgotten while the worker that unlocks dies.
    "who stops a run that another forgets does not hear of a lost worker": Case(
        1107641, "static", True, True, workers=2, epochs=1, checkpoint_every=2,
        faults=(
            Fault(47, "scheduler", 0, 0.05133984633435264, 0.1, True, "rename 00"),
            Fault(47, "stop", 1, 0.0006117449249722174, 0.1, False, "rename 00", 16),
            Fault(63, "kill here", 1, 0.5201829858115191, 0.01, False, "write_rows"),
            Fault(178, "kill here", 0, 0.00024115811071539938, 0.0, False, "", 32),
        ),
        machines=1, transport="tls", pools=2,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "schedule"), MENDED.items(), ids=MENDED)
def test_what_simulations_have_found_is_mended(name: str, schedule: Case) -> None:
    assert not simulate(schedule).problem
    with PLANTED[name].planted():
        assert simulate(schedule).problem
