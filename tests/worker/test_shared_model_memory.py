"""Memory that processes share: writes seen, a creator killed, nothing left behind."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from daskxml.core.errors import ClusterError, ConfigError
from daskxml.worker.shared_model import SharedHandle, SharedModel

SIZE = 1000
CHILD = """
import sys
from daskxml.worker.shared_model import SharedHandle, SharedModel

model = None
for line in sys.stdin:
    word, *values = line.split()
    if word == "create":
        model = SharedModel.create(int(values[0]))
    elif word == "open":
        pid, fd, size = map(int, values[:3])
        model = SharedModel.open(SharedHandle(pid, fd, size, values[3]))
    elif word == "write":
        model.flat[int(values[0])] = float(values[1])
    handle = model.handle
    place = int(values[0]) if word in ("read", "write") else 0
    print(handle.pid, handle.fd, handle.size, handle.name, model.flat[place], flush=True)
"""


class Child:
    """Another process that holds a shared model."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, *words: object) -> tuple[SharedHandle, float]:
        """Let it do something; return its handle and a number of the model."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        pid, fd, size, name, value = self.process.stdout.readline().split()
        return SharedHandle(int(pid), int(fd), int(size), name), float(value)

    def open(self, handle: SharedHandle) -> SharedHandle:
        """Let it open a model."""
        return self.ask("open", handle.pid, handle.fd, handle.size, handle.name)[0]

    def kill(self) -> None:
        """Kill it, as a crash would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def started(count: int) -> Iterator[list[Child]]:
    command = [sys.executable, "-c", CHILD]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [Child(subprocess.Popen(command, **pipes)) for _ in range(count)]
    try:
        yield children
    finally:
        for child in children:
            with child.process:
                child.process.kill()


def processes_with(name: str) -> list[int]:
    """Processes of this machine that have memory of that name mapped or open."""
    processes = Path("/proc").glob("[0-9]*")
    return [int(p.name) for p in processes if name in content(p / "maps") or has_open(p, name)]


def content(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # another user's, or gone
        return ""


def has_open(process: Path, name: str) -> bool:
    try:
        files = list((process / "fd").iterdir())
    except OSError:
        return False
    return any(name in target(file) for file in files)


def target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def test_processes_see_what_others_write():
    model = SharedModel.create(SIZE)
    model.flat[:] = np.arange(SIZE)
    with started(2) as (first, second):
        handle = first.open(model.handle)
        assert first.ask("read", 7)[1] == 7.0
        second.open(handle)  # by way of the first
        second.ask("write", 7, -3.5)
        assert first.ask("read", 7)[1] == -3.5
        assert model.flat[7] == -3.5
        model.flat[8] = 2.0
        assert second.ask("read", 8)[1] == 2.0
    model.close()


def test_it_outlives_its_creator_and_then_leaves_nothing_behind():
    with started(3) as (creator, survivor, newcomer):
        handle, _ = creator.ask("create", SIZE)
        assert handle.name.startswith("daskxml-")
        passed_on = survivor.open(handle)
        creator.ask("write", 3, 4.5)
        creator.kill()
        with pytest.raises(ClusterError, match="cannot be opened by way of process"):
            SharedModel.open(handle)
        newcomer.open(passed_on)
        assert newcomer.ask("read", 3)[1] == 4.5
        holders = {survivor.process.pid, newcomer.process.pid}
        assert set(processes_with(handle.name)) == holders
        survivor.kill()
        newcomer.kill()
    assert processes_with(handle.name) == []
    assert list(Path("/dev/shm").glob("*daskxml*")) == []


def test_a_process_that_is_started_does_not_inherit_it():
    model = SharedModel.create(SIZE)
    waiting = [sys.executable, "-c", "input()"]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE, close_fds=False) as child:
        assert processes_with(model.handle.name) == [os.getpid()]
        child.communicate(b"\n")
    model.close()


def test_arrays_stay_valid_after_closing_and_the_memory_goes_with_the_last():
    model = SharedModel.create(SIZE)
    name, flat = model.handle.name, model.flat
    model.close()
    model.close()  # twice is once
    with pytest.raises(ClusterError, match="closed here"):
        assert model.handle
    flat[5] = 1.0
    assert os.getpid() in processes_with(name)
    del flat, model
    assert os.getpid() not in processes_with(name)


def test_a_model_that_is_forgotten_lets_go():
    name = SharedModel.create(SIZE).handle.name
    assert processes_with(name) == []


def test_memory_is_zero_and_aligned_and_the_handle_can_be_sent():
    model = SharedModel.create(SIZE)
    assert model.flat.shape == (SIZE,)
    assert model.flat.dtype == np.float32
    assert model.flat.ctypes.data % 64 == 0
    assert not model.flat.any()
    assert pickle.loads(pickle.dumps(model.handle)) == model.handle


@pytest.mark.parametrize("change", ["size", "name", "process"])
def test_a_handle_that_means_something_else_is_refused(change):
    model = SharedModel.create(SIZE)
    handle = model.handle
    changed = {
        "size": SharedHandle(handle.pid, handle.fd, SIZE + 1, handle.name),
        "name": SharedHandle(handle.pid, handle.fd, SIZE, handle.name + "0"),
        "process": SharedHandle(2**22 + 1, handle.fd, SIZE, handle.name),
    }
    with pytest.raises(ClusterError, match="one machine, in one container"):
        SharedModel.open(changed[change])


def test_a_file_that_is_no_model_is_refused(tmp_path):
    path = tmp_path / "model"
    path.write_bytes(b"\0" * 4 * SIZE)
    with path.open("r+b") as file, pytest.raises(ClusterError, match="holds something else"):
        SharedModel.open(SharedHandle(os.getpid(), file.fileno(), SIZE))


def test_a_model_without_numbers_is_refused():
    with pytest.raises(ConfigError, match="shared model of 0 numbers: must be at least 1"):
        SharedModel.create(0)
    assert SharedModel.create(1).flat.shape == (1,)


def test_without_memfd_it_is_private(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    model = SharedModel.create(SIZE)
    assert not model.flat.any()
    with pytest.raises(ClusterError, match="cannot share memory without a name"):
        assert model.handle
    model.close()


def test_more_memory_than_there_is_has_an_error_of_its_own():
    with pytest.raises(ClusterError, match="no memory for a shared model of"):
        SharedModel.create(2**60)
