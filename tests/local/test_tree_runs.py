"""Whole runs of label trees in virtual time: the same model whoever fits which piece."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import daskxml
from daskxml.api.in_process import simulate
from daskxml.config import load_run_config
from daskxml.core.errors import ConfigError, DaskxmlError
from daskxml.local import Loss
from daskxml.local.fit_run import Clocks
from daskxml.session.task_pool import Task
from harness.records import check_trees

VALUES: dict[str, Any] = {
    "model": {"kind": "trees", "leaf_labels": 10, "powers": [1.0, 0.5]},
    "training": {"trees": 2},
}
Data = dict[str, Path]


def parameters(run: daskxml.Run) -> dict[str, np.ndarray]:
    return dict(sorted(run.model.parameters.items()))


def same(one: daskxml.Run, other: daskxml.Run) -> bool:
    a, b = parameters(one), parameters(other)
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def alone(data: Data) -> daskxml.Run:
    return simulate(VALUES, [1], **data)


def test_trees_learn_and_each_is_evaluated(alone: daskxml.Run) -> None:
    assert [row["metrics"]["rows"] for row in alone.history] == [200, 200]
    assert alone.metrics["P@1"] > 0.4
    assert "2 label trees" in repr(alone.model)
    check_trees(alone.history)


@pytest.mark.parametrize("speeds", [[1, 1], [1, 1, 0.5, 0.25]])
def test_any_number_of_workers_gives_the_same_bits(
    data: Data, alone: daskxml.Run, speeds: list[float]
) -> None:
    run = simulate(VALUES, speeds, **data)
    assert same(run, alone)
    assert run.metrics == alone.metrics
    check_trees(run.history)


def test_a_target_ends_a_run_and_needs_test_rows(data: Data) -> None:
    target = {"overrides": ["training.target=0.01"]}
    run = simulate(VALUES, [1], **data, **target)
    assert (run.reason, len(run.history)) == ("target", 1)
    with pytest.raises(ConfigError, match=r"training\.target needs test rows"):
        simulate(VALUES, [1], train=data["train"], **target)


def test_losses_and_arrivals_are_not_simulated(data: Data) -> None:
    with pytest.raises(daskxml.ConfigError, match="worker 1 is lost, arrives or freezes, which"):
        simulate(VALUES, [1, 1], **data, changes=[Loss(0.5, "1")])


def test_a_run_goes_on_from_its_checkpoint(data: Data, alone: daskxml.Run, tmp_path: Path) -> None:
    out, values = tmp_path / "run", VALUES | {"checkpoint": {"every": 1}}
    simulate(values, [1, 1], **data, out=out, overrides=["training.trees=1"])
    run = simulate(out / "run.toml", [1], resume=out, overrides=["training.trees=2"])
    assert same(run, alone)
    assert same(run, daskxml.Run(**{**vars(run), "model": daskxml.load(out)}))
    network = {"training": {"epochs": 4}}
    with pytest.raises(DaskxmlError, match=r"model.kind: the run began with 'trees', which cannot"):
        simulate(network, [1], **data, resume=out)
    with pytest.raises(DaskxmlError, match="are not those that the run began with"):
        simulate(VALUES, [1], **data, resume=out, overrides=["data.validation=0.1"])
    starts = (out / "environment.json").rename(tmp_path / "starts.json")  # as earlier versions left
    with pytest.raises(DaskxmlError, match="1,500 training rows, the data 1,350"):
        simulate(VALUES, [1], **data, resume=out, overrides=["data.validation=0.1"])
    starts.rename(out / "environment.json")
    with pytest.raises(DaskxmlError, match="leaf_labels: the run began with 10, which cannot"):
        simulate(VALUES, [1], **data, resume=out, overrides=["model.leaf_labels=5"])
    (out / "run.toml").write_text(load_run_config(network).to_toml())  # edited by a user
    with pytest.raises(DaskxmlError, match="is of another kind: leave"):
        simulate(network, [1], **data, resume=out)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["training.trees=1.5"], "trees = 1.5: must be an integer"),
        (
            ["training.trees=0", "training.minutes=1"],
            "trees = 0: must be at least 1 for label trees",
        ),
        (["training.epochs=2"], "epochs = 2.0: label trees have none: give .training. trees"),
        (["training.megabatches=2"], "megabatches = 2: label trees have none: give"),
        (["data.residency=shard"], "needs all rows on every worker"),
        (["cluster.pools=1"], "takes no pools"),
        (["evaluation.training_loss=true"], "has no loss over all rows"),
        (["strategy.name=elastic"], ".strategy. is for networks: leave it out"),
        (["model.hidden=[8]"], "unknown key 'hidden'"),
        (["model.hard_negatives=5"], "removed: no measurable gain"),
        (["model.kind=forest"], "kind = 'forest': must be one of 'network', 'trees'"),
        (["model.kind=network"], "leaf_labels"),
    ],
)
def test_settings_that_do_not_go_together(overrides: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        load_run_config(VALUES, overrides)
    assert "\n" not in str(caught.value)


def test_a_callback_ends_a_run_with_the_tree_that_it_was_told_of(
    data: Data, alone: daskxml.Run
) -> None:
    """Whatever was done of the next one."""
    run = simulate(VALUES, [1, 1], **data, on_megabatch=lambda row: daskxml.STOP)
    assert (run.reason, len(run.history)) == ("callback", 1)
    assert run.history[0]["metrics"] == alone.history[0]["metrics"]


def test_ctrl_c_ends_a_run_with_the_tree_under_way(
    data: Data, alone: daskxml.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, interrupted = Clocks.begin, list[Task]()

    def interrupt(pool: Clocks, task: Task) -> None:
        begin(pool, task)
        if task.is_piece and not interrupted:
            interrupted.append(task)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Clocks, "begin", interrupt)
    run = simulate(VALUES, [1], **data)
    assert (run.reason, len(run.history)) == ("interrupt", 1)
    assert run.history[0]["metrics"] == alone.history[0]["metrics"]
    check_trees(run.history)


def test_a_run_that_is_stopped_in_its_first_tree_says_so(data: Data) -> None:
    """It is evaluated, and has nothing to store."""
    tree_s = simulate(VALUES, [1], **data).history[0]["train_s"]
    with pytest.raises(DaskxmlError, match="before its first tree was complete"):
        simulate(VALUES, [1], **data, overrides={"training.minutes": tree_s / 200})
