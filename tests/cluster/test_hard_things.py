"""What a real machine does to a run: signals, full disks, slow, killed and superfluous workers."""

import contextlib
import io
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client

import daskxml
from daskxml.cli.main import main
from daskxml.core.errors import ClusterError
from daskxml.core.files import LOCK_FILE
from daskxml.data.synthetic import SyntheticSpec, write_xml
from daskxml.records.checkpoint import checkpoints
from harness.clusters import PROTOCOL, local_client
from harness.commands import WITHIN_S, Command
from harness.ledger_check import check_ledger
from harness.records import history
from harness.watched_run import until

Data = dict[str, Path]
Values = dict[str, Any]
ENDLESS = ("--set", "training.megabatches=1000000")
RUN_FILE = """
[model]
hidden = [16]
[strategy]
batch_max = 32
megabatch_batches = 12
lr = 0.5
[training]
megabatches = 6
[checkpoint]
every = 2
[cluster]
workers = 2
threads = 1
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(RUN_FILE)
    return path


def train(*arguments: object) -> Command:
    return Command("train", *arguments)


def train_on(client: Client, run_file: Path, data: Data, out: Path) -> Command:
    """Train without an end on the cluster of a client."""
    place = ("--out", out, "--scheduler", client.scheduler.address)
    return train(run_file, "--train", data["train"], *place, *ENDLESS)


def resume_on(client: Client, out: Path, megabatches: int, **arguments: Any) -> None:
    """Go on with a run on a cluster to so many mega-batches; its ledger is exact."""
    goal = {"training.megabatches": megabatches}
    run = daskxml.train(out / "run.toml", client=client, resume=out, overrides=goal, **arguments)
    assert [row["megabatch"] for row in run.history] == list(range(1, megabatches + 1))
    check_ledger(run.history, 1500)


def resume(out: Path, megabatches: int) -> list[dict[str, Any]]:
    """Go on with a run to so many mega-batches; return its history, whose ledger is exact."""
    setting = f"training.megabatches={megabatches}"
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        status = main(["train", "--resume", str(out), "--set", setting, "--workers", "1"])
    assert (status, errors.getvalue()) == (0, "")
    rows = history(out)
    assert [row["megabatch"] for row in rows] == list(range(1, megabatches + 1))
    check_ledger(rows, 1500)
    return rows


def check_interrupted(command: Command, out: Path) -> None:
    """It ends at a merge, with a checkpoint, and says how it goes on; it does."""
    status, said, errors = command.end()
    assert (status, errors) == (130, "")
    assert "the run ends at the next merge; Ctrl-C again" in said
    assert f"go on     daskxml train --resume {out}" in said
    assert "dashboard" not in said  # that of a local cluster is gone
    done = len(history(out))
    assert int(checkpoints(out)[-1].stem) == done
    assert daskxml.load(out).header.training["ended"] == "interrupt"
    resume(out, done + 2)


@pytest.mark.slow
def test_a_run_that_is_interrupted_ends_at_a_merge_and_goes_on(
    run_file: Path, data: Data, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with train(run_file, "--train", data["train"], "--out", out, *ENDLESS) as command:
        command.wait_for("mega-batch 3 ")
        command.interrupt()
        check_interrupted(command, out)


@pytest.mark.slow
def test_a_directory_takes_one_run_which_ends_at_a_merge_when_it_is_terminated(
    run_file: Path, data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    arguments = (str(run_file), "--train", str(data["train"]))
    with train(*arguments, "--out", out, "--workers", "1", *ENDLESS) as first:
        first.wait_for("mega-batch 2 ")
        for where in ("--out", "--resume"):
            assert main(["train", *arguments, where, str(out)]) == 2
            errors = capsys.readouterr().err
            assert (
                "holds a run already" in errors or "a run is under way in this directory" in errors
            )
            assert errors.count("\n") == 1
        os.kill(first.pid, signal.SIGTERM)
        check_interrupted(first, out)


def test_ctrl_c_before_the_first_merge_leaves_nothing(
    run_file: Path, data: Data, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with train(run_file, "--train", data["train"], "--out", out, *ENDLESS) as command:
        command.wait_for("starting", "loading", "dashboard")  # a state that is short is not seen
        command.interrupt()
        status, _, errors = command.end()
    assert (status, errors) == (130, "daskxml: interrupted\n")
    assert not out.exists() or not list(out.iterdir())  # it rarely stays, empty


@pytest.mark.slow
def test_a_client_that_is_killed_leaves_no_process_and_a_checkpoint(
    run_file: Path, data: Data, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with train(run_file, "--train", data["train"], "--out", out, *ENDLESS) as command:
        command.wait_for("mega-batch 5 ")
        family = command.family()
        assert family
        command.process.kill()
        _, alive = psutil.wait_procs(family, timeout=WITHIN_S)
        assert not alive
    with (out / "history.jsonl").open("a") as file:
        file.write('{"megabatch": 9')  # as if it had died while writing
    done = int(checkpoints(out)[-1].stem)
    resume(out, done + 2)


def test_a_cluster_forgets_the_run_of_a_client_that_is_killed(
    client: Client, run_file: Path, data: Data, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with train_on(client, run_file, data, out) as command:
        command.wait_for("mega-batch 3 ")
        command.process.kill()
        command.end()

    def held(dask_scheduler: Any) -> tuple[int, int]:
        tasks = [key for key in dask_scheduler.tasks if "daskxml" in key or "train" in key]
        return len(dask_scheduler.plugins["daskxml"].drivers), len(tasks)

    deadline_s = time.monotonic() + WITHIN_S
    while client.run_on_scheduler(held) != (0, 0):
        assert time.monotonic() < deadline_s
    assert daskxml.load(out).header.training["ended"] == "client gone"
    resume_on(client, out, int(checkpoints(out)[-1].stem) + 2)


@pytest.mark.slow
def test_a_run_is_resumed_at_once_where_that_of_a_killed_client_goes_on(
    client: Client, run_file: Path, data: Data, tmp_path: Path
) -> None:
    out, runs = tmp_path / "run", list[int]()

    def count_runs(event: Mapping[str, Any]) -> None:
        if event["kind"] == "started":
            runs.append(len(daskxml.runs(client)))

    with train_on(client, run_file, data, out) as command:
        command.wait_for("mega-batch 3 ")
        command.process.kill()
        command.process.join()
        resume_on(client, out, 100, on_event=count_runs)
        command.end()
    assert runs == [1]


def test_a_run_of_a_connected_client_is_left_alone_until_it_is_stopped(
    client: Client, run_file: Path, data: Data, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with train_on(client, run_file, data, out) as command:
        command.wait_for("mega-batch 3 ")
        os.kill(command.process.pid, signal.SIGSTOP)  # as if its machine had died just now
        (out / LOCK_FILE).unlink()
        with pytest.raises(ClusterError, match="of another client writes there"):
            daskxml.train(out / "run.toml", client=client, resume=out)
        (record,) = daskxml.runs(client)
        assert not record.is_over
        daskxml.attach(record.run, client=client).stop()
        until(lambda: daskxml.runs(client)[0].is_over)
        resume_on(client, out, int(checkpoints(out)[-1].stem) + 2)
        command.process.kill()
        command.end()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_full_disk(
    run_file: Path, data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        (disk / "ballast").write_bytes(bytes(1 << 19))
        out = disk / "run"
        wide = ("--workers", "1", "--set", "model.hidden=[128]")  # a checkpoint of 370 KB
        arguments = ("--train", str(data["train"]), "--out", str(out), *wide)
        assert main(["train", str(run_file), *arguments]) == 2
        said, errors = capsys.readouterr()
        assert "\nno checkpoint at mega-batch 4: " in said
        assert errors.count("\n") == 1
        assert "model.safetensors: cannot be written" in errors
        assert "No space left" in errors
        assert [path.stem for path in checkpoints(out)] == ["000002"]
        (disk / "ballast").unlink()
        resume(out, 6)  # the mega-batches that no checkpoint has are done again
    finally:
        subprocess.run(["umount", disk], check=True)


# ---------------------------------------------------------------------- workers


def pids(client: Client) -> list[int]:
    return list(client.run(os.getpid).values())


def at_megabatch(number: int, act: Callable[[], object]) -> Callable[[Mapping[str, Any]], None]:
    def watch(event: Mapping[str, Any]) -> None:
        if event["kind"] == "megabatch" and event["row"]["megabatch"] == number:
            act()

    return watch


@pytest.mark.slow
def test_odd_sizes_with_six_workers(data: Data, values: Values, tmp_path: Path) -> None:
    few = write_xml(
        tmp_path / "few.txt", SyntheticSpec(rows=4, test_rows=1, features=30, labels=5, seed=1)
    )
    odd: dict[str, tuple[Path, int, Values]] = {
        "six": (data["train"], 1500, {}),
        "more workers than rows": (few, 4, {}),
        "more shards than rows": (few, 4, {"data": {"residency": "shard", "partitions": 50}}),
        "six shards": (data["train"], 1500, {"data": {"residency": "shard"}}),
        "batch beyond the data": (data["train"], 1500, {"strategy": {"batch_max": 4000}}),
        "epochs in a mega-batch": (few, 4, {"strategy": {"batch_max": 3, "megabatch_batches": 20}}),
    }
    with local_client(6, tmp_path / "dask") as client:
        for name, (path, rows, changes) in odd.items():
            merged = {s: values.get(s, {}) | changes.get(s, {}) for s in values | changes}
            merged["training"] = {"megabatches": 3}
            run = daskxml.train(merged, client=client, train=path, test=data["test"]
                                if path != few else few)  # fmt: skip
            assert len(run.history) == 3, name
            if "data" not in changes:
                check_ledger(run.history, rows)


def test_a_worker_that_dies_while_the_rows_are_read(
    client: Client, data: Data, values: Values
) -> None:
    victim, is_killed = pids(client)[0], False

    def kill(event: Mapping[str, Any]) -> None:
        nonlocal is_killed
        if event.get("state") == "loading" and not is_killed:
            is_killed = True
            os.kill(victim, signal.SIGKILL)

    run = daskxml.train(
        values, client=client, train=data["train"], test=data["test"], on_event=kill
    )
    assert is_killed
    check_ledger(run.history, 1500)
    assert all(row["metrics"]["rows"] == 200 for row in run.history)


@pytest.mark.slow
def test_workers_that_die_again_and_again(data: Data, values: Values, tmp_path: Path) -> None:
    values["training"] = {"minutes": 0.4}
    values["checkpoint"] = {"every": 5}
    over = threading.Event()

    def kill_some(client: Client) -> None:
        deadline_s = time.monotonic() + 15
        while time.monotonic() < deadline_s and not over.wait(2.0):
            with contextlib.suppress(Exception):
                os.kill(pids(client)[-1], signal.SIGKILL)

    with local_client(3, tmp_path / "dask") as client:
        killer = threading.Thread(target=kill_some, args=(client,))
        killer.start()
        try:
            run = daskxml.train(
                values, client=client, train=data["train"], test=data["test"],
                out=tmp_path / "run",
            )  # fmt: skip
        finally:
            over.set()
            killer.join()
    assert run.history == history(tmp_path / "run")
    check_ledger(run.history, 1500)
    lost = [e for row in run.history for e in row["events"] if e["kind"] == "lost"]
    assert lost


# ------------------------------------------------------------------------- terminal


@pytest.mark.slow
def test_a_live_terminal(run_file: Path, data: Data, tmp_path: Path) -> None:
    main, side = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # which is how a terminal ends
            while piece := os.read(main, 65536):
                shown.append(piece)

    reader = threading.Thread(target=read)
    reader.start()
    files = ("--train", data["train"], "--test", data["test"])
    arguments = (*files, "--out", tmp_path / "run", "--workers", "1")
    command = [sys.executable, "-m", "daskxml", "train", run_file, *arguments]
    size = {"COLUMNS": "120", "LINES": "40", "TERM": "xterm-256color"}
    done = subprocess.run(
        command, stdout=side, stderr=side, stdin=side, env=os.environ | size, timeout=100
    )
    os.close(side)
    reader.join()
    os.close(main)
    text = b"".join(shown).decode()
    Path(os.environ.get("SHOWN", tmp_path / "shown")).write_text(text)
    assert done.returncode == 0
    last = text[text.rindex("ended: megabatches") :]
    assert "mega-batch 6" in last
    assert "nDCG" in last
    assert "Traceback" not in text


# --------------------------------------------------------------------------- memory


@pytest.mark.slow
def test_client_and_scheduler_do_not_grow_with_the_data(tmp_path: Path, values: Values) -> None:
    small, large = (_peak_mib(tmp_path, rows, values) for rows in (20_000, 240_000))
    print("peak MiB of scheduler, client: small", small, "large", large)
    for before, after in zip(small, large, strict=True):
        assert after < before + 30


def _peak_mib(folder: Path, rows: int, values: Values) -> tuple[float, float]:
    """Train on a file; return the peak resident MiB of the scheduler and of the client."""
    path = folder / f"{rows}.txt"
    if not path.exists():
        write_xml(path, SyntheticSpec(rows=rows, test_rows=1, features=5000, labels=500, seed=3))
    code = (
        "import sys, json, resource, daskxml\n"
        "daskxml.train(json.loads(sys.argv[1]), scheduler=sys.argv[2], train=sys.argv[3])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    file = folder / f"{rows}.json"
    dask = [sys.executable, "-m", "dask"]
    options = ("--scheduler-file", str(file))
    place = ("--port", "0", "--protocol", PROTOCOL, "--no-dashboard")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    processes = [subprocess.Popen([*dask, "scheduler", *place, *options], **quiet)]
    try:
        with Client(scheduler_file=str(file), timeout="20s") as client:
            for _ in range(2):
                command = [*dask, "worker", "--nthreads", "1", "--no-dashboard", *options]
                processes.append(subprocess.Popen(command, **quiet))
            client.wait_for_workers(2, timeout=60)
            address = client.scheduler.address
        arguments = [json.dumps(values | {"data": {"block_bytes": "4MiB"}}), address, str(path)]
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
        )
        status = Path(f"/proc/{processes[0].pid}/status").read_text().splitlines()
        peak_kib = next(line.split()[1] for line in status if line.startswith("VmHWM"))
        return int(peak_kib) / 1024, float(done.stdout)
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(20)
        shutil.rmtree(folder / "dask-scratch-space", ignore_errors=True)
