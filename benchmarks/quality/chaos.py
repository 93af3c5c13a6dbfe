"""Real faults: a scheduler, workers and a client as processes, killed, stopped and cut off.

Each process has a network namespace of its own where this user may make one (root); the scheduler
and the client share one, with the bridge between all. Nothing of it is reachable from outside. The
run's directory is on a small disk of its own. Of each strategy first a run without faults, then the
same under them, and so on with the next seed until the stretch is over. What strikes comes at
random intervals, one loss a minute on average unless ``--every`` says otherwise, several at once if
it is so, and only a worker beside three others, or all others, that are there and sound:

=============  ===================================================================
``kill``       SIGKILL of a worker, which is started again at once; every second
               one has a name and an address of its own that it comes back to
``stop``       SIGSTOP of a worker for a while
``cut``        a worker's link is down for a while
``slow``       a worker's link has 1 Mbit/s for a while
``full``       the disk of the run's directory is full for a while
``stall``      nobody can write to that disk for a while: who does so waits
``client``     SIGKILL of the client; the run is resumed by another
``scheduler``  SIGKILL of the scheduler and all workers, which are started again,
               and of the client; the run is resumed
=============  ===================================================================

A while is 0.2 to 8 s, short ones more often. The last two are rarer than the others: the run begins
anew. After 60 s without a merge the stacks of all processes are written beside the results, by
py-spy, with the last faults. After ``--minutes`` nothing strikes any more, and the run under way
may end. Each run is a row of the results: how many rows were merged a second, the longest time
between two merges, the share of the time in which rows were being merged (ETTR: without what pauses
take beyond three usual ones), P@1 at the end and in the last five evaluations, and whether `daskxml
verify` agrees. ``--keep`` names a folder for the directory and the logs of runs that have not ended
or do not agree.

    python benchmarks/quality/chaos.py bibtex.train.txt bibtex.test.txt [--minutes 14] [--every 60]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
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

sys.path.insert(0, str(Path(__file__).parents[1]))

from daskxml.config import load_run_config
from machine import RESULTS, machine, write_result

KINDS = ("kill", "stop", "cut", "slow", "full", "stall", "client", "scheduler")
WEIGHTS = {"full": 0.15, "client": 0.1, "scheduler": 0.1}  # after these a run starts again
OF_THE_DISK = "the disk"  # what a fault strikes beside workers
SOUND = 3  # workers, at least, beside those that are struck
LOSSES = ("kill",)  # what goodput is measured under, unless others are asked for
LAST = 5  # evaluations whose lowest and highest P@1 are noted: it swings from one to the next
SILENCE_S, POLL_S, DISK_MIB = 60.0, 0.2, 64
SHORTEST_S, LONGEST_S = 0.2, 8.0  # of faults that last
GRACE_S = 90.0  # for the run that is under way when the stretch is over
STARTS = 200  # of one run, at most
WORKER_PORT = 9000  # of workers that come back to their address, each in a namespace of its own
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
    pools
        How many of them are pools of two threads.
    """

    def __init__(self, folder: Path, network: Network, workers: int, pools: int) -> None:
        self._folder, self._network, self._pools = folder, network, pools
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
        place = ["--host", self._network.address(number)]
        if number % 2 == 0 and self._network.is_split:
            place += ["--name", f"worker{number}", "--worker-port", str(WORKER_PORT)]
        if number < self._pools:
            place += ["--resources", "cpu-pool=2"]
        return self._start(
            f"worker{number}", number, *DASK, "worker", self.address, "--no-nanny",
            "--nthreads", "1", "--memory-limit", "0", "--no-dashboard", "--death-timeout", "300",
            "--local-directory", str(self._folder / "scratch"), *place,
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

    def end_client(self) -> None:
        """End the client, if there is one."""
        if self.client is not None:
            self.client.kill()
            self.client.wait()

    def close(self) -> None:
        """End everything."""
        for process in self.everyone():
            process.kill()
            process.wait()

    def stacks(self) -> str:
        """Return the stacks of all processes."""
        spy = Path(sys.executable).parent / "py-spy"
        if not spy.exists():
            return "py-spy is not installed"
        # Nobody is paused, as who waits for a frozen disk cannot be.
        command = (spy, "dump", "--nonblocking", "--pid")
        dumps = [
            subprocess.run([*command, str(process.pid)], capture_output=True, check=False)
            for process in self.everyone() if process.poll() is None
        ]  # fmt: skip
        return "\n".join((it.stdout + it.stderr).decode() for it in dumps)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Disk:
    """A small disk with a folder for the run's directory, where this user may mount one.

    Parameters
    ----------
    folder
        Where; beside it is the file that has the disk's contents.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._filler = folder, folder / "filler"
        self._image = folder.with_suffix(".image")

    def __enter__(self) -> Disk:
        """Make it."""
        self.folder.mkdir()
        with self._image.open("wb") as file:
            file.truncate(DISK_MIB << 20)
        commands = (  # without a journal: what is removed can be written to at once
            ["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(self._image)],
            ["mount", "-o", "loop,noatime", str(self._image), str(self.folder)],
        )
        with contextlib.suppress(OSError):  # no such command
            all(not subprocess.run(it, check=False, capture_output=True).returncode
                for it in commands)  # fmt: skip
        self.is_own = self.folder.is_mount()
        return self

    def __exit__(self, *error: object) -> None:
        """Remove it."""
        if self.is_own:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=False)

    def fill(self) -> None:
        """Let it be full."""
        with contextlib.suppress(OSError), self._filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(self.folder).free - (1 << 18))
            file.seek(0, os.SEEK_END)
            while True:
                file.write(bytes(1 << 12))
                file.flush()

    def empty(self) -> None:
        """Let there be space again."""
        self._filler.unlink(missing_ok=True)

    def stall(self, *, is_stalled: bool) -> None:
        """Let all that is written to it wait, or no more."""
        action = "--freeze" if is_stalled else "--unfreeze"
        subprocess.run(["fsfreeze", action, str(self.folder)], check=True)


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
    until_s, most
        When nothing strikes any more, and after how many faults.
    """

    def __init__(
        self, machines: Machines, network: Network, disk: Disk, kinds: Sequence[str],
        every_s: float, rng: random.Random, until_s: float, most: int,
    ) -> None:  # fmt: skip
        self.machines, self.network, self.disk = machines, network, disk
        self.kinds, self.every_s, self.rng = kinds, every_s, rng
        self.until_s, self.most = until_s, most
        self.struck = Counter[str]()
        self.struck_at: list[tuple[float, str, int]] = []  # seconds after the first merge
        # Faults that last: when each ends, by what, and what it strikes: a worker, or the disk.
        self._undo: list[tuple[float, Callable[[], Any], int | str]] = []
        self.starts = self.silences = self._merges = self._silent_at = 0
        # Time without a merge.
        self.longest = {"longest_s": 0.0, "faults_in_it": 0, "starts_in_it": 0}
        self._pauses: list[float] = []  # seconds between two merges
        self._moved_at = (0, 0)  # faults and starts at the last merge
        self.begun_s = self.moved_s = self.next_s = 0.0  # of the first merge, the last, a fault

    def train(self, out: Path, arguments: Sequence[str]) -> dict[str, Any]:
        """Train; return a row of the results."""
        began_s, is_done = time.monotonic(), False
        while not is_done and self._may_go_on() and self.starts < STARTS:
            self.starts += 1
            place = ["--out", str(out), *arguments]
            if (out / "run.toml").exists() and any((out / "checkpoints").glob("*.safetensors")):
                place = ["--resume", str(out)]
            elif out.exists():
                self._end_faults()  # removing files of a frozen disk would wait for ever
                shutil.rmtree(out)
            self.machines.start_client(*place, "--scheduler", self.machines.address)
            is_done = self._watch(out)
        self._end_faults()
        self.machines.end_client()
        if not is_done:
            self._note_pause(time.monotonic() - (self.moved_s or began_s))
        return self._row(out, is_done=is_done, in_all_s=time.monotonic() - began_s)

    def _may_go_on(self) -> bool:
        return time.monotonic() < self.until_s + GRACE_S

    def _watch(self, out: Path) -> bool:
        """Wait for the client's end, and strike meanwhile; return whether the run has ended."""
        client = self.machines.client
        assert client is not None
        while client.poll() is None and self._may_go_on():
            time.sleep(POLL_S)
            self._note_progress(out)
            self._end_faults(now_s := time.monotonic())
            self.machines.keep_alive()
            if self._may_strike() and self.next_s <= now_s:
                sound = self.machines.registered() - {what for *_, what in self._undo}
                if not self.next_s or self._strike(sorted(sound), now_s):
                    self.next_s = now_s + self.rng.expovariate(1.0 / self.every_s)
        return client.poll() == 0

    def _end_faults(self, due_s: float = math.inf) -> None:
        """End faults that are due, or all of them."""
        for due in [it for it in self._undo if it[0] <= due_s]:
            self._undo.remove(due)
            due[1]()

    def _may_strike(self) -> bool:
        is_over = time.monotonic() >= self.until_s or self.struck.total() >= self.most
        return bool(self.kinds and self.begun_s) and not is_over

    def _note_progress(self, out: Path) -> None:
        now_s, merges = time.monotonic(), len(_lines(out))
        if merges != self._merges or not self.begun_s:
            if self.begun_s:
                self._note_pause(now_s - self.moved_s)
            self._merges, self.moved_s = merges, now_s
            self._moved_at = self.struck.total(), self.starts
            self.begun_s = self.begun_s or (now_s if merges else 0.0)
        elif now_s - self.moved_s > SILENCE_S and self._silent_at != self._merges:
            self._silent_at = self._merges
            self.silences += 1
            with (RESULTS / "chaos_stacks.txt").open("a") as file:
                file.write(f"{out.name}, {time.ctime()}, after merge {self._merges}; struck: ")
                last = [f"{at_s} s {kind} {number}" for at_s, kind, number in self.struck_at[-20:]]
                file.write(f"{', '.join(last)}\n{self.machines.stacks()}\n")

    def _note_pause(self, pause_s: float) -> None:
        """Note a time without a merge; of the longest also what struck in it, and explains it."""
        self._pauses.append(pause_s)
        if pause_s > self.longest["longest_s"]:
            now = self.struck.total(), self.starts
            faults, starts = (it - moved for it, moved in zip(now, self._moved_at, strict=True))
            self.longest = {"longest_s": pause_s, "faults_in_it": faults, "starts_in_it": starts}

    def _strike(self, sound: Sequence[int], now_s: float) -> bool:
        """Let one of the workers be struck, or what all share; return whether that was possible."""
        if len(sound) <= min(SOUND, len(self.machines.workers) - 1):
            return False
        weights = [WEIGHTS.get(kind, 1.0) for kind in self.kinds]
        (kind,), number = self.rng.choices(self.kinds, weights), self.rng.choice(sound)
        if kind in ("full", "stall"):
            done = self._strike_disk(kind, now_s)
        elif kind in ("client", "scheduler"):
            done = self._restart(kind)
        else:
            done = self._strike_worker(kind, number, now_s)
        if done:
            self.struck[kind] += 1
            self.struck_at.append((round(now_s - self.begun_s, 1), kind, number))
        return done

    def _strike_worker(self, kind: str, number: int, now_s: float) -> bool:
        worker, network = self.machines.workers[number], self.network
        match kind:
            case "kill":
                worker.kill()
            case "stop":
                worker.send_signal(signal.SIGSTOP)
                self._later(now_s, lambda: worker.send_signal(signal.SIGCONT), number)
            case "cut" if network.is_split:
                network.cut(number, is_cut=True)
                self._later(now_s, lambda: network.cut(number, is_cut=False), number)
            case "slow" if network.is_split:
                network.slow(number, is_slow=True)
                self._later(now_s, lambda: network.slow(number, is_slow=False), number)
            case _:
                return False
        return True

    def _strike_disk(self, kind: str, now_s: float) -> bool:
        if not self.disk.is_own or self._is_disk_struck():
            return False
        if kind == "full":
            self.disk.fill()
            self._later(now_s, self.disk.empty, OF_THE_DISK)
        else:
            self.disk.stall(is_stalled=True)
            self._later(now_s, lambda: self.disk.stall(is_stalled=False), OF_THE_DISK)
        return True

    def _is_disk_struck(self) -> bool:
        return any(what == OF_THE_DISK for *_, what in self._undo)

    def _restart(self, kind: str) -> bool:
        if self._is_disk_struck():  # a process that waits for a frozen disk cannot be killed
            return False
        machines = self.machines
        if kind == "scheduler":
            machines.scheduler.kill()
            for each in machines.workers:  # they would wait for a scheduler of the old identity
                each.kill()
        if machines.client is not None:
            machines.client.kill()
        return True

    def _later(self, now_s: float, end: Callable[[], Any], what: int | str) -> None:
        """End a fault after a while."""
        spread = math.log(SHORTEST_S), math.log(LONGEST_S)
        self._undo.append((now_s + math.exp(self.rng.uniform(*spread)), end, what))

    def held_up(self) -> list[tuple[float, float]]:
        """Return until when the run was held up, and how long beyond three usual pauses, seconds.

        Times are those after the first merge.
        """
        pauses, ends = self._pauses, itertools.accumulate(self._pauses)
        usual_s = 3.0 * sorted(pauses)[len(pauses) // 2] if pauses else 0.0
        pairs = zip(ends, pauses, strict=True)
        return [(round(end, 2), round(it - usual_s, 2)) for end, it in pairs if it > usual_s]

    def _row(self, out: Path, *, is_done: bool, in_all_s: float) -> dict[str, Any]:
        history = [json.loads(line) for line in _lines(out)]
        spent_s = max(self.moved_s - self.begun_s, 0.0)
        held_up, in_all = self.held_up(), sum(self._pauses)
        rows = history[-1]["rows"] - history[0]["rows"] if history else 0
        ranked = [it["metrics"]["P@1"] for it in history if it.get("metrics")][-LAST:]
        verified = subprocess.run([*COMMAND, "verify", str(out)], capture_output=True, check=False)
        return {
            "faults": self.struck.total(),
            **{kind: self.struck[kind] for kind in KINDS},
            "starts": self.starts,
            "is_done": is_done,
            "merges": len(history),
            "rows/s": rows / spent_s if spent_s else 0.0,
            "ettr": 1.0 - sum(lost_s for _, lost_s in held_up) / in_all if in_all else 0.0,
            **self.longest,
            "silences": self.silences,
            "P@1": ranked[-1] if ranked else None,
            "lowest": min(ranked, default=None),
            "highest": max(ranked, default=None),
            "verified": verified.returncode == 0,
            "problem": "" if not verified.returncode else _last_line(verified),
            "seconds": in_all_s,
            "seconds between merges": in_all,
            "held_up": held_up,
            "struck_at": self.struck_at,
        }


def _last_line(ended: subprocess.CompletedProcess[bytes]) -> str:
    lines = (ended.stdout + ended.stderr).decode(errors="replace").splitlines()
    return lines[-1][:200] if lines else f"exit status {ended.returncode}"


def _lines(out: Path) -> list[bytes]:
    """Return the rows of a run's history that are whole, unread."""
    with contextlib.suppress(OSError):
        return (out / "history.jsonl").read_bytes().split(b"\n")[:-1]
    return []


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--strategies", nargs="+", default=["adaptive-sgd"], help="run files")
    parser.add_argument("--minutes", type=float, default=14.0, help="of the stretch")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--pools", type=int, default=0, help="so many of them are pools of threads")
    parser.add_argument("--epochs", type=int, default=20, help="or trees")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two faults")
    parser.add_argument("--faults", type=int, default=sys.maxsize, help="of one run, at most")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=LOSSES, help="or none")
    parser.add_argument("--checkpoint-every", type=int, default=2, help="mega-batches")
    parser.add_argument("--only-faults", action="store_true", help="no run without them first")
    parser.add_argument("--seed", type=int, default=0, help="of the first runs")
    parser.add_argument("--runs", type=int, default=0, help="of each run file, at most; 0: any")
    parser.add_argument("--keep", type=Path, help="folder for what is left of runs that failed")
    return parser.parse_args()


def main() -> None:
    """Train under faults until the stretch is over, and append to the results."""
    chosen = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # leaves nothing behind
    until_s = time.monotonic() + 60.0 * chosen.minutes
    path = RESULTS / "chaos.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    described = machine()
    same = {"workers": chosen.workers, "pools": chosen.pools, "epochs": chosen.epochs}
    same |= {"checkpoint_every": chosen.checkpoint_every}
    with (
        tempfile.TemporaryDirectory(prefix="chaos-") as name,
        Disk(Path(name) / "disk") as disk,
        Network(chosen.workers) as network,
    ):
        machines = Machines(Path(name), network, chosen.workers, chosen.pools)
        try:
            for seed, strategy, kinds in _planned(chosen):
                if time.monotonic() > until_s:
                    break
                rng = random.Random(f"{seed} {strategy}")
                run = Run(machines, network, disk, kinds, chosen.every, rng, until_s, chosen.faults)
                out = disk.folder / f"{strategy}-{seed}{'-faults' if kinds else ''}"
                row = run.train(out, _arguments(chosen, strategy, seed))
                every_s = chosen.every if kinds else None
                made = {"commit": described["commit"][:8], "load": os.getloadavg()[0]}
                rows.append({"strategy": strategy, "seed": seed, "every_s": every_s,
                             **row, **same, **made})  # fmt: skip
                write_result("chaos", rows)
                if chosen.keep and not (row["is_done"] and row["verified"]):
                    kept = chosen.keep / f"{out.name}-{len(rows)}"
                    shutil.copytree(out, kept / "run", dirs_exist_ok=True)
                    for log in Path(name).glob("*.log"):
                        shutil.copy(log, kept)
                shutil.rmtree(out, ignore_errors=True)
        finally:
            machines.close()


def _planned(chosen: argparse.Namespace) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Yield the runs of a stretch: seed, run file, and kinds of faults."""
    kinds = [*[()] * (not chosen.only_faults), tuple(chosen.kinds)]
    seeds = itertools.count(chosen.seed)
    for seed in itertools.islice(seeds, chosen.runs or None):
        for strategy in chosen.strategies:
            for those in kinds:
                yield seed, strategy, those


def _arguments(chosen: argparse.Namespace, strategy: str, seed: int) -> list[str]:
    number = "epochs" if load_run_config(strategy).has_strategy else "trees"
    settings = [f"training.{number}={chosen.epochs}", "cluster.threads=1", f"run.seed={seed}"]
    settings += [f"checkpoint.every={chosen.checkpoint_every}"]
    sets = [word for setting in settings for word in ("--set", setting)]
    data = ("--train", chosen.train, "--test", chosen.test)
    paths = [it if it.startswith("--") else str(Path(it).absolute()) for it in data]
    return [strategy, *paths, *sets]


if __name__ == "__main__":
    main()
