"""Label trees on a real cluster: the simulator's bits, also where a worker is killed."""

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, Scheduler, Worker

import daskxml
from daskxml.session.fit_run import AHEAD
from harness.records import check_trees

Data = dict[str, Path]
VALUES: dict[str, Any] = {
    "model": {"kind": "trees", "leaf_labels": 10, "powers": [1.0, 0.5]},
    "training": {"trees": 2},
    "checkpoint": {"every": 1},
    "cluster": {"threads": 1},
}


@pytest.fixture(scope="module")
def expected(data: Data) -> daskxml.Run:
    return daskxml.simulate(VALUES, [1, 1], **data)


def check_same(run: daskxml.Run, expected: daskxml.Run) -> None:
    assert run.model.parameters.keys() == expected.model.parameters.keys()
    for name, array in expected.model.parameters.items():
        np.testing.assert_array_equal(run.model.parameters[name], array, err_msg=name)
    assert run.metrics == expected.metrics
    check_trees(run.history)


def test_trees_on_a_cluster_and_in_its_files(
    client: Client, data: Data, expected: daskxml.Run, tmp_path: Path
) -> None:
    parts = {"data.partitions": 9}  # whose sums are added up by several tasks
    run = daskxml.train(VALUES, client=client, **data, out=tmp_path / "run", overrides=parts)
    check_same(run, expected)
    loaded = daskxml.load(tmp_path / "run")
    rows = np.eye(3, 300)
    np.testing.assert_array_equal(loaded.predict_top_k(rows)[0], run.model.predict_top_k(rows)[0])


def test_a_detached_run_without_a_directory_keeps_its_trees(
    client: Client, data: Data, expected: daskxml.Run
) -> None:
    name = daskxml.launch(VALUES, client=client, **data)
    check_same(daskxml.attach(name, client=client).follow(), expected)


@pytest.mark.slow
def test_rows_that_are_held_out_calibrate_the_model(
    client: Client, data: Data, tmp_path: Path
) -> None:
    rows, held_out = {"train": data["train"]}, ["data.validation=0.2", "data.partitions=2"]
    held_out.append("training.trees=1")
    here = daskxml.simulate(VALUES, [1], **rows, overrides=held_out).model.header.decisions
    assert here is not None
    assert here.measured["calibration_error"] < here.measured["calibration_error_before"]
    given = {**rows, "client": client, "overrides": held_out}
    runs = [daskxml.train(VALUES, **given, out=out) for out in (None, tmp_path / "run")]
    runs.append(daskxml.attach(daskxml.launch(VALUES, **given), client=client).follow())
    assert [run.model.header.decisions for run in runs] == [here] * 3


@pytest.mark.slow
def test_a_run_goes_on_from_its_trees(
    client: Client, data: Data, expected: daskxml.Run, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    one = daskxml.train(VALUES, client=client, **data, out=out, overrides=["training.trees=1"])
    two = daskxml.train(VALUES, client=client, **data, resume=out)
    assert two.history[0] == one.history[0]
    check_same(two, expected)
    assert daskxml.verify(out).agrees


def die_in(task: str) -> Any:
    """Return what makes one worker kill itself in its first task of a kind."""

    def arm(dask_worker: Worker) -> None:
        from daskxml.models.trees.fitting import TreeFitter

        def deadly(*args: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(TreeFitter, task, deadly)

    return arm


@pytest.mark.parametrize("task", ["fit", pytest.param("rank", marks=pytest.mark.slow)])
def test_a_worker_is_killed(client: Client, data: Data, expected: daskxml.Run, task: str) -> None:
    client.run(die_in(task), workers=[next(iter(client.scheduler_info()["workers"]))])
    run = daskxml.train(VALUES, client=client, **data)
    kinds = [event["kind"] for row in run.history for event in row["events"]]
    assert "lost" in kinds
    check_same(run, expected)


def test_labels_without_rows_and_features_without_labels(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_text("4 9 40\n0,39 0:1\n \n39 2:1 3:1\n5 8:0.5\n")
    run = daskxml.train(VALUES, client=client, train=path, test=path)
    assert run.metrics["P@1"] == pytest.approx(1.0, abs=0.34)
    ids, _ = run.model.predict_top_k(np.zeros((1, 9)), k=5)
    assert ids.shape == (1, 5)


def test_the_work_of_many_trees_is_submitted_as_it_is_needed(client: Client, data: Data) -> None:
    """100,000 trees at once would block a scheduler that others use as well."""

    def count(dask_scheduler: Scheduler) -> int:
        return len(dask_scheduler.tasks)

    def count_beginnings(dask_scheduler: Scheduler) -> dict[str, int]:
        """How many trees there are still the order and the plan of, in some worker's memory."""
        held = (key for key, task in dask_scheduler.tasks.items() if task.state == "memory")
        named = Counter(key.split("-")[1] for key in held if "-" in key)
        return {name: named[name] for name in ("order", "plan")}

    before, counts, begun = client.run_on_scheduler(count), list[int](), list[dict[str, int]]()

    def hear(event: Any) -> Any:
        if event["kind"] == "megabatch":
            counts.append(client.run_on_scheduler(count) - before)
            begun.append(client.run_on_scheduler(count_beginnings))
        return daskxml.STOP if len(counts) == 6 else None

    many = {"training": {"trees": 100_000}}
    run = daskxml.train(VALUES | many, client=client, **data, on_event=hear)
    assert 6 <= len(run.history) < 10
    assert max(counts) < 500
    assert counts[-1] < 2 * counts[1] + 20  # also what is kept of each tree is little
    assert max(most for each in begun for most in each.values()) <= AHEAD  # not of fitted ones
    del run
    deadline = time.monotonic() + 30
    while client.run_on_scheduler(count) > before:  # nothing is left with the scheduler
        assert time.monotonic() < deadline
        time.sleep(0.1)
