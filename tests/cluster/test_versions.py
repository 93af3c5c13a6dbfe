"""Schedulers and workers without daskxml, or with another version: real processes."""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import daskxml
from daskxml.core.errors import ClusterError
from harness.clusters import PROTOCOL, dask_process

PACKAGE = Path(daskxml.__file__).parent


@pytest.fixture(scope="module")
def another_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to be imported from: daskxml as it is, but for the number of its version."""
    folder = tmp_path_factory.mktemp("another")
    shutil.copytree(PACKAGE, folder / "daskxml", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "daskxml" / "_version.py").write_text('__version__ = "0.0.1"\n')
    return folder


@pytest.fixture(scope="module")
def no_daskxml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to be imported from, where daskxml is not found."""
    folder = tmp_path_factory.mktemp("none")
    (folder / "daskxml.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'daskxml'\", name='daskxml')\n"
    )
    return folder


def importing(path: Path) -> dict[str, str]:
    """The environment of a process that imports from ``path`` first."""
    return {"PYTHONPATH": os.pathsep.join([str(path), *sys.path])}


@contextlib.contextmanager
def scheduler(path: Path, folder: Path) -> Iterator[Client]:
    """A client of a scheduler that imports from ``path`` first."""
    file = str(folder / "scheduler.json")
    options = ("--port", "0", "--dashboard-address", ":0", "--scheduler-file", file)
    with (
        dask_process("scheduler", *options, folder=folder, **importing(path)),
        Client(scheduler_file=file, timeout="20s") as client,
    ):
        yield client


def worker(client: Client, name: str, path: Path, folder: Path) -> Any:
    options = ("--no-dashboard", "--no-nanny", "--nthreads", "1", "--name", name)
    address = client.scheduler.address
    return dask_process("worker", address, *options, folder=folder, **importing(path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "has"), [("another_version", "daskxml 0.0.1"), ("no_daskxml", "no daskxml")]
)
def test_a_scheduler_that_is_not_of_this_version(
    which: str, has: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with scheduler(request.getfixturevalue(which), tmp_path) as client:
        expected = (
            f"{PROTOCOL}://.*: the scheduler has {has}, this client {daskxml.__version__}; install"
        )
        with pytest.raises(ClusterError, match=expected):
            daskxml.runs(client)


@pytest.mark.slow
def test_workers_that_are_not_of_this_version(
    another_version: Path, no_daskxml: Path, data: dict[str, Path], values: dict[str, Any],
    tmp_path: Path,
) -> None:  # fmt: skip
    values["training"] = {"megabatches": 2}
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(scheduler(PACKAGE.parent, tmp_path))
        processes = {
            name: stack.enter_context(worker(client, name, path=path, folder=tmp_path))
            for name, path in
            {"good": PACKAGE.parent, "other": another_version, "none": no_daskxml}.items()
        }  # fmt: skip
        client.wait_for_workers(3, timeout=40)
        with pytest.raises(ClusterError) as refused:
            daskxml.train(values, client=client, train=data["train"])
        message = refused.value.message
        assert message.startswith(f"workers that cannot take part: {PROTOCOL}://")
        assert "(daskxml 0.0.1)" in message
        assert "(no daskxml)" in message
        assert message.count(f"{PROTOCOL}://") == 2
        for name in ("other", "none"):
            processes[name].terminate()
            processes[name].wait(20)
        run = daskxml.train(values, client=client, train=data["train"])
        assert sorted(run.history[-1]["workers"]) == ["good"]


@pytest.mark.slow
def test_workers_of_another_version_that_come_later(
    another_version: Path, no_daskxml: Path, data: dict[str, Path], values: dict[str, Any],
    tmp_path: Path,
) -> None:  # fmt: skip
    values["training"] = {"megabatches": 1_000_000}
    warnings: list[str] = []
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(scheduler(PACKAGE.parent, tmp_path))
        stack.enter_context(worker(client, "good", path=PACKAGE.parent, folder=tmp_path))
        client.wait_for_workers(1, timeout=40)
        late: list[Any] = []

        def watch(event: Any) -> None:
            if event["kind"] == "megabatch" and not late:
                for name, path in {"other": another_version, "none": no_daskxml}.items():
                    process = worker(client, name, path=path, folder=tmp_path)
                    late.append(stack.enter_context(process))
            elif event["kind"] == "warning":
                warnings.append(event["text"])
                if len(warnings) == 1:  # the next one tells what the interrupt does
                    raise KeyboardInterrupt

        run = daskxml.train(values, client=client, train=data["train"], on_event=watch)
        assert run.reason == "interrupt"
        assert "a worker cannot join: workers that cannot take part" in warnings[0]
        assert "(daskxml 0.0.1)" in warnings[0]
        assert all(list(row["workers"]) == ["good"] for row in run.history)
        assert late[1].wait(60) != 0  # Dask ends a worker that cannot load what it is sent
