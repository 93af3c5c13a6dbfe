"""The same events give the same commands, whether a cluster or the simulator carries them out."""

from __future__ import annotations

import copy
import json

import pytest
from distributed import Client, LocalCluster

import daskxml
from daskxml.config import load_run_config
from daskxml.data.shuffle import Shards
from daskxml.runtime.driver import Driver
from daskxml.runtime.loading import Given, LoadedData
from daskxml.simulator import Arrival, Loss, simulate
from daskxml.simulator.simulation import Simulation
from daskxml.training import setup
from daskxml.training.run import resolve_run
from daskxml.training.run_dir import RunDir
from daskxml.training.session import Session

STRATEGIES = ["adaptive-sgd", "elastic", "mirrored", "asynchronous"]


class RecordingSession(Session):
    """A session that writes down what it hears and what it says."""

    trace: list = []  # noqa: RUF012 - of all sessions, emptied by the fixture

    def start(self, workers, now_s):
        return self._record("start", (tuple(workers), now_s), super().start(workers, now_s))

    def handle(self, report, now_s):
        return self._record("handle", (report, now_s), super().handle(report, now_s))

    def tick(self, now_s):
        return self._record("tick", (now_s,), super().tick(now_s))

    def _record(self, method, heard, said):
        self.trace.append(copy.deepcopy((method, heard, said)))
        return said


@pytest.fixture
def trace(monkeypatch):
    monkeypatch.setattr(setup, "Session", RecordingSession)
    RecordingSession.trace.clear()
    return RecordingSession.trace


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dask")
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0",
                     local_directory=folder) as cluster,
        Client(cluster) as connected,
    ):  # fmt: skip
        yield connected


@pytest.fixture(params=STRATEGIES)
def config(request, data):
    values = {
        "model": {"hidden": [16]},
        "strategy": {"name": request.param, "batch_max": 32, "megabatch_batches": 12, "lr": 0.5},
        "training": {"megabatches": 3},
        "evaluation": {"every": 2},
    }
    return resolve_run(values, data["train"], data["test"], ())


def simulation(config, workers):
    made = Simulation(config, dict.fromkeys(workers, 1.0), RunDir(None, None), (), [])
    made.read(None, None, None)
    return made


def as_the_simulator_builds_it(config):
    return simulation(config, ["0", "1"]).new_session()


def as_the_driver_builds_it(config):
    config = load_run_config(json.loads(json.dumps(config.as_dict())))
    driver, made = Driver(None, "run", config, Given()), simulation(config, ["0", "1"])
    where = made.rows.placement()
    driver.data = LoadedData(
        made.spec, made.rows.facts, Shards([], where.train_rows), Shards([], where.test_rows),
        None, where.is_replicated,
    )  # fmt: skip
    return driver._new_session()


def check_commands(recorded, session):
    assert len(recorded) > 10
    for method, heard, said in recorded:
        assert getattr(Session, method)(session, *heard) == said


def test_what_a_cluster_reports_gives_the_same_orders(client, config, trace):
    run = daskxml.train(config, client=client)
    recorded = list(trace)
    session = as_the_simulator_builds_it(config)
    check_commands(recorded, session)
    assert session.history == run.history


def test_what_the_simulator_reports_gives_the_same_orders(config, costs, trace):
    changes = [Loss(0.05, "1"), Arrival(0.08, "2")]
    run = simulate(config, [1, 0.6], **costs, changes=changes)
    recorded = list(trace)
    session = as_the_driver_builds_it(config)
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
