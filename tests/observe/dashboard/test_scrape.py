"""A real Prometheus scrapes a real run, and answers what the Grafana dashboard asks."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.watched_run import Started, until

GRAFANA = Path(__file__).parents[3] / "docker" / "grafana" / "boards" / "daskxml.json"
PROMETHEUS = shutil.which("prometheus")
CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: dask
    static_configs: [{{targets: ["{target}"]}}]
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROMETHEUS is None, reason="Prometheus is not installed"),
]


@pytest.fixture
def ask(start: Callable[..., Started], tmp_path: Path) -> Iterator[Callable[[str], list[Any]]]:
    """Start a run and a Prometheus that scrapes its scheduler; give a function that queries."""
    started = start(run={"name": "scraped"})
    started.go_on(2)
    target = urllib.parse.urlparse(started.url).netloc
    (tmp_path / "prometheus.yml").write_text(CONFIG.format(target=target))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    options = {
        "config.file": tmp_path / "prometheus.yml", "storage.tsdb.path": tmp_path / "tsdb",
        "web.listen-address": address,
    }  # fmt: skip
    command = [str(PROMETHEUS), *(f"--{name}={value}" for name, value in options.items())]
    null = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=null, stderr=null)

    def query(expression: str) -> list[Any]:
        url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return list(json.load(answer)["data"]["result"])
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it starts
                return []
            raise AssertionError(f"{expression}: {error.read()!r}") from error
        except OSError:  # it has not started yet
            return []

    try:
        yield query
    finally:
        process.terminate()
        process.wait(20)


def test_prometheus_takes_the_file_of_compose() -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None
    file = GRAFANA.parents[2] / "prometheus.yml"
    subprocess.run([promtool, "check", "config", str(file)], check=True, capture_output=True)


def test_prometheus_scrapes_a_run(ask: Callable[[str], list[Any]]) -> None:
    (info,) = until(lambda: ask("daskxml_run_info"))
    assert info["metric"]["name"] == "scraped"
    assert info["metric"]["strategy"] == "adaptive-sgd"
    assert len(until(lambda: ask("daskxml_worker_batch_rows"))) == 2
    first = float(ask("daskxml_run_megabatch")[0]["value"][1])
    until(lambda: float(ask("daskxml_run_megabatch")[0]["value"][1]) > first)
    until(lambda: ask("rate(daskxml_run_phase_seconds_total[10s])"))
    for panel in json.loads(GRAFANA.read_text())["panels"]:
        for target in panel.get("targets", ()):
            asked = target["expr"].replace("$run", ".*").replace("$__rate_interval", "10s")
            assert until(lambda asked=asked: ask(asked)), panel["title"]
