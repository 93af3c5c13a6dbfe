"""Runs with pools and with one shared model, on real clusters of processes."""

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client

import daskxml
import harness.pools as pools
from daskxml.cli.main import main
from daskxml.core.errors import ClusterError
from harness.commands import WITHIN_S, Command
from harness.ledger_check import check_ledger

Data = dict[str, Path]
Values = dict[str, Any]
Event = Mapping[str, Any]

STRATEGIES: dict[str, Values] = {
    "hogbatch": {"batch_max": 16},
    "cpu-gpu-hogbatch": {"batch_max": 32, "pool_batch": 2},
    "adaptive-hogbatch": {
        "batch_max": 32, "batch_min": 8, "pool_batch_min": 1, "pool_batch_max": 8,
    },
}  # fmt: skip
PAIR = {"cpu": pools.POOL_OF_ALL_CORES, "gpu": pools.REPLICA}


def make_values(strategy: str = "cpu-gpu-hogbatch", megabatches: int = 6) -> Values:
    """A run of a few small mega-batches."""
    return {
        "model": {"hidden": [16]},
        "strategy": {
            "name": strategy, "lr": 0.5, "megabatch_batches": 20, **STRATEGIES.get(strategy, {}),
        },
        "training": {"megabatches": megabatches},
        "checkpoint": {"every": 2},
        "cluster": {"threads": 1},
    }  # fmt: skip


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A cluster of a pool and a replica worker that are started again when they die."""
    with pools.cluster_of(tmp_path_factory.mktemp("dask"), PAIR) as connected:
        yield connected


@pytest.fixture
def client(pair: Client) -> Client:
    """That cluster, with both of them."""
    pair.wait_for_workers(2, timeout=60)
    return pair


def worked(history: list[dict[str, Any]], name: str) -> list[int]:
    """The mega-batches in which a worker did something."""
    rows = ((row["megabatch"], row["workers"].get(name, {})) for row in history)
    return [megabatch for megabatch, worker in rows if worker.get("rows")]


def check_run(run: daskxml.Run, megabatches: int) -> None:
    """Every row is counted once, and something was learnt."""
    assert [row["megabatch"] for row in run.history] == list(range(1, megabatches + 1))
    check_ledger(run.history, 1500)
    assert run.history[-1]["loss"] < 0.95 * run.history[0]["loss"]
    assert run.metrics["P@1"] > 0.2
    for row in run.history:
        assert row["metrics"]["rows"] == 200
        assert sum(worker["weight"] for worker in row["workers"].values()) == pytest.approx(1.0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_pool_and_a_replica_update_one_model(
    client: Client,
    data: Data,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    strategy: str,
) -> None:
    events: list[Event] = []
    run = daskxml.train(
        make_values(strategy), client=client, train=data["train"], test=data["test"],
        out=tmp_path / "run", on_event=events.append,
    )  # fmt: skip
    check_run(run, 6)
    assert daskxml.verify(tmp_path / "run").agrees
    assert worked(run.history, "cpu")
    assert worked(run.history, "gpu")
    last = run.history[-1]
    threads = {name: worker["pool_threads"] for name, worker in last["workers"].items()}
    assert threads == {"cpu": pools.THREADS, "gpu": 0}
    started = next(event for event in events if event["kind"] == "started")
    assert started["pools"] == {"cpu": pools.THREADS}
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), str(data["test"]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == last["metrics"]
    assert pools.mapped(client) == {"cpu": set(), "gpu": set()}


def test_a_pool_is_a_member_of_adaptive_sgd(client: Client, data: Data) -> None:
    values = make_values("adaptive-sgd")
    values["strategy"] |= {"batch_max": 32, "pool_batch_min": 1, "pool_batch_max": 8}
    run = daskxml.train(values, client=client, train=data["train"], test=data["test"])
    check_run(run, 6)
    assert worked(run.history, "cpu")
    assert run.history[-1]["workers"]["cpu"]["pool_threads"] == pools.THREADS


def test_two_runs_at_once(client: Client, data: Data) -> None:
    runs: dict[int, daskxml.Run] = {}

    def train(seed: int) -> None:
        runs[seed] = daskxml.train(
            make_values(), client=client, train=data["train"], test=data["test"],
            overrides={"run.seed": seed},
        )  # fmt: skip

    threads = [threading.Thread(target=train, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in (1, 2):
        check_run(runs[seed], 6)


@pytest.mark.parametrize("victim", ["cpu", pytest.param("gpu", marks=pytest.mark.slow)])
def test_a_worker_is_killed_in_the_middle_of_an_epoch(
    client: Client, data: Data, victim: str
) -> None:
    pools.arm(client, victim, "lease", 5)
    events: list[Event] = []
    run = daskxml.train(
        make_values(megabatches=8), client=client, train=data["train"], test=data["test"],
        overrides={"strategy.lease_s": 0}, on_event=events.append,  # a batch a lease
    )  # fmt: skip
    check_run(run, 8)
    changes = [(event["event"], event["worker"]) for event in events if event["kind"] == "worker"]
    assert changes[0] == ("lost", victim)
    hit = next(row for row in run.history if any(e["kind"] == "lost" for e in row["events"]))
    (loss,) = [event for event in hit["events"] if event["kind"] == "lost"]
    done = hit["workers"][victim]["rows"]  # stays done: only leases under way went back
    assert done > 0
    assert 0 < loss["rows_returned"] < hit["rows"] - done
    other = "gpu" if victim == "cpu" else "cpu"
    assert max(worked(run.history, other)) >= hit["megabatch"]


@pytest.mark.slow
def test_workers_join_and_the_run_goes_on_from_a_checkpoint(data: Data, tmp_path: Path) -> None:
    out, first = tmp_path / "run", {"a": pools.REPLICA}
    later = {"b": {"resources": {"cpu-pool": 1}}, "c": pools.REPLICA}
    values, is_interrupted = make_values(megabatches=1_000_000), False
    with pools.cluster_of(tmp_path / "dask", first) as client:

        def watch(event: Event) -> None:
            nonlocal is_interrupted
            if event["kind"] == "megabatch" and event["row"]["megabatch"] == 2:
                pools.add_workers(client, later)
            if event["kind"] == "megabatch" and not is_interrupted:
                rows = [worker["rows"] for worker in event["row"]["workers"].values()]
                if len(rows) == 3 and all(rows):
                    is_interrupted = True
                    raise KeyboardInterrupt

        run = daskxml.train(values, client=client, train=data["train"], out=out, on_event=watch)
        assert run.reason == "interrupt"
        check_ledger(run.history, 1500)
        done = len(run.history)
        resumed = daskxml.train(
            values, client=client, train=data["train"], test=data["test"], resume=out,
            overrides={"training.megabatches": done + 3},
        )  # fmt: skip
    assert [row["megabatch"] for row in resumed.history] == list(range(1, done + 4))
    check_ledger(resumed.history, 1500)
    assert resumed.history[:done] == run.history
    assert sorted(resumed.history[-1]["workers"]) == ["a", "b", "c"]
    assert resumed.history[-1]["loss"] < 0.95 * resumed.history[0]["loss"]


# ------------------------------------------------------------------ nothing is left

RUN_FILE = """
[model]
hidden = [16]
[strategy]
name = "cpu-gpu-hogbatch"
batch_max = 32
pool_batch = 2
megabatch_batches = 20
lr = 0.5
[training]
megabatches = 1000000
[cluster]
workers = 1
pools = 1
pool_threads = 1
threads = 1
"""


@pytest.mark.slow
def test_nothing_is_left_of_a_run_whose_processes_are_all_killed(
    data: Data, tmp_path: Path
) -> None:
    run_file = tmp_path / "run.toml"
    run_file.write_text(RUN_FILE)
    arguments = (run_file, "--train", data["train"], "--out", tmp_path / "run")
    with Command("train", *arguments) as command:
        command.wait_for("1,500 rows")
        assert command.lines[-1].endswith("; pools: pool-0 (1 thread)\n")
        command.wait_for("mega-batch 2 ")
        family = [psutil.Process(command.pid), *command.family()]
        named = set[Path]().union(*(pools.named_memory(member.pid) for member in family))
        shared = [name for member in family for name in pools.shared_memory(member.pid)]
        assert len(shared) == 2  # both workers have
        assert len(set(shared)) == 1  # the same
        arrays = {name for it in family for name in pools.shared_memory(it.pid, "daskxml")}
        assert len(arrays) > 3
        for member in family:
            member.kill()
        _, alive = psutil.wait_procs(family[1:], timeout=WITHIN_S)
        assert not alive
    left = set[str]().union(*(pools.shared_memory(pid, "daskxml") for pid in psutil.pids()))
    assert not left & arrays
    assert not [path for path in named if path.exists()]


# ------------------------------------------------------------------------ bad input


def test_workers_that_cannot_do_a_run(data: Data, tmp_path: Path) -> None:
    workers = {"a": pools.POOL, "b": {"resources": {"cpu-pool": 4096}}}
    with pools.cluster_of(tmp_path, workers) as client:
        for strategy in ("adaptive-hogbatch", "adaptive-sgd"):
            with pytest.raises(ClusterError, match="4097 threads, more than its"):
                daskxml.train(make_values(strategy), client=client, train=data["train"])


def test_a_worker_on_another_machine_than_the_shared_model_is_refused(
    data: Data, tmp_path: Path
) -> None:
    workers = {"far": pools.ELSEWHERE, "near": pools.POOL}
    with pools.cluster_of(tmp_path, workers) as client:
        refused = r"name = 'hogbatch' has one model, .* worker far at \S+ is on another machine"
        with pytest.raises(daskxml.ConfigError, match=refused):
            daskxml.train(make_values("hogbatch"), client=client, train=data["train"])
        run = daskxml.train(
            make_values("adaptive-sgd"), client=client, train=data["train"], test=data["test"]
        )
    check_run(run, 6)


def test_a_pool_cannot_take_part_in_gangs(client: Client, data: Data) -> None:
    with pytest.raises(daskxml.ConfigError, match=r"takes no pool, which worker cpu at \S+ is"):
        daskxml.train(make_values("mirrored"), client=client, train=data["train"])


def test_more_threads_than_cores_on_this_machine(data: Data) -> None:
    values = make_values() | {"cluster": {"pools": 1, "pool_threads": 4096}}
    with pytest.raises(daskxml.ConfigError, match=r"this machine has \d+ cores; lower"):
        daskxml.train(values, train=data["train"])
