"""Real faults: a scheduler, workers and a client as processes, killed, stopped and cut off.

Each process has a network namespace of its own where this user may make one (root); the scheduler
and the client share one, with the bridge between all. Nothing of it is reachable from outside. The
run's directory is on a small disk of its own. Of each strategy first a run without faults, then the
same under them. What strikes comes at random intervals, one loss a minute on average unless
``--every`` says otherwise, several at once if it is so, and only a worker beside three others that
are there and sound:

=============  ===================================================================
``kill``       SIGKILL of a worker, which is started again at once
``stop``       SIGSTOP of a worker for some seconds
``cut``        a worker's link is down for some seconds
``slow``       a worker's link has 1 Mbit/s for some seconds
``full``       the disk of the run's directory is full for some seconds
``client``     SIGKILL of the client; the run is resumed by another
``scheduler``  SIGKILL of the scheduler, which is started again, and the run resumed
=============  ===================================================================

The last two strike a fifth as often as each of the others: the run begins anew. After 60 s without
a merge the stacks of all processes are written beside the results, by py-spy. A stretch ends after
``--minutes``; each appends its runs to the results, which hold how many rows were merged a second,
the longest time between two merges, and what `daskxml verify` says.

    python benchmarks/chaos.py bibtex.train.txt bibtex.test.txt [--minutes 14] [--every 60]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from machine import RESULTS, write_result

KINDS = ("kill", "stop", "cut", "slow", "full", "client", "scheduler")
SOUND = 3  # workers, at least, beside those that are struck
RESTARTS = ("client", "scheduler")
LOSSES = ("kill",)  # what goodput is measured under, unless others are asked for
SILENCE_S, POLL_S, DISK_MIB = 60.0, 0.2, 64
STARTS = 30  # of one run, at most
SLOW = ("tbf", "rate", "1mbit", "burst", "16k", "latency", "400ms")
COMMAND = (sys.executable, "-m", "daskxml")
DASK = (sys.executable, "-m", "dask")


class Network:
    """A namespace for the scheduler and one for each worker, with links between them.

    Parameters
    ----------
    workers
        How many.
    """

    def __init__(self, workers: int) -> None:
        self.is_split = os.geteuid() == 0 and shutil.which("ip") is not None
        self._names = [f"chaos{os.getpid()}-{number}" for number in range(workers + 1)]
        self.host = "10.77.0.1" if self.is_split else "127.0.0.1"

    def __enter__(self) -> Network:
        """Make them."""
        if self.is_split:
            for name in self._names:
                _ip("netns", "add", name)
                self._inside(name, "ip", "link", "set", "lo", "up")
            hub = self._names[0]
            self._inside(hub, "ip", "link", "add", "bridge", "type", "bridge")
            self._inside(hub, "ip", "addr", "add", f"{self.host}/24", "dev", "bridge")
            self._inside(hub, "ip", "link", "set", "bridge", "up")
            for number, name in enumerate(self._names[1:]):
                self._link(hub, name, number)
        return self

    def _link(self, hub: str, name: str, number: int) -> None:
        end = ("peer", "name", "eth0", "netns", name)
        self._inside(hub, "ip", "link", "add", f"w{number}", "type", "veth", *end)
        self._inside(hub, "ip", "link", "set", f"w{number}", "master", "bridge", "up")
        self._inside(name, "ip", "addr", "add", f"10.77.0.{number + 10}/24", "dev", "eth0")
        self._inside(name, "ip", "link", "set", "eth0", "up")

    def __exit__(self, *error: object) -> None:
        """Remove them."""
        if self.is_split:
            for name in self._names:
                subprocess.run(["ip", "netns", "delete", name], check=False)

    def place(self, worker: int | None) -> list[str]:
        """Return what a command begins with to run at a worker's, or at the scheduler's, place."""
        if not self.is_split:
            return []
        return ["ip", "netns", "exec", self._names[0 if worker is None else worker + 1]]

    def address(self, worker: int) -> str:
        """Return a worker's address."""
        return f"10.77.0.{worker + 10}" if self.is_split else "127.0.0.1"

    def cut(self, worker: int, *, is_cut: bool) -> None:
        """Take a worker's link down, or up."""
        self._inside(self._names[0], "ip", "link", "set", f"w{worker}", "down" if is_cut else "up")

    def slow(self, worker: int, *, is_slow: bool) -> None:
        """Let what is sent to a worker be slow."""
        action = ("add", "dev", f"w{worker}", "root", *SLOW)
        if not is_slow:
            action = ("del", "dev", f"w{worker}", "root")
        self._inside(self._names[0], "tc", "qdisc", *action)

    @staticmethod
    def _inside(name: str, *command: str) -> None:
        _ip("netns", "exec", name, *command)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


class Machines:
    """The processes, each in a session of its own, with its output in a file.

    Parameters
    ----------
    folder
        For their output.
    network
        Where they are.
    workers
        How many.
    """

    def __init__(self, folder: Path, network: Network, workers: int) -> None:
        self._folder, self._network = folder, network
        self.port = _free_port()
        self.address = f"tcp://{network.host}:{self.port}"
        self.client: subprocess.Popen[bytes] | None = None
        self._logged = [0] * workers  # bytes in its log when each was started
        self.scheduler = self._start_scheduler()
        self.workers = [self._start_worker(number) for number in range(workers)]

    def _start(self, name: str, place: int | None, *command: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*self._network.place(place), *command],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, cwd=self._folder,
            )  # fmt: skip

    def _start_scheduler(self) -> subprocess.Popen[bytes]:
        place = ("--host", self._network.host, "--port", str(self.port), "--no-dashboard")
        return self._start("scheduler", None, *DASK, "scheduler", *place)

    def _start_worker(self, number: int) -> subprocess.Popen[bytes]:
        log = self._folder / f"worker{number}.log"
        self._logged[number] = log.stat().st_size if log.exists() else 0
        return self._start(
            f"worker{number}", number, *DASK, "worker", self.address, "--no-nanny",
            "--nthreads", "1", "--memory-limit", "0", "--no-dashboard", "--death-timeout", "300",
            "--host", self._network.address(number),
            "--local-directory", str(self._folder / "scratch"),
        )  # fmt: skip

    def start_client(self, *arguments: str) -> None:
        """Start a client: it trains."""
        self.client = self._start("client", None, *COMMAND, "train", *arguments)

    def everyone(self) -> list[subprocess.Popen[bytes]]:
        """Return all processes."""
        return [*filter(None, [self.client, self.scheduler]), *self.workers]

    def keep_alive(self) -> None:
        """Start again what has ended."""
        if self.scheduler.poll() is not None:
            self.scheduler = self._start_scheduler()
        for number, worker in enumerate(self.workers):
            if worker.poll() is not None:
                self.workers[number] = self._start_worker(number)

    def registered(self) -> set[int]:
        """Return the numbers of the workers that have found the scheduler."""
        logs = [self._folder / f"worker{number}.log" for number in range(len(self.workers))]
        parts = [log.read_bytes()[begin:] for log, begin in zip(logs, self._logged, strict=True)]
        return {number for number, part in enumerate(parts) if b"Registered to" in part}

    def kill(self, process: subprocess.Popen[bytes] | None) -> None:
        """Kill a process."""
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End everything."""
        for process in self.everyone():
            self.kill(process)

    def stacks(self) -> str:
        """Return the stacks of all processes."""
        spy = Path(sys.executable).parent / "py-spy"
        if not spy.exists():
            return "py-spy is not installed"
        pids = [process.pid for process in self.everyone() if process.poll() is None]
        dumps = [
            subprocess.run([spy, "dump", "--pid", str(pid)], capture_output=True, check=False)
            for pid in pids
        ]
        return "\n".join((it.stdout + it.stderr).decode() for it in dumps)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Yield a folder on a disk of its own, where this user may mount one."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)]
    done = subprocess.run(["mount", *options], check=False, capture_output=True)
    try:
        yield folder
    finally:
        if not done.returncode:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)


class Run:
    """One training under faults, to its end.

    Parameters
    ----------
    machines, network, disk
        Where it runs.
    kinds, every_s
        Faults, and the seconds between two on average; none: undisturbed.
    rng
        Chooses among them.
    """

    def __init__(
        self, machines: Machines, network: Network, disk: Path, kinds: Sequence[str],
        every_s: float, rng: random.Random,
    ) -> None:  # fmt: skip
        self.machines, self.network, self.disk = machines, network, disk
        self.kinds, self.every_s, self.rng = kinds, every_s, rng
        self.struck = Counter[str]()
        # Faults that last: when each ends, by what, and the worker; None: the disk.
        self._undo: list[tuple[float, Callable[[], Any], int | None]] = []
        self.starts = self.silences = 0
        self.longest_s = 0.0

    def train(self, out: Path, arguments: Sequence[str], until_s: float) -> dict[str, Any]:
        """Train; return a row of the results. ``until_s``: when the stretch ends, at the latest."""
        self.begun_s = self.moved_s = self.next_s = 0.0  # of the first merge, the last, a fault
        self._rows = self._silent_at = 0
        began_s = time.monotonic()
        is_done = False
        while not is_done and time.monotonic() < until_s and self.starts < STARTS:
            self.starts += 1
            place = ["--out", str(out), *arguments]
            if (out / "run.toml").exists() and any((out / "checkpoints").glob("*.safetensors")):
                place = ["--resume", str(out)]
            elif out.exists():
                shutil.rmtree(out)
            self.machines.start_client(*place, "--scheduler", self.machines.address)
            is_done = self._watch(out, until_s)
        for _, end, _ in self._undo:
            end()
        self._undo = []
        self.machines.kill(self.machines.client)
        spent_s = max(self.moved_s - self.begun_s, 0.0)
        return self._row(out, is_done=is_done, spent_s=spent_s, in_all_s=time.monotonic() - began_s)

    def _watch(self, out: Path, until_s: float) -> bool:
        """Wait for the client's end, and strike meanwhile; return whether the run has ended."""
        client = self.machines.client
        assert client is not None
        while client.poll() is None and time.monotonic() < until_s:
            time.sleep(POLL_S)
            self._note_progress(out)
            now_s = time.monotonic()
            for due in [it for it in self._undo if it[0] <= now_s]:
                self._undo.remove(due)
                due[1]()
            self.machines.keep_alive()
            if self.kinds and self.begun_s and now_s >= self.next_s:
                sound = self.machines.registered() - {number for *_, number in self._undo}
                if not self.next_s or self._strike(sorted(sound), now_s):
                    self.next_s = now_s + self.rng.expovariate(1.0 / self.every_s)
        return client.poll() == 0

    def _note_progress(self, out: Path) -> None:
        now_s, rows = time.monotonic(), len(_history(out))
        if rows != self._rows or not self.begun_s:
            if self.begun_s:
                self.longest_s = max(self.longest_s, now_s - self.moved_s)
            self._rows, self.moved_s = rows, now_s
            self.begun_s = self.begun_s or (now_s if rows else 0.0)
        elif now_s - self.moved_s > SILENCE_S and self._silent_at != self._rows:
            self._silent_at = self._rows
            self.silences += 1
            with (RESULTS / "chaos_stacks.txt").open("a") as file:
                file.write(f"{out.name}, after merge {self._rows}\n{self.machines.stacks()}\n")

    def _strike(self, sound: Sequence[int], now_s: float) -> bool:
        """Let one of the workers be struck, or what all share; return whether that was possible."""
        if len(sound) <= SOUND:
            return False
        weights = [0.2 if kind in RESTARTS else 1.0 for kind in self.kinds]
        (kind,), number = self.rng.choices(self.kinds, weights), self.rng.choice(sound)
        worker, machines = self.machines.workers[number], self.machines
        lasts_s = now_s + self.rng.uniform(1.0, 8.0)
        match kind:
            case "kill":
                machines.kill(worker)
            case "stop":
                worker.send_signal(signal.SIGSTOP)
                self._undo.append((lasts_s, lambda: worker.send_signal(signal.SIGCONT), number))
            case "cut" if self.network.is_split:
                self.network.cut(number, is_cut=True)
                self._undo.append((lasts_s, lambda: self.network.cut(number, is_cut=False), number))
            case "slow" if self.network.is_split:
                self.network.slow(number, is_slow=True)
                self._undo.append(
                    (lasts_s, lambda: self.network.slow(number, is_slow=False), number)
                )
            case "full" if os.path.ismount(self.disk) and not (self.disk / "filler").exists():
                filler = self.disk / "filler"
                with filler.open("wb") as file, contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(1 << 16))
                        file.flush()
                self._undo.append((lasts_s, lambda: filler.unlink(missing_ok=True), None))
            case "client":
                machines.kill(machines.client)
            case "scheduler":
                machines.kill(machines.scheduler)
                for each in machines.workers:  # they would wait for a scheduler of the old identity
                    machines.kill(each)
                machines.kill(machines.client)
            case _:
                return False
        self.struck[kind] += 1
        return True

    def _row(self, out: Path, *, is_done: bool, spent_s: float, in_all_s: float) -> dict[str, Any]:
        history = _history(out)
        rows = history[-1]["rows"] - history[0]["rows"] if history else 0
        metrics: dict[str, Any] = next(
            (it["metrics"] for it in reversed(history) if it.get("metrics")), {}
        )
        verified = subprocess.run([*COMMAND, "verify", str(out)], capture_output=True, check=False)
        return {
            "faults": sum(self.struck.values()),
            **{kind: self.struck[kind] for kind in KINDS},
            "starts": self.starts,
            "is_done": is_done,
            "merges": len(history),
            "rows/s": rows / spent_s if spent_s else 0.0,
            "longest_s": self.longest_s,
            "silences": self.silences,
            "P@1": metrics.get("P@1"),
            "verified": verified.returncode == 0,
            "seconds": in_all_s,
        }


def _history(out: Path) -> list[dict[str, Any]]:
    try:
        lines = (out / "history.jsonl").read_bytes().split(b"\n")[:-1]
    except OSError:
        return []
    with contextlib.suppress(ValueError):
        return [json.loads(line) for line in lines]
    return []


def main() -> None:
    """Train under faults until the stretch is over, and append to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--strategies", nargs="+", default=["adaptive-sgd"], help="run files")
    parser.add_argument("--minutes", type=float, default=14.0, help="of the stretch")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two faults")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=LOSSES)
    parser.add_argument("--checkpoint-every", type=int, default=2, help="mega-batches")
    parser.add_argument("--only-faults", action="store_true", help="no run without them first")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    until_s = time.monotonic() + 60.0 * chosen.minutes
    path = RESULTS / "chaos.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    data = ["--train", str(Path(chosen.train).absolute())]
    data += ["--test", str(Path(chosen.test).absolute())]
    settings = [f"training.epochs={chosen.epochs}", f"checkpoint.every={chosen.checkpoint_every}"]
    settings += ["cluster.threads=1", f"run.seed={chosen.seed}"]
    sets = [word for setting in settings for word in ("--set", setting)]
    with (
        tempfile.TemporaryDirectory(prefix="chaos-") as name,
        small_disk(Path(name) / "disk") as disk,
        Network(chosen.workers) as network,
    ):
        machines = Machines(Path(name), network, chosen.workers)
        try:
            for strategy in chosen.strategies:
                for kinds in ((), tuple(chosen.kinds))[chosen.only_faults :]:
                    if time.monotonic() > until_s:
                        break
                    rng = random.Random(f"{chosen.seed} {strategy}")
                    run = Run(machines, network, disk, kinds, chosen.every, rng)
                    out = disk / f"{strategy}{'-faults' if kinds else ''}"
                    row = run.train(out, [strategy, *data, *sets], until_s)
                    every = chosen.every if kinds else None
                    rows.append({"strategy": strategy, "every_s": every, **row})
                    write_result("chaos", rows, workers=chosen.workers, settings=settings)
                    shutil.rmtree(out, ignore_errors=True)
        finally:
            machines.close()
            for log in sorted(Path(name).glob("*.log")):
                print(f"== {log.name}\n" + log.read_text()[-1500:], file=sys.stderr)


if __name__ == "__main__":
    main()
