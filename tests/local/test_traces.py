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


@pytest.fixture(params=STRATEGIES)
def config(request, data):
    return make_config(request.param, data)


@pytest.fixture(params=WITH_POOL)
def pool_config(request, data):
    return make_config(request.param, data)


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


def check_commands(recorded, session):
    assert len(recorded) > 10
    for method, arguments, commands in recorded:
        assert getattr(Session, method)(session, *arguments) == commands


def test_the_results_of_a_cluster_give_the_same_commands(client, config, trace):
    run = daskxml.train(config, client=client)
    recorded = list(trace)
    session = as_the_simulator_builds_it(config)
    check_commands(recorded, session)
    assert session.history == run.history


def test_the_results_of_the_simulator_give_the_same_commands(config, costs, trace):
    changes = [Loss(0.05, "1"), Arrival(0.08, "2")]
    run = simulate(config, [1, 0.6], **costs, changes=changes)
    recorded = list(trace)
    session = as_the_driver_builds_it(config)
    check_commands(recorded, session)
    assert session.history == run.history


def test_a_pool_on_a_cluster_gives_the_same_commands(mixed_client, pool_config, trace):
    run = daskxml.train(pool_config, client=mixed_client)
    recorded = list(trace)
    assert recorded[0][1][0]["1"].pool_threads == 1
    session = as_the_simulator_builds_it(pool_config)
    check_commands(recorded, session)
    assert session.history == run.history


def test_a_pool_in_the_simulator_gives_the_same_commands(pool_config, costs, trace):
    changes, pools = [Loss(0.05, "1"), Arrival(0.08, "2")], {"1": 4, "2": 2}
    run = simulate(pool_config, [1, 0.6], **costs, changes=changes, pools=pools)
    recorded = list(trace)
    assert recorded[0][1][0]["1"].pool_threads == 4
    session = as_the_driver_builds_it(pool_config)
    check_commands(recorded, session)
    assert session.history == run.history


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
