"""Which worker steps where, with how many threads, and what is refused before anything is read."""

import inspect
import socket
import sys
import types
from contextlib import nullcontext
from typing import Any
from urllib.parse import urlsplit

import dask
import pytest
from distributed import LocalCluster, Nanny

from daskxml.cluster import connection, worker_info
from daskxml.cluster.connection import (
    LocalProcesses,
    choose_gpus,
    choose_protocol,
)
from daskxml.cluster.worker_info import (
    Capabilities,
    RunWorkers,
    WorkerInfo,
)
from daskxml.config import load_run_config
from daskxml.config.sections import ClusterSection
from daskxml.core.errors import ClusterError, ConfigError
from daskxml.core.hardware import Gpu
from daskxml.strategies.protocol import WorkerDevice

SCHEME = "distributed.comm.default-scheme"
GPUS = [
    Gpu(index=i, uuid=f"GPU-{i}", name="A100", memory_bytes=40 << 30, driver="535") for i in (0, 1)
]
SLICE = Gpu(index=1, uuid="MIG-a", name="A100 MIG", memory_bytes=5 << 30, driver="535")
OLD = "the driver runs CUDA 11.4, older than the installed packages' CUDA 12: update it"


def config(**cluster: Any) -> Any:
    return load_run_config({"training": {"epochs": 1}, "cluster": cluster})


def workers(*gpus: Gpu | None, cores: int = 8, problem: str = "") -> Any:
    """Return workers of one machine, with what each has."""
    present = [WorkerInfo(str(i), f"tcp://h:{i + 1}") for i in range(len(gpus))]
    capabilities = {
        it.address: Capabilities(cores=cores, gpu=gpu, gpu_problem=problem if gpu else "")
        for it, gpu in zip(present, gpus, strict=True)
    }
    return present, capabilities


# Of the socket with which Dask has tried that port.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_dashboard_has_another_port_where_its_own_is_taken(monkeypatch):
    with socket.create_server((connection.HOST, 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(connection, "DASHBOARD_PORT", port)
        with connection.local_cluster(ClusterSection(workers=1), print, dashboard=True) as cluster:
            assert urlsplit(cluster.dashboard_link).port not in (None, port)


@pytest.mark.parametrize("asked", ["auto", "tcp", "ucx"])
@pytest.mark.parametrize("spoken", ["tcp", "tls", "ucx", "ucxx"])
def test_a_scheduler_that_speaks_another_protocol_is_refused(asked, spoken):
    """``ucxx`` is another name of ``ucx``."""
    scheduler = types.SimpleNamespace(address=f"{spoken}://host:8786")
    client = types.SimpleNamespace(scheduler=scheduler)
    fits = asked == "auto" or asked == spoken.replace("ucxx", "ucx")
    with nullcontext() if fits else pytest.raises(ConfigError, match=f"speaks {spoken}; start it"):
        connection._check_protocol(client, ClusterSection(protocol=asked))


@pytest.mark.parametrize("dashboard", [True, False])
def test_a_cluster_of_gpus_has_a_dashboard_where_one_is_asked_for(monkeypatch, dashboard):
    made = types.SimpleNamespace(LocalCUDACluster=lambda **options: options)
    monkeypatch.setitem(sys.modules, "dask_cuda", made)
    options = LocalProcesses(ClusterSection(), 2, "/tmp", GPUS, dashboard=dashboard).start()
    assert (options["dashboard_address"] is not None) == dashboard


@pytest.mark.parametrize("gpus", [[], GPUS[:1]])
def test_a_worker_says_why_its_gpu_cannot_be_used(monkeypatch, gpus):
    monkeypatch.setattr(worker_info.hardware, "usable_gpus", lambda: gpus)
    monkeypatch.setattr(worker_info.hardware, "cuda_problem", lambda driver, installed: OLD)
    assert worker_info.probe_process().gpu_problem == (OLD if gpus else "")


def test_each_worker_steps_where_it_can():
    present, capabilities = workers(*GPUS, None, None)
    devices = {
        name: list(
            map(RunWorkers(config(device=name), present, capabilities).kernel_device, present)
        )
        for name in ("auto", "cpu", "cuda")
    }
    assert devices["auto"] == ["cuda", "cuda", "cpu", "cpu"]
    assert set(devices["cpu"]) == {"cpu"}
    assert set(devices["cuda"]) == {"cuda"}
    pool = WorkerInfo("pool", "tcp://h:9", WorkerDevice(4))
    capabilities["tcp://h:9"] = capabilities["tcp://h:1"]
    assert RunWorkers(config(device="cuda"), [pool], capabilities).kernel_device(pool) == "cpu"


@pytest.mark.parametrize("more", [{"sampling": {"method": "random"}},
                                  {"strategy": {"name": "hogbatch"}}])  # fmt: skip
def test_some_runs_are_for_cpus_alone(more):
    needs_cpu = load_run_config({"training": {"epochs": 1}} | more)
    present, capabilities = workers(GPUS[0])
    assert RunWorkers(needs_cpu, present, capabilities).kernel_device(present[0]) == "cpu"


@pytest.mark.parametrize("cores", [1, 4, 8, 64])
@pytest.mark.parametrize("pool", [0, 3])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_threads_of_a_machine_never_exceed_its_cores(cores, pool, count):
    present, capabilities = workers(*GPUS, *[None] * count, cores=cores)
    if pool:
        present.append(WorkerInfo("pool", "tcp://h:99", WorkerDevice(pool)))
        capabilities["tcp://h:99"] = Capabilities(cores=cores)
    threads = list(map(RunWorkers(config(), present, capabilities).kernel_threads, present))
    assert min(threads) == 1
    assert sum(threads) <= max(cores, count + 2 + pool)  # a thread each at the least


def test_threads_that_are_asked_for_must_have_cores():
    present, capabilities = workers(None, None, cores=4)
    RunWorkers(config(threads=2), present, capabilities).check()
    with pytest.raises(ConfigError, match=r"threads = 3: the 2 workers on h would use 6 .*to 2 or"):
        RunWorkers(config(threads=3), present, capabilities).check()


def test_a_shared_model_is_on_one_machine():
    present = [WorkerInfo(str(i), f"tcp://h{i}:1") for i in range(2)]
    made = {
        name: load_run_config({"training": {"epochs": 1}, "strategy": {"name": name}})
        for name in ("hogbatch", "adaptive-sgd")
    }
    RunWorkers(made["adaptive-sgd"], present, {}).check()
    RunWorkers(made["hogbatch"], present[:1], {}).check()
    with pytest.raises(ConfigError, match="of h0, and worker 1 at tcp://h1:1 is on another"):
        RunWorkers(made["hogbatch"], present, {}).check()


def refusal(present: Any, capabilities: Any, **cluster: Any) -> str:
    with pytest.raises(ClusterError) as refused:
        RunWorkers(config(**cluster), present, capabilities).check()
    return refused.value.message


def test_a_worker_without_a_gpu_is_refused_where_gpus_are_asked_for():
    present, capabilities = workers(GPUS[0], None)
    RunWorkers(config(device="auto"), present, capabilities).check()
    told = refusal(present, capabilities, device="cuda")
    assert told.startswith("worker 1 at tcp://h:2 sees no GPU")
    assert "--device auto" in told


def test_a_gpu_that_cannot_be_used():
    present, capabilities = workers(GPUS[0], problem=OLD)
    assert RunWorkers(config(), present, capabilities).kernel_device(present[0]) == "cpu"
    assert OLD in refusal(present, capabilities, device="cuda")


def test_two_workers_on_one_slice():
    present, capabilities = workers(SLICE, SLICE)
    told = refusal(present, capabilities)
    assert told.startswith("worker 0 at tcp://h:1: worker 1 is on the same MIG slice MIG-a; start")
    elsewhere = [present[0], WorkerInfo("1", "tcp://other:2")]
    there = dict(zip(("tcp://h:1", "tcp://other:2"), capabilities.values(), strict=True))
    RunWorkers(config(), elsewhere, there).check()  # another machine's slice, whatever it is called


def test_two_workers_on_one_whole_gpu_are_told_of():
    present, capabilities = workers(GPUS[0], GPUS[0], GPUS[1])
    RunWorkers(config(), present, capabilities).check()
    (told,) = RunWorkers(config(), present, capabilities).crowded_gpus()
    assert told.startswith("workers 0, 1 share one GPU, GPU-0 on h")
    assert RunWorkers(config(device="cpu"), present, capabilities).crowded_gpus() == []


def test_a_local_worker_for_each_gpu():
    def choose(**section: Any) -> Any:
        return choose_gpus(ClusterSection(**section), GPUS, str, pytest.fail)

    assert [gpu.index for gpu in choose()] == [0, 1]
    assert [gpu.index for gpu in choose(workers=1)] == [0]
    assert [gpu.index for gpu in choose(workers=5)] == [0, 1]
    with pytest.raises(ConfigError, match="workers = 5: there are 2 GPUs here"):
        choose(workers=5, device="cuda")


def test_local_pools_leave_a_core_to_each_worker_on_a_gpu():
    def threads(**section: Any) -> int:
        processes = LocalProcesses(ClusterSection(pools=1, **section), 8, "/tmp", GPUS)
        return int(processes.workers()["pool-0"]["options"]["resources"]["cpu-pool"])

    assert [threads(), threads(workers=2), threads(pool_threads=8)] == [6, 6, 8]


def test_gpus_that_cannot_be_used_are_an_error_only_where_they_are_asked_for():
    told: list[str] = []
    assert choose_gpus(ClusterSection(), GPUS, lambda: OLD, told.append) == ()
    assert told == [f"training on CPUs, not on A100: {OLD} (--device cpu says nothing)"]
    with pytest.raises(ClusterError, match=r"device = 'cuda': the driver runs CUDA 11\.4"):
        choose_gpus(ClusterSection(device="cuda"), GPUS, lambda: OLD, pytest.fail)


def test_ucx_between_gpus_where_it_is_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection, "has_ucx", lambda: True)
    with dask.config.set({SCHEME: "tcp"}):
        assert choose_protocol(ClusterSection(), gpus=2) == "ucx"
        assert choose_protocol(ClusterSection(), gpus=1) == "tcp"
        assert choose_protocol(ClusterSection(protocol="tcp"), gpus=2) == "tcp"
        monkeypatch.setattr(connection, "has_ucx", lambda: False)
        assert choose_protocol(ClusterSection(), gpus=2) == "tcp"
    with pytest.raises(ConfigError, match=r"UCX is not installed here: pip install 'daskxml\[ucx"):
        choose_protocol(ClusterSection(protocol="ucx"), gpus=2)


def test_a_local_cluster_talks_what_dask_is_set_to(monkeypatch: pytest.MonkeyPatch):
    for pattern in ("tcp", "tls", "ucx", "ucxx"):
        with dask.config.set({SCHEME: pattern}):
            monkeypatch.setattr(connection, "has_ucx", lambda: True)
            assert choose_protocol(ClusterSection(), gpus=0) == pattern
            assert choose_protocol(ClusterSection(protocol="tcp"), gpus=0) == "tcp"
    monkeypatch.setattr(connection, "has_ucx", lambda: False)
    with (
        dask.config.set({SCHEME: "ucx"}),
        pytest.raises(ConfigError, match=r"^Dask's distributed\.comm\.default-scheme = 'ucx': UCX"),
    ):
        choose_protocol(ClusterSection(), gpus=0)


def test_workers_of_a_local_cluster_talk_what_dask_is_set_to():
    section = ClusterSection(workers=1, device="cpu")
    with dask.config.set({SCHEME: "ws"}), connection.local_cluster(section, print) as cluster:
        addresses = [cluster.scheduler_address, *cluster.scheduler_info["workers"]]
        assert [it.partition(":")[0] for it in addresses] == ["ws", "ws"]


def test_dask_cuda_takes_the_options():
    dask_cuda = pytest.importorskip("dask_cuda", reason="dask-cuda comes with the extra cuda12")
    processes = LocalProcesses(ClusterSection(), 8, "/tmp", [*GPUS, SLICE], "ucx")
    options = processes.gpu_options(0)
    assert options["CUDA_VISIBLE_DEVICES"] == ["GPU-0", "GPU-1", "MIG-a"]
    known: set[str] = set()
    for taker in (dask_cuda.LocalCUDACluster, LocalCluster, Nanny):
        known |= set(inspect.signature(taker.__init__).parameters)
    assert options.keys() <= known
