"""What a user's own Dask client may be, and what it may do during a run."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import daskxml
from daskxml.api.runs import RunFollower
from daskxml.core.errors import ClusterError
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.records.checkpoint import write_checkpoint
from daskxml.records.run_dir import RunDir
from harness.clusters import local_client, local_cluster

Data = dict[str, Path]
Values = dict[str, Any]
ENDLESS = {"training.megabatches": 1_000_000}


def once(megabatch: int, act: Callable[[], object]) -> Callable[[Any], None]:
    """Return a callback that does something at a mega-batch."""

    def hear(row: Any) -> None:
        if row["megabatch"] == megabatch:
            act()

    return hear


def test_what_is_no_client_is_refused() -> None:
    with pytest.raises(daskxml.ConfigError, match=r"client = 'tcp://h:1': must be a dask\.dist"):
        daskxml.runs("tcp://h:1")  # type: ignore[arg-type]


def test_rows_in_memory_outlive_the_workers_that_hold_them(client: Client, values: Values) -> None:
    parts = [generate(SyntheticSpec(rows=400, test_rows=50, features=40, labels=12, seed=1))[0]] * 2
    train, test = (daskxml.Matrices(to_scipy(p.features), to_scipy(p.labels)) for p in parts)
    for number in range(2):  # one of them has them
        client.wait_for_workers(2, timeout=60)
        pids = [*client.run(os.getpid).values()]

        def kill(event: Any, pid: int = pids[number]) -> None:
            if event["kind"] == "started":
                os.kill(pid, signal.SIGKILL)

        run = daskxml.train(values, client=client, train=train, test=test, on_event=kill)
        assert len(run.history) == 8


@pytest.mark.slow
def test_a_client_that_is_closed_and_workers_that_are_restarted(
    data: Data, values: Values, tmp_path: Path
) -> None:
    with local_cluster(1, tmp_path / "dask") as cluster, Client(cluster) as other:

        def train(client: Client, **options: Any) -> daskxml.Run:
            return daskxml.train(values, client=client, train=data["train"], **options)

        client = Client(cluster, set_as_default=False)
        with pytest.raises(ClusterError, match=r"^the client of the run was closed$"):
            train(client, overrides=ENDLESS, on_megabatch=once(2, client.close))
        with pytest.raises(ClusterError, match="the client is closed: make another"):
            train(client)
        follower = RunFollower(client, "a run", print, RunDir(tmp_path, None))
        with pytest.raises(ClusterError, match=r"^the client of the run was closed$"):
            follower.read()
        write_checkpoint(tmp_path, 1, {"current": np.zeros(3, np.float32)}, "{}", keep=1)
        with pytest.raises(ClusterError, match="closed; continue with --resume /"):
            follower.read()
        with pytest.raises(ClusterError, match=r"cancelled .* as client.restart\(\) does"):
            train(other, overrides=ENDLESS, on_megabatch=once(2, other.restart))
        assert len(train(other).history) == 8


@pytest.mark.slow
def test_a_cluster_that_scales_with_its_tasks_starts_a_worker(
    data: Data, values: Values, tmp_path: Path
) -> None:
    with local_client(0, tmp_path / "dask") as client:
        client.cluster.adapt(minimum=0, maximum=1, interval="100ms")
        run = daskxml.train(values, client=client, train=data["train"])
    assert len(run.history) == 8


# ------------------------------------------------------- asynchronous clients


TREE: dict[str, Any] = {"model": {"kind": "trees"}, "training": {"trees": 1}}


def test_training_and_predicting_from_a_coroutine(client: Client, tmp_path: Path) -> None:
    address, rows = client.scheduler.address, (np.eye(16), np.eye(16))
    file, out = tmp_path / "rows.txt", tmp_path / "out.csv"
    file.write_text("".join(f"{row} {row}:1\n" for row in range(16)))

    async def work() -> tuple[daskxml.Run, Any]:
        async with Client(address, asynchronous=True, set_as_default=False) as own:
            training: Any = daskxml.train(TREE, client=own, train=rows)
            run = await training
            ranking: Any = daskxml.predict(run.model, str(file), k=1, out=out, client=own)
            done = await ranking
            with pytest.raises(daskxml.ConfigError, match=r"await asyncio\.to_thread"):
                daskxml.attach("a run", client=own)
            return run, done

    run, done = asyncio.run(work())
    assert run.model.spec.labels == 16
    assert done.rows == 16


def test_a_pipeline_trains_the_default_run_file(client: Client) -> None:
    with daskxml.Pipeline(client=client) as pipe:
        rows = pipe.read(daskxml.Matrices(np.eye(16), np.eye(16)))
        assert pipe.train(rows=rows).result().model.spec.kind == "trees"
        with pytest.raises(daskxml.ConfigError, match="no training rows: give rows="):
            pipe.train()
