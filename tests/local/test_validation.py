"""Held-out rows take the place of the test rows, on a cluster and in the simulator alike."""

import numpy as np
import pytest

import daskxml
from daskxml.api.in_process import simulate
from daskxml.api.run import resolve_run
from daskxml.local import read_rows
from harness.clusters import local_client
from harness.records import flat


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with local_client(1, tmp_path_factory.mktemp("dask"), processes=False) as connected:
        yield connected


@pytest.fixture(scope="module")
def pool_client(tmp_path_factory):
    """Of one worker, a pool of one thread."""
    pool = {"processes": False, "resources": {"cpu-pool": 1}}
    with local_client(1, tmp_path_factory.mktemp("dask"), **pool) as connected:
        yield connected


@pytest.mark.parametrize("residency", ["replicate", "shard"])
@pytest.mark.parametrize("share", [0.0, 0.2])
def test_one_worker_gives_the_same_bits_on_a_cluster_and_in_the_simulator(
    client, data, values, costs, residency, share
):
    values["data"] = {"validation": share, "residency": residency}
    values["training"] = {"epochs": 2}
    events = []
    real = daskxml.train(values, client=client, **data, on_event=events.append)
    simulated = simulate(values, [1], **data, **costs)
    assert np.array_equal(flat(real), flat(simulated))
    assert real.metrics == simulated.metrics
    assert real.model.header.decisions == simulated.model.header.decisions
    assert (simulated.model.header.decisions is not None) == (share > 0.0)  # it is calibrated
    held = int(1500 * share)
    assert real.metrics["rows"] == (held or 200)
    started = next(event for event in events if event["kind"] == "started")
    assert started["rows"] == 1500 - held
    assert started["tested_on"] == ("validation" if share else "test")
    assert real.model.header.training_rows == simulated.model.header.training_rows == 1500 - held
    assert real.model.header.training.get("validation") == (share or None)


@pytest.mark.parametrize("residency", ["replicate", "shard"])
@pytest.mark.parametrize("strategy", ["adaptive-sgd", "hogbatch", "adaptive-hogbatch"])
def test_a_pool_of_one_thread_gives_the_same_bits_on_a_cluster_and_in_the_simulator(
    pool_client, data, values, costs, strategy, residency
):
    values["data"] = {"residency": residency}
    values["strategy"]["name"] = strategy
    values["training"] = {"megabatches": 2}
    real = daskxml.train(values, client=pool_client, **data)
    simulated = simulate(values, [1], **data, **costs, pools={"0": 1})
    assert np.array_equal(flat(real), flat(simulated))
    assert real.metrics == simulated.metrics


@pytest.mark.parametrize("strategy", ["hogbatch", "adaptive-hogbatch"])
def test_one_copy_of_a_shared_model_gives_the_same_bits(client, data, values, costs, strategy):
    values["strategy"]["name"] = strategy
    values["training"] = {"megabatches": 2}
    real = daskxml.train(values, client=client, **data)
    simulated = simulate(values, [1], **data, **costs)
    assert np.array_equal(flat(real), flat(simulated))


def test_rows_are_held_out_or_trained_on_and_never_both(data, values):
    values["data"] = {"partitions": 4}
    plain = resolve_run(values, data["train"], data["test"], ())
    held_out = resolve_run(plain, None, None, ["data.validation=0.1"])
    whole = read_rows(plain, 2)
    rows = read_rows(held_out, 2)
    assert [part.rows for part in rows.train.parts] == [337, 338, 337, 338]
    assert [part.rows for part in rows.test.parts] == [37, 38, 37, 38]
    values_of = [
        np.concatenate([part.features.data for part in parts])
        for parts in (whole.train.parts, [*rows.train.parts, *rows.test.parts])
    ]
    assert np.array_equal(*values_of)  # the same shuffled order, cut in another place
    assert rows.label_counts.sum() == sum(part.labels.nonzeros for part in rows.train.parts)


def test_no_test_file_is_needed(data, values, costs):
    values["data"] = {"validation": 0.001}
    values["training"] = {"target": 0.9, "megabatches": 2}
    run = simulate(values, [1, 1], train=data["train"], **costs)
    assert run.metrics["rows"] == 1


def test_a_share_that_leaves_nothing_is_refused(values, costs, tmp_path):
    values["data"] = {"validation": 1.0}
    with pytest.raises(daskxml.ConfigError, match=r"validation = 1\.0: must be at least 0"):
        simulate(values, [1], train="nowhere.txt")
    (tmp_path / "one.txt").write_text("1 2 2\n0 0:1\n")
    values["data"] = {"validation": 0.5}
    with pytest.raises(daskxml.InputError, match="one row cannot be divided"):
        simulate(values, [1], train=tmp_path / "one.txt")
