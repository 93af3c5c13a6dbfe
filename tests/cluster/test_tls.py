"""Runs on a cluster that speaks tls://, with the certificates of `tools/certificates.py`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client, LocalCluster
from distributed.security import Security

import daskxml

SCRIPT = Path(__file__).parents[2] / "tools" / "certificates.py"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run([sys.executable, SCRIPT, folder, "127.0.0.1"], check=True, capture_output=True)
    assert (folder / "key.pem").stat().st_mode & 0o077 == 0
    own = {
        f"tls_{who}_{kind}": str(folder / f"{kind}.pem")
        for who in ("scheduler", "worker", "client")
        for kind in ("cert", "key")
    }
    security = Security(tls_ca_file=str(folder / "ca.pem"), require_encryption=True, **own)
    with (
        LocalCluster(
            protocol="tls", n_workers=2, threads_per_worker=1, dashboard_address=":0",
            security=security, local_directory=folder / "dask", silence_logs=50,
        ) as cluster,
        Client(cluster) as connected,
    ):  # fmt: skip
        assert connected.scheduler.address.startswith("tls://")
        yield connected


@pytest.mark.parametrize("name", ["adaptive-sgd", "mirrored", "minibatch"])
def test_merges_gangs_and_shared_models_over_tls(
    client: Client, data: dict[str, Path], name: str
) -> None:
    workers = {"cluster.workers": 0} if name == "minibatch" else {}
    run = daskxml.train(
        name, train=data["train"], test=data["test"], client=client,
        overrides={"training.epochs": 1.0, "model.hidden": [8], **workers},
    )  # fmt: skip
    assert run.history[-1]["rows"] == 1500
    assert set(run.history[-1]["workers"]) == {"0", "1"}
