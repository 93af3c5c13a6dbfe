"""A scheduler and three workers on hosts of their own: slow cables, cut ones, cut for good."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.hosts import Hosts, hosts, missing
from harness.ledger_check import check_ledger

Data = dict[str, Path]

WORKERS = ("one", "two", "three")
PATIENCE_S = 240.0
VALUES: dict[str, Any] = {
    "model": {"hidden": [64]},
    "strategy": {"batch_max": 32, "megabatch_batches": 30, "lr": 0.5},
    "training": {"megabatches": 400},
    "cluster": {"threads": 1},
}
TRAIN = """
import json, sys, daskxml
from distributed import Client
from harness.records import history

values, scheduler, train, out = json.loads(sys.argv[1])
with Client(scheduler, timeout="60s") as client:
    client.wait_for_workers(3)
    daskxml.train(values, client=client, train=train, out=out, on_event=lambda event: print(
        json.dumps({key: event.get(key) for key in ("kind", "worker", "event")}
                   | {"megabatch": event.get("row", {}).get("megabatch")}), flush=True))
"""


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Hosts]:
    """A scheduler, and workers that know it."""
    if why := missing():
        pytest.skip(why)
    with hosts("scheduler", *WORKERS) as made:
        home = made.addresses["scheduler"]
        place = ("--host", home, "--port", "8786", "--no-dashboard")
        made.start("scheduler", tmp_path / "scheduler.log", "-m", "dask", "scheduler", *place)
        for name in WORKERS:
            words = ("-m", "dask", "worker", f"tcp://{home}:8786", "--name", name)
            place = ("--host", made.addresses[name], "--nthreads", "1", "--no-nanny")
            folder = ("--no-dashboard", "--local-directory", str(tmp_path / name))
            made.start(name, tmp_path / f"{name}.log", *words, *place, *folder)
        yield made


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for something, but not for ever."""
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until_s, f"{what} for {PATIENCE_S:g} s"
        time.sleep(0.05)


class Story:
    """What a run has printed so far."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def events(self) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def workers(self, event: str) -> list[str]:
        return [each["worker"] for each in self.events() if each["event"] == event]

    def megabatch(self) -> int:
        return max((event["megabatch"] or 0 for event in self.events()), default=0)


@pytest.mark.slow
@pytest.mark.timeout(4 * PATIENCE_S)
def test_slow_and_broken_links_cost_no_row(network: Hosts, data: Data, tmp_path: Path) -> None:
    network.slow_down("one", "20mbit")
    out, log = tmp_path / "run", tmp_path / "train.log"
    where = f"tcp://{network.addresses['scheduler']}:8786"
    told = json.dumps([VALUES, where, str(data["train"]), str(out)])
    process = network.start("scheduler", log, "-c", TRAIN, told)
    story = Story(log)

    def goes_on_to(megabatch: int) -> Callable[[], bool]:
        def holds() -> bool:
            assert process.poll() is None, log.read_text()
            return story.megabatch() >= megabatch

        return holds

    until(goes_on_to(3), "no mega-batch")
    network.cut("two")
    cut_at = story.megabatch()
    until(goes_on_to(cut_at + 8), "the others stood still")
    network.mend("two")
    until(lambda: story.workers("joined") == ["two"], "it did not come back")
    assert not story.workers("lost")
    network.cut("three")
    until(lambda: process.poll() is not None, "the run did not end")
    assert process.returncode == 0, log.read_text()
    check_run(out)


def check_run(out: Path) -> None:
    """Every row counted once; two workers late, of whom one came back."""
    history = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    assert len(history) == VALUES["training"]["megabatches"]
    check_ledger(history, 1500)
    events = [event for row in history for event in row["events"]]
    assert [event["worker"] for event in events if event["kind"] == "late"] == ["two", "three"]
    working = {name for name, worker in history[-1]["workers"].items() if worker["rows"]}
    assert working == {"one", "two"}
