"""Runs on a cluster that speaks tls://, with the certificates of `tools/certificates.py`."""

import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import dask
import pytest
import yaml
from distributed import Client
from distributed.security import Security

import daskxml
from harness.clusters import local_client
from harness.watched_run import until

SCRIPT = Path(__file__).parents[2] / "tools" / "certificates.py"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run([sys.executable, SCRIPT, folder, "127.0.0.1"], check=True, capture_output=True)
    assert (folder / "key.pem").stat().st_mode & 0o077 == 0
    return folder


@pytest.fixture(scope="module")
def client(certificates: Path) -> Iterator[Client]:
    settings = yaml.safe_load((certificates / "tls.yaml").read_text())
    with (
        dask.config.set(dask.config.merge(dask.config.config, settings)),
        local_client(2, certificates / "dask", protocol="tls", security=Security()) as connected,
    ):
        assert connected.scheduler.address.startswith("tls://")
        yield connected


STRATEGIES = (
    "adaptive-sgd", "elastic", "static", "mirrored", "central", "asynchronous", "crossbow",
    "adasum", "hogbatch", "minibatch", "cpu-gpu-hogbatch", "adaptive-hogbatch",
    "best",
)  # fmt: skip


@pytest.mark.parametrize(
    "name", [*STRATEGIES[:3], *(pytest.param(n, marks=pytest.mark.slow) for n in STRATEGIES[3:])]
)
def test_every_strategy_over_tls(client: Client, data: dict[str, Path], name: str) -> None:
    settings = {"cluster.threads": 1}
    if name != "best":
        settings |= {"training.epochs": 1.0, "model.hidden": [8]}
    run = daskxml.train(
        name, train=data["train"], test=data["test"], client=client, overrides=settings
    )
    assert set(run.history[-1]["workers"]) == {"0", "1"}
    if name != "best":
        assert run.history[-1]["rows"] == 1500


def test_a_run_is_left_followed_again_and_stopped_over_tls(
    client: Client, data: dict[str, Path], tmp_path: Path
) -> None:
    out, settings = tmp_path / "run", {"training.megabatches": 100_000, "model.hidden": [8]}
    name = daskxml.launch(
        "adaptive-sgd", train=data["train"], client=client, out=out, overrides=settings
    )
    until(lambda: any(it.run == name and it.megabatches for it in daskxml.runs(client)))
    daskxml.attach(name, client=client).stop()
    run = daskxml.attach(name, client=client).follow()
    assert run.reason == "stop"
    assert daskxml.load(out).header.training["ended"] == "stop"


def test_the_dashboard_and_its_page_are_encrypted(
    client: Client, data: dict[str, Path], certificates: Path
) -> None:
    events = list[dict[str, object]]()
    daskxml.train(
        "adaptive-sgd", train=data["train"], client=client, on_event=events.append,
        overrides={"training.epochs": 1.0, "model.hidden": [8], "run.name": "behind-tls"},
    )  # fmt: skip
    (link,) = (str(event["dashboard"]) for event in events if "dashboard" in event)
    assert link.startswith("https://")
    trusted = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    for page in (link, link.partition("/daskxml")[0] + "/metrics"):
        with urllib.request.urlopen(page, context=trusted, timeout=20) as answer:
            assert answer.status == 200
    with pytest.raises(urllib.error.URLError, match=r"self.signed certificate"):
        urllib.request.urlopen(link, timeout=20)
