"""A long life: one scheduler, its workers and a server, for hours, with clients that come and die.

    PYTHONPATH=tests python tools/long_life.py [--minutes 60] [--workers 2] [--result]
    PYTHONPATH=tests python tools/long_life.py --virtual 24 [--result]
    PYTHONPATH=tests python tools/long_life.py --bare 3000 [--result]

The first starts each as a process of its own. One client after the other, a process as well, does
one of `DEEDS`: it trains, runs a pipeline, or leaves a run to the scheduler; every third is killed
at a random moment. Between them the server gets requests and, now and then, another model. The
second does it in virtual hours, with workers and clients under faults: see `harness.faults.life`.
With ``--result`` the memory, files and threads of each process are a new stretch in
``long_life.json``, with what they grow by each hour, from the middle on; what plugins hold in
virtual hours is in ``long_virtual_life.json``. The third has a scheduler without daskxml, and so
many clients that submit a task: what grows there is Dask's (``bare_scheduler.json``).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from distributed import Client, Scheduler

from daskxml.cluster.worker_plugin import PLUGIN
from daskxml.data.synthetic import SyntheticSpec, write_xml
from harness.clusters import dask_process
from harness.faults import life as virtual

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from machine import RESULTS, align, machine, write_result

RESULT = "long_life"
EVERY_S = 60.0  # between two rows of a stretch
PAUSE_S = 1.0  # between two clients
LONGEST_S = 180.0  # of one client
KILLED = 3  # each so many-th client
FIRST_S, LAST_S = 0.5, 8.0  # of its life
REQUESTS, REQUEST_ROWS = 20, 50  # after each client
NEW_MODEL = 10  # after so many clients the server gets another one
# What Dask keeps of clients that have gone, else for an hour, and of its log, else 10,000 messages:
# whether memory is level is seen sooner.
FORGET = {"DASK_DISTRIBUTED__SCHEDULER__EVENTS_CLEANUP_DELAY": "5 minutes",
          "DASK_DISTRIBUTED__ADMIN__LOG_LENGTH": "1000"}  # fmt: skip
MIB, _MIB = 1 << 20, " MiB"
SPEC = SyntheticSpec(rows=4000, test_rows=500, features=1000, labels=300)
PIPELINE = """
import sys
import daskxml
from distributed import Client

def damped(X, Y, power):
    return X.power(power), Y

if __name__ == "__main__":
    address, train, folder = sys.argv[1:]
    with Client(address) as client, daskxml.Pipeline(folder, client=client) as pipe:
        rows = pipe.drop_rare(pipe.map(damped, pipe.read(train), power=0.5), least=3)
        some, others = pipe.split(rows, share=0.1)
        for run_file in ("tree", "network"):
            pipe.evaluate(pipe.train(run_file, some, others), others).result()
"""
TRAIN = (sys.executable, "-m", "daskxml", "train")
SHORT = ("--set", "training.epochs=2", "--set", "cluster.threads=1")
DEEDS = {  # what a client does, by name
    "network": (*TRAIN, "network", *SHORT),
    "static": (*TRAIN, "static", *SHORT),
    "asynchronous": (*TRAIN, "asynchronous", *SHORT),
    "tree": (*TRAIN, "tree"),
    "detached": (*TRAIN, "network", *SHORT, "--detach"),
    "pipeline": (sys.executable, "pipeline.py"),
}


class Life:
    """The processes, and what they have lived through.

    Parameters
    ----------
    folder
        For data, runs and logs.
    workers
        How many.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder, self.done = folder, Counter[str]()
        self._stack = contextlib.ExitStack()
        for part in ("train", "test"):
            write_xml(folder / f"{part}.txt", SPEC, part)
        (folder / "pipeline.py").write_text(PIPELINE)
        self._models = [self._model(seed) for seed in (0, 1)]
        shutil.copytree(self._models[0], folder / "served")
        place = ("--host", "127.0.0.1", "--port", "0")
        told = ("--scheduler-file", str(folder / "scheduler.json"))
        more = ("--dashboard-address", "127.0.0.1:0")
        self.processes = {"scheduler": self._dask("scheduler", *place, *more, *told, **FORGET)}
        with Client(scheduler_file=told[1], set_as_default=False) as client:
            self.address = client.scheduler.address
        more = ("--no-nanny", "--nthreads", "1", "--memory-limit", "0", "--no-dashboard")
        for number in range(workers):
            self.processes[f"worker {number}"] = self._dask("worker", *told, *more)
        serve = (sys.executable, "-m", "daskxml", "serve", "served", *place, "--watch", "5")
        self.processes["server"] = self._start("server", *serve)
        log = folder / "server.log"
        while not (found := re.search(r"(http://\S+)/predict", log.read_text())):
            time.sleep(0.2)
        self._http = found[1]
        row = (folder / "test.txt").read_text().splitlines()[1].split()[1:]
        ids, values = zip(*(pair.split(":") for pair in row), strict=True)
        body = {"ids": [int(it) for it in ids], "values": [float(it) for it in values]}
        self._body = json.dumps({"rows": [body] * REQUEST_ROWS, "k": 5}).encode()

    def __enter__(self) -> Life:
        """Begin."""
        return self

    def __exit__(self, *error: object) -> None:
        """End all processes."""
        self.processes["server"].terminate()
        self.processes["server"].wait(60.0)
        self._stack.close()

    def _model(self, seed: int) -> Path:
        out = self.folder / f"model{seed}"
        command = (*DEEDS["tree"], "train.txt", "--out", str(out), "--set", f"run.seed={seed}")
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)
        return out

    def _dask(self, *words: str, **environment: str) -> subprocess.Popen[Any]:
        return self._stack.enter_context(dask_process(*words, folder=self.folder, **environment))

    def _start(self, name: str, *command: str) -> subprocess.Popen[Any]:
        log = self._stack.enter_context((self.folder / f"{name}.log").open("ab"))
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    def client(self, rng: random.Random) -> None:
        """Let one client come, and kill it perhaps; then ask the server."""
        number, deed = self.done.total(), rng.choice([*DEEDS])
        out = self.folder / f"run{number}"
        where = ("--train", "train.txt", "--test", "test.txt", "--scheduler", self.address)
        more = (*where, "--out", str(out))
        if deed == "pipeline":
            more = (self.address, "train.txt", str(out))
        process = self._start("clients", *DEEDS[deed], *more)
        dies = number % KILLED == 0
        try:
            code = process.wait(rng.uniform(FIRST_S, LAST_S) if dies else LONGEST_S)
        except subprocess.TimeoutExpired:
            if not dies:
                raise
            process.kill()
            code = process.wait()
        if code not in (0, -signal.SIGKILL):
            raise RuntimeError(f"{deed} ended with {code}: see {self.folder}/clients.log")
        self.done[deed if code == 0 else f"{deed}, killed"] += 1
        shutil.rmtree(out, ignore_errors=True)
        if number % NEW_MODEL == 0:
            self._replace_model(number // NEW_MODEL)
        for _ in range(REQUESTS):
            if not self._answers("/predict", self._body):
                raise RuntimeError("the server has not answered")

    def _replace_model(self, number: int) -> None:
        for name in ("model.safetensors", "model.json"):
            copy = self.folder / "served" / f"{name}.new"
            shutil.copy(self._models[number % 2] / name, copy)
            copy.rename(copy.with_suffix(""))

    def _answers(self, path: str, body: bytes | None = None) -> bool:
        headers = {"content-type": "application/json"}
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self._http + path, body, headers), timeout=30.0
            ) as answer:
                return bool(answer.read())
        except OSError:
            return False

    def row(self) -> dict[str, Any]:
        """Return what each process holds."""
        row: dict[str, Any] = {"clients": self.done.total(), "load": round(os.getloadavg()[0], 2)}
        with Client(self.address, set_as_default=False) as client:
            row |= client.run_on_scheduler(_held)
        for name, process in self.processes.items():
            there = psutil.Process(process.pid)
            row[f"{name}{_MIB}"] = round(there.memory_info().rss / MIB, 2)
            row |= {f"{name} files": there.num_fds(), f"{name} threads": there.num_threads()}
        return row


def _held(dask_scheduler: Scheduler) -> dict[str, int]:
    """Return what a scheduler holds: the last 20 detached runs, and a topic for each client."""
    plugin = dask_scheduler.plugins.get(PLUGIN)
    return {"tasks": len(dask_scheduler.tasks), "runs": len(plugin.drivers) if plugin else 0,
            "topics": len(dask_scheduler._broker._topics),
            "messages": len(dask_scheduler._deque_handler.deque)}  # fmt: skip


def live(life: Life, minutes: float) -> Iterator[dict[str, Any]]:
    """Let clients come until the time is over; yield a row each minute."""
    begun_s, rng, noted_s = time.monotonic(), random.Random(0), 0.0
    while (now_s := time.monotonic() - begun_s) < 60.0 * minutes:
        life.client(rng)
        if now_s >= noted_s:
            noted_s = now_s + EVERY_S
            yield {"minute": round(now_s / 60.0, 2), **life.row()}
        time.sleep(PAUSE_S)


def live_barely(clients: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what a scheduler holds that nobody uses daskxml on, after every hundred clients."""
    told = ("--scheduler-file", str(folder / "scheduler.json"))
    place = ("--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0")
    more = ("--no-nanny", "--nthreads", "1", "--no-dashboard")
    with (
        dask_process("scheduler", *place, *told, folder=folder, **FORGET) as scheduler,
        dask_process("worker", *told, *more, folder=folder),
    ):
        for number in range(1, clients + 1):
            with Client(scheduler_file=told[1], set_as_default=False) as client:
                client.submit(sum, [number]).result()
                if number % 100 == 0:
                    held = psutil.Process(scheduler.pid).memory_info().rss
                    found = client.run_on_scheduler(_held)
                    yield {"clients": number, **found, "scheduler MiB": round(held / MIB, 2)}


def growth(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return by how many MiB each process grows an hour, from the middle of a stretch on.

    Examples
    --------
    >>> growth([{"minute": n, "scheduler MiB": max(40, 2 * n)} for n in range(0, 60, 5)])
    {'scheduler': 120.0}
    """
    late = [row for row in rows if row["minute"] >= rows[-1]["minute"] / 2]
    hours = [row["minute"] / 60.0 for row in late]
    slopes = {name.removesuffix(_MIB): np.polyfit(hours, [row[name] for row in late], 1)[0]
              for name in rows[0] if name.endswith(_MIB)}  # fmt: skip
    return {name: round(float(slope), 2) for name, slope in slopes.items()}


def live_virtually(hours: float) -> list[dict[str, Any]]:
    """Return for each virtual hour how many runs have ended, and the most that is held."""
    problem, rows = virtual.live(hours)
    if problem:
        raise RuntimeError(problem)
    found = []
    for hour in range(math.ceil(hours)):
        these = [row for row in rows if hour <= row["hour"] < hour + 1]
        held = {name: round(max(row[name] for row in these), 1) for name in these[0] if " " in name}
        found.append({"hour": hour + 1, "runs": sum(these[-1]["ended"].values()), **held})
    return found


def main() -> None:
    """Live, and print what each process holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--virtual", type=float, default=0.0, help="hours, instead of minutes")
    parser.add_argument("--bare", type=int, default=0, help="clients, without daskxml")
    parser.add_argument("--result", action="store_true", help="write benchmarks/results")
    chosen = parser.parse_args()
    if chosen.virtual:
        rows = live_virtually(chosen.virtual)
        if chosen.result:
            write_result("long_virtual_life", rows)
        else:
            print("\n".join(align(rows)))
        return
    if chosen.bare:
        rows = []
        with tempfile.TemporaryDirectory() as name:
            for row in live_barely(chosen.bare, Path(name)):
                rows.append(row)
                print(json.dumps(row), flush=True)
        if chosen.result:
            write_result("bare_scheduler", rows)
        return
    path = RESULTS / f"{RESULT}.json"
    before = json.loads(path.read_text()) if path.exists() else {"rows": [], "stretches": []}
    number, rows = len(before["stretches"]), []
    with tempfile.TemporaryDirectory() as name, Life(Path(name), chosen.workers) as life:
        for row in live(life, chosen.minutes):
            rows.append({"stretch": number, **row})
            print(json.dumps(row), flush=True)
            stretch = {"commit": machine()["commit"], "minutes": row["minute"],
                       "clients": dict(sorted(life.done.items()))}  # fmt: skip
            if rows[2:]:
                stretch["MiB an hour"] = growth(rows)
            if chosen.result:
                text = {"rows": [*before["rows"], *rows],
                        "stretches": [*before["stretches"], stretch]}  # fmt: skip
                write_result(RESULT, **text)


if __name__ == "__main__":
    main()
