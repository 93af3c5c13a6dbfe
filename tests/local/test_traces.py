"""The same events give the same commands, from a cluster and from the simulator."""

import json

import pytest
from distributed import Client, Scheduler, SpecCluster, Worker

import daskxml
from daskxml.api.in_process import simulate
from daskxml.api.run import resolve_run
from daskxml.cluster.data_loading import LoadedData
from daskxml.cluster.run_driver import RunDriver
from daskxml.config import load_run_config
from daskxml.local import Arrival, Loss
from daskxml.local.cost import Devices, v100_cost
from daskxml.local.rows import load_rows
from daskxml.local.run import LocalRun
from daskxml.session.row_loading import Rows, Shards
from daskxml.session.session import Session
from harness.clusters import local_client
from harness.small_data import small_run

STRATEGIES = ["adaptive-sgd", "elastic", "mirrored", "asynchronous"]
WITH_POOL = ["adaptive-sgd", "hogbatch", "cpu-gpu-hogbatch", "adaptive-hogbatch"]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with local_client(2, tmp_path_factory.mktemp("dask"), processes=False) as connected:
        yield connected


@pytest.fixture(scope="module")
def mixed_client(tmp_path_factory):
    """Of a worker with a replica and a pool of one thread."""
    options = {"nthreads": 1, "local_directory": tmp_path_factory.mktemp("dask")}
    workers = {
        "0": {"cls": Worker, "options": options},
        "1": {"cls": Worker, "options": {**options, "resources": {"cpu-pool": 1}}},
    }
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": ":0"}}
    with SpecCluster(workers, scheduler) as cluster, Client(cluster) as connected:
        yield connected


def make_config(strategy, data):
    values = small_run(3, strategy, evaluation={"every": 2})
    return resolve_run(values, data["train"], data["test"], ())


def simulation(config, workers):
    config, rows, names = load_rows(config, len(workers))
    devices = Devices(cost=v100_cost(rows.model_spec(config)))
    speeds = dict.fromkeys(workers, 1.0)
    return LocalRun(config, rows, lambda event: None, names=names, devices=devices, speeds=speeds)


def as_the_simulator_builds_it(config):
    return simulation(config, ["0", "1"]).new_session()


def as_the_driver_builds_it(config):
    config = load_run_config(json.loads(json.dumps(config.as_dict())))
    driver, made = RunDriver(None, "run", config, {}), simulation(config, ["0", "1"])
    where = made.rows.placement()
    shards = Shards([], where.train_rows), Shards([], where.test_rows)
    driver.data = LoadedData(made.spec, Rows(made.rows.facts, *shards, None, where.is_replicated))
    return driver._new_session()


def check_commands(trace, pool_threads, session, history):
    recorded = list(trace)
    assert len(recorded) > 10
    assert recorded[0][1][0]["1"].pool_threads == pool_threads
    for method, arguments, commands in recorded:
        assert getattr(Session, method)(session, *arguments) == commands
    assert session.history == history


@pytest.mark.parametrize(
    ("name", "cluster"),
    [(name, "client") for name in STRATEGIES] + [(name, "mixed_client") for name in WITH_POOL],
)
def test_the_results_of_a_cluster_give_the_same_commands(name, cluster, data, trace, request):
    config = make_config(name, data)
    run = daskxml.train(config, client=request.getfixturevalue(cluster))
    pool_threads = 1 if cluster == "mixed_client" else 0
    check_commands(trace, pool_threads, as_the_simulator_builds_it(config), run.history)


@pytest.mark.parametrize(
    ("name", "pools"),
    [(name, {}) for name in STRATEGIES] + [(name, {"1": 4, "2": 2}) for name in WITH_POOL],
)
def test_the_results_of_the_simulator_give_the_same_commands(name, pools, data, costs, trace):
    config, changes = make_config(name, data), [Loss(0.05, "1"), Arrival(0.08, "2")]
    run = simulate(config, [1, 0.6], **costs, changes=changes, pools=pools)
    check_commands(trace, pools.get("1", 0), as_the_driver_builds_it(config), run.history)


def test_histories_have_the_same_fields(client, data, values, costs, tmp_path):
    values["evaluation"] = {"every": 1}
    real = daskxml.train(values, client=client, **data, out=tmp_path / "real")
    simulated = simulate(values, [1, 1], **data, **costs, out=tmp_path / "simulated")

    def fields(row):
        (worker,) = {tuple(worker) for worker in row["workers"].values()}
        return tuple(row), worker, tuple(row["metrics"])

    found, expected = ({fields(row) for row in run.history} for run in (simulated, real))
    assert found == expected
    files = {path.name for path in (tmp_path / "real").iterdir()}
    assert {path.name for path in (tmp_path / "simulated").iterdir()} == {*files, "simulation.json"}
