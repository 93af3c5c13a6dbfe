"""The cluster that is made on this machine where none is given: processes on its GPUs and cores."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dask
from distributed import Nanny, Scheduler, SpecCluster

from daskxml.config.sections import ClusterSection
from daskxml.errors import ClusterError, ConfigError
from daskxml.gpus import (
    VISIBLE,
    Gpu,
    cuda_problem,
    driver_cuda,
    fitting_cuda,
    installed_cupy,
    my_gpus,
)
from daskxml.runtime.interrupts import deaf_children, postponed
from daskxml.runtime.machines import POOL
from daskxml.runtime.ucx import SCHEMES, has_ucx, silence_ucx, ucx_missing

HOST = "127.0.0.1"
SILENT = 50  # of logging: nothing that Dask says
DASHBOARD_PORT = 8787
# Ctrl-C at a terminal reaches the workers too: they go on, until the run ends at a merge.
IGNORE_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
SILENCE_UCX = "from daskxml.runtime.ucx import silence_ucx; silence_ucx()"

Warn = Callable[[str], None]


@contextlib.contextmanager
def local_cluster(section: ClusterSection, warn: Warn) -> Iterator[SpecCluster]:
    """Give a cluster of processes on this machine, a worker for each GPU where there are some.

    Raises
    ------
    ConfigError, ClusterError
        If the machine has not what is asked for, or the workers cannot start.
    """
    cores = len(os.sched_getaffinity(0))
    section.pool_threads_on(cores)  # refuses too many before anything is started
    gpus = choose_gpus(section, my_gpus() if section.device != "cpu" else (), gpu_problem, warn)
    protocol = choose_protocol(section, bool(gpus))
    with (
        tempfile.TemporaryDirectory(prefix="daskxml-") as folder,
        contextlib.ExitStack() as stack,
    ):
        with postponed(), deaf_children():  # else Ctrl-C in here leaves half a cluster
            made = _new_cluster(section, gpus, cores, folder, protocol)
            cluster = stack.enter_context(made)
        yield cluster


def gpu_problem() -> str:
    """Say why this machine's GPUs cannot have workers, and what to do; "" if they can."""
    driver = driver_cuda()
    problem = cuda_problem(driver, installed_cupy())
    missing = [name for name in ("dask_cuda", "rmm") if importlib.util.find_spec(name) is None]
    if problem or not missing:
        return problem
    extra = f"pip install 'daskxml[cuda{fitting_cuda(driver)}]'"
    return f"{missing[0].replace('_', '-')} is not installed: {extra}"


def choose_gpus(
    section: ClusterSection, gpus: Sequence[Gpu], problem: Callable[[], str], warn: Warn
) -> tuple[Gpu, ...]:
    """Return the GPUs that are to have a worker each.

    Parameters
    ----------
    gpus
        That this process may use.
    problem
        Says why they cannot be used; asked for only if there are some.
    warn
        Called with one line where ``device = "auto"`` leaves GPUs alone.

    Raises
    ------
    ConfigError, ClusterError
        If ``device = "cuda"`` and there are none, too few, or they cannot be used.

    Examples
    --------
    >>> choose_gpus(ClusterSection(device="cuda"), (), str, print)
    Traceback (most recent call last):
    daskxml.errors.ConfigError: [cluster] device = 'cuda': no GPU was found here (nvidia-smi -L
    lists them, CUDA_VISIBLE_DEVICES may hide them); take --device cpu, or --scheduler of a cluster
    that has some
    """
    must = section.device == "cuda"
    if must and not gpus:
        raise ConfigError(
            "[cluster] device = 'cuda': no GPU was found here (nvidia-smi -L lists them, "
            "CUDA_VISIBLE_DEVICES may hide them); take --device cpu, or --scheduler of a cluster "
            "that has some"
        )
    found = problem() if gpus else ""
    if found and must:
        raise ClusterError(f"[cluster] device = 'cuda': {found}; or take --device cpu")
    if found:
        warn(f"training on CPUs, not on {gpus[0].name}: {found} (--device cpu says nothing)")
        return ()
    if must and section.workers > len(gpus):
        raise ConfigError(
            f"[cluster] workers = {section.workers}: there are {len(gpus)} GPUs here; take fewer, "
            "or --device auto, which lets the others step on the CPU"
        )
    return tuple(gpus[: section.workers or None])


def choose_protocol(section: ClusterSection, with_gpus: bool) -> str:
    """Return what the workers are to talk: what is asked for, else UCX between GPUs, else Dask's.

    Dask's is its setting ``distributed.comm.default-scheme``: ``tcp``, if nobody has changed it.

    Raises
    ------
    ConfigError
        If that is UCX, and it is not installed.

    Examples
    --------
    >>> choose_protocol(ClusterSection(), with_gpus=False)
    'tcp'
    """
    if section.protocol == "auto" and with_gpus and has_ucx():
        return "ucx"
    chosen, where = section.protocol, f"[cluster] protocol = {section.protocol!r}"
    if chosen == "auto":
        chosen = dask.config.get("distributed.comm.default-scheme")
        where = f"Dask's distributed.comm.default-scheme = {chosen!r}"
    if chosen in SCHEMES and not has_ucx():
        raise ConfigError(ucx_missing(where))
    return chosen


def _new_cluster(
    section: ClusterSection, gpus: Sequence[Gpu], cores: int, folder: str, protocol: str
) -> SpecCluster:
    others = local_workers(section, cores, folder, len(gpus), protocol)
    if protocol in SCHEMES:
        silence_ucx()  # the scheduler is in this process
    try:
        if gpus:
            return _gpu_cluster(section, gpus, others, folder, protocol)
        options = {"host": HOST, "port": 0, "protocol": protocol}
        options |= {"http_prefix": section.dashboard_prefix}
        options |= {"dashboard_address": _dashboard_address()}
        return SpecCluster(
            workers=others,
            scheduler={"cls": Scheduler, "options": options},
            silence_logs=SILENT,
            name="daskxml",
        )
    except (RuntimeError, OSError) as error:
        raise ClusterError(
            f"the local workers cannot start over {protocol} ({error}); a script must call "
            "daskxml.train below 'if __name__ == \"__main__\":', since each worker imports it"
        ) from error


def _gpu_cluster(
    section: ClusterSection,
    gpus: Sequence[Gpu],
    others: dict[int | str, Any],
    folder: str,
    protocol: str,
) -> SpecCluster:
    """Return a cluster with a worker for each GPU, and others beside them on the CPU."""
    from dask_cuda import LocalCUDACluster

    options = gpu_cluster_options(section, gpus, len(others), folder, protocol)
    cluster = LocalCUDACluster(
        dashboard_address=_dashboard_address(),
        scheduler_kwargs={"http_prefix": section.dashboard_prefix},
        **options,
    )
    if others:
        cluster.worker_spec.update(others)
        cluster.sync(cluster._correct_state)  # as dask-cuda itself starts its workers
    return cluster


def gpu_cluster_options(
    section: ClusterSection, gpus: Sequence[Gpu], others: int, folder: str, protocol: str
) -> dict[str, Any]:
    """Return what ``dask_cuda.LocalCUDACluster`` must know.

    Which transports UCX takes (NVLink, InfiniBand, shared memory) is left to UCX.

    Parameters
    ----------
    others
        Workers that step on the CPU, beside those on GPUs.

    Examples
    --------
    >>> gpu = Gpu(index=1, uuid="GPU-a", name="", memory_bytes=0, driver="")
    >>> options = gpu_cluster_options(ClusterSection(), [gpu], 1, "/tmp", "ucx")
    >>> options["CUDA_VISIBLE_DEVICES"], options["rmm_pool_size"], options["memory_limit"]
    ([1], 0.7, 0.5)
    """
    is_cut = any(gpu.is_slice for gpu in gpus)  # then by UUID all: dask-cuda sorts these names
    return {
        "CUDA_VISIBLE_DEVICES": [gpu.uuid if is_cut else gpu.index for gpu in gpus],
        "threads_per_worker": 1,
        "memory_limit": _memory_share(section, len(gpus) + others),
        "device_memory_limit": section.device_memory_limit,
        "rmm_pool_size": section.rmm_pool or None,
        "rmm_allocator_external_lib_list": ["cupy"] if section.rmm_pool else None,
        "rmm_track_allocations": bool(section.rmm_pool),  # else nobody knows what it has left
        "protocol": protocol,
        "local_directory": folder,
        "host": HOST,
        "silence_logs": SILENT,
        "preload": [IGNORE_INTERRUPTS, SILENCE_UCX],
    }


def local_workers(
    section: ClusterSection, cores: int, folder: str, gpus: int = 0, protocol: str = "tcp"
) -> dict[int | str, Any]:
    """Return what Dask must know of each local process on the CPU, by its name: pools come last.

    Parameters
    ----------
    gpus
        Workers on GPUs, which are not among them.

    Examples
    --------
    >>> workers = local_workers(ClusterSection(workers=1, pools=1), 4, "/tmp")
    >>> list(workers), workers["pool-0"]["options"]["resources"]
    ([0, 'pool-0'], {'cpu-pool': 3})
    >>> list(local_workers(ClusterSection(workers=3), 4, "/tmp", gpus=1))
    ['cpu-0', 'cpu-1']
    """
    is_free = not (section.workers or section.pool_threads)  # to leave a core to each GPU worker
    usable = max(1, cores - gpus) if is_free else cores
    count = section.workers - gpus if gpus else section.workers_on(cores)
    replicas: list[int | str] = [f"cpu-{i}" if gpus else i for i in range(max(0, count))]
    pools = [f"pool-{number}" for number in range(section.pools)]
    common = {
        "host": HOST,
        "protocol": protocol,
        "nthreads": 1,
        "memory_limit": _memory_share(section, gpus + len(replicas) + len(pools)),
        "local_directory": folder,
        "silence_logs": SILENT,
        "preload": [IGNORE_INTERRUPTS, SILENCE_UCX],
        "env": {VISIBLE: ""},  # GPUs are others'
    }
    pool = {**common, "resources": {POOL: section.pool_threads_on(usable)}} if pools else {}
    kinds = dict.fromkeys(replicas, common) | dict.fromkeys(pools, pool)
    return {name: {"cls": Nanny, "options": options} for name, options in kinds.items()}


def _memory_share(section: ClusterSection, workers: int) -> float:
    """Return the share of the machine's memory for each of so many workers."""
    return section.memory_limit or 1.0 / workers


def _dashboard_address() -> str:
    """Dask's usual port if it is free, else any: a warning about it would help nobody."""
    with socket.socket() as probe:
        try:
            probe.bind((HOST, DASHBOARD_PORT))
        except OSError:
            return f"{HOST}:0"
    return f"{HOST}:{DASHBOARD_PORT}"
