"""The Dask cluster of a run: the user's, or processes on this machine's GPUs and cores."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import logging
import multiprocessing.forkserver
import os
import resource
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import dask
import distributed.utils
from distributed import Client, Future, Nanny, Scheduler, SpecCluster
from distributed.comm.addressing import parse_address, parse_host_port
from distributed.comm.registry import get_backend
from distributed.security import Security
from distributed.utils import silence_logging_cmgr

from daskxml.cluster.worker_info import POOL
from daskxml.config.sections import ClusterSection
from daskxml.core import hardware
from daskxml.core.errors import ClusterError, ConfigError
from daskxml.core.shared import Shared
from daskxml.core.signals import defer_signals, shield_children
from daskxml.transport.ucx import SCHEMES, has_ucx, silence_ucx, ucx_missing

HOST = "127.0.0.1"
CONNECT_S = "10s"
NEED_CERTIFICATES = ("tls", "wss")
SILENT = 50  # log level: nothing from Dask
DASHBOARD_PORT = 8787  # or another, where that is taken
# What Dask measures of workers for its dashboard alone: their threads, and delays of their loops.
UNSEEN = {"worker": {"profile": {"enabled": False}}, "admin": {"tick": {"interval": "1s"}}}
_PROCESS_BYTES = 1 << 30  # of addresses: a process maps most of them before it has any rows
# Ctrl-C at a terminal is sent to the workers too: they ignore it, and the run ends at a merge.
IGNORE_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
START_METHOD = "distributed.worker.multiprocessing-method"  # Dask's setting
_VARIABLES = "distributed.nanny.pre-spawn-environ"  # which Dask sets and leaves
PRELOAD = ("daskxml.cluster.worker_tasks", "daskxml.kernels.cpu.kernels")
# Dask keeps each span for good: the tasks of all runs are one, and so are those of pipelines and
# other calls, which a user's code may keep busy, not one for each idle moment.
OURS = ("daskxml", "daskxml-calls")
RUNS, CALLS = ({"name": (name,), "ids": (name,)} for name in OURS)
SILENCE_UCX = "from daskxml.transport.ucx import silence_ucx; silence_ucx()"

Warn = Callable[[str], None]


def page_link(link: str | None, path: str) -> str:
    """Return the URL of a run's page on the scheduler; "" if there is none.

    Parameters
    ----------
    link
        URL of Dask's status page, from Dask's setting ``distributed.dashboard.link``; None or ""
        without a dashboard.
    path
        Path of the run's page on the scheduler; "" without one.

    Examples
    --------
    >>> page_link("http://h:8787/status", "/me/daskxml")
    'http://h:8787/me/daskxml'
    >>> page_link("https://hub/user/me/proxy/8787/status", "/daskxml")
    'https://hub/user/me/proxy/8787/daskxml'
    """
    base, _, page = (link or "").rpartition("/")
    if not path or page != "status":
        return (link or "") if path else ""
    prefix, _, name = path.rpartition("/")
    return f"{base.removesuffix(prefix)}{prefix}/{name}"


@contextlib.contextmanager
def connection(
    client: Client | None, scheduler: str | None, section: ClusterSection, warn: Warn,
    dashboard: bool = False,
) -> Iterator[Client]:  # fmt: skip
    """Yield a client: the user's own, one of a running scheduler, or of a new local cluster.

    ``dashboard`` says whether the last has one.

    Raises
    ------
    ConfigError
        If the cluster does not use the protocol in the run file.
    ClusterError
        If no scheduler answers, or the local workers cannot start.
    """
    if client is None and scheduler is None:
        with local_cluster(section, warn, dashboard) as cluster, Client(cluster) as connected:
            yield connected
    else:
        with running_cluster(client, scheduler) as connected:
            _check_protocol(connected, section)
            yield connected


@contextlib.contextmanager
def running_cluster(client: Client | None, scheduler: str | None) -> Iterator[Client]:
    """Yield a client of a running cluster: the user's own, or one of this scheduler.

    Raises
    ------
    ConfigError, ClusterError
        If neither is given, or it cannot be used.
    """
    if client is not None:
        _check_client(client)
        yield client
    elif scheduler is not None:
        # If the scheduler is gone, Dask would log a traceback; the error that is raised suffices.
        with silence_logging_cmgr(SILENT):
            connected = _client(scheduler)
            try:
                yield connected
            finally:
                with contextlib.suppress(TimeoutError):  # its thread ends later, on a busy machine
                    connected.close()
    else:
        raise ConfigError("no cluster: give --scheduler ADDRESS, or a Dask client")


def submit(client: Client, task: Callable[..., Any], *args: Any, **options: Any) -> Future:
    """Start a task of daskxml's, whatever was computed before; ``options`` are Dask's."""
    with dask.annotate(span=dask.get_annotations().get("span", CALLS)):
        return client.submit(task, *args, pure=False, **options)


def kept(client: Client, value: Any) -> Future:
    """Return a future of a value, which the scheduler keeps as the argument of a task.

    With `Client.scatter` it would be on workers alone: gone with the last of them, and one that
    dies while it is sent holds the client up for minutes.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sending large graph")
        return submit(client, _itself, value)


def _itself(value: Any) -> Any:
    return value


def _check_client(client: object) -> None:
    if not isinstance(client, Client):
        raise ConfigError(
            f"client = {client!r}: must be a dask.distributed.Client; an address goes to scheduler"
        )
    if client.asynchronous:
        raise ConfigError(
            "an asynchronous client cannot be waited for here: call in a thread with its address, "
            "await asyncio.to_thread(daskxml.attach, RUN, scheduler=client.scheduler.address)"
        )
    if client.scheduler is None:
        raise ClusterError("the client is closed: make another")


def _check_protocol(client: Client, section: ClusterSection) -> None:
    address = client.scheduler.address
    actual, _ = parse_address(address)
    accepted = SCHEMES if section.protocol == "ucx" else (section.protocol,)
    if section.protocol != "auto" and actual not in accepted:
        raise ConfigError(
            f"[cluster] protocol = {section.protocol!r}: the scheduler at {address} speaks "
            f"{actual}; start it with 'dask scheduler --protocol {section.protocol}', or leave "
            "the protocol at auto"
        )


def _client(scheduler: str) -> Client:
    _check_address(scheduler)
    try:
        return Client(scheduler, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"{scheduler}: no scheduler answers there; "
            "start one with 'dask scheduler' or correct the address"
        ) from error


def _check_address(scheduler: str) -> None:
    """Refuse an invalid address, which a client would retry for long."""
    try:
        scheme, place = parse_address(scheduler)
        if scheme in SCHEMES and not has_ucx():
            raise ClusterError(ucx_missing(scheduler))
        if scheme in SCHEMES:
            silence_ucx()
        get_backend(scheme)
        if (
            scheme in NEED_CERTIFICATES
            and Security().get_connection_args("client")["ssl_context"] is None
        ):
            raise ConfigError(
                f"{scheduler}: {scheme} needs certificates, and Dask has none configured: set "
                "distributed.comm.tls (ca-file, client.cert, client.key), or give "
                "client=Client(address, security=...) from Python"
            )
        if scheme in ("tcp", "tls"):
            parse_host_port(place)
    except ValueError as error:
        raise ClusterError(
            f"{scheduler}: not a scheduler's address; give one like tcp://HOST:8786"
        ) from error


@contextlib.contextmanager
def local_cluster(
    section: ClusterSection, warn: Warn, dashboard: bool = False
) -> Iterator[SpecCluster]:
    """Yield a cluster of processes on this machine, with a worker for each GPU if it has any.

    Raises
    ------
    ConfigError, ClusterError
        If the machine lacks what the run file requires, or the workers cannot start.
    """
    cores = hardware.usable_cores()
    section.pool_threads_on(cores)  # refuses too many
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]  # with less, Dask may lose messages for good
    if 0 <= limit < _PROCESS_BYTES:
        raise ClusterError(
            f"a process may have {limit >> 20:,} MiB of addresses, too few to begin: let ulimit -v "
            f"be at least {_PROCESS_BYTES >> 10}"
        )
    gpus = choose_gpus(
        section, hardware.usable_gpus() if section.device != "cpu" else (), gpu_problem, warn
    )
    protocol = choose_protocol(section, len(gpus))
    with (
        tempfile.TemporaryDirectory(prefix="daskxml-") as folder,
        _UNCHANGED,
        contextlib.ExitStack() as stack,
    ):
        if not gpus and protocol not in SCHEMES:
            stack.enter_context(forked_workers())
        # Else Ctrl-C in here leaves half a cluster.
        with defer_signals(), shield_children(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Port .* is already in use")  # Dask takes any
            made = LocalProcesses(section, cores, folder, gpus, protocol, dashboard)
            cluster = stack.enter_context(made.start())
        yield cluster


@contextlib.contextmanager
def forked_workers(preload: Sequence[str] = PRELOAD) -> Iterator[None]:
    """Fork Dask's local workers from one process that has imported what they need, on Linux.

    So what a worker needs is imported once and not by each. Workers on GPUs and over UCX must not
    be forked. A start method that the user has set stays.

    Parameters
    ----------
    preload
        Modules that the process imports when the first worker of this one is forked.
    """
    if sys.platform != "linux" or dask.config.get(START_METHOD) != "spawn":
        yield
        return
    server: Any = multiprocessing.forkserver._forkserver  # which has no other way to ask
    dask_set = "_forkserver_preload_set"
    before = server._preload_modules, getattr(distributed.utils, dask_set)
    server.set_forkserver_preload([*preload])
    setattr(distributed.utils, dask_set, True)  # or Dask sets its own, longer list
    try:
        with dask.config.set({START_METHOD: "forkserver"}):
            yield
    finally:
        server._preload_modules = before[0]
        setattr(distributed.utils, dask_set, before[1])


@contextlib.contextmanager
def _unchanged() -> Iterator[None]:
    """Keep the log and the variables of local clusters from the program that trains."""
    log, names = logging.getLogger("distributed"), {*dask.config.get(_VARIABLES), "PYTHONHASHSEED"}
    variables = {name: os.environ[name] for name in names & os.environ.keys()}
    before, log.propagate = log.propagate, False
    try:
        yield
    finally:
        log.propagate = before
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(variables)


_UNCHANGED = Shared(_unchanged)


def gpu_problem() -> str:
    """Return why workers cannot use this machine's GPUs, and what to do; "" if they can."""
    driver = hardware.driver_cuda()
    problem = hardware.cuda_problem(driver, hardware.installed_cupy())
    missing = [name for name in ("dask_cuda", "rmm") if importlib.util.find_spec(name) is None]
    if problem or not missing:
        return problem
    extra = f"pip install 'daskxml[cuda{hardware.fitting_cuda(driver)}]'"
    return f"{missing[0].replace('_', '-')} is not installed: {extra}"


def choose_gpus(
    section: ClusterSection, gpus: Sequence[hardware.Gpu], problem: Callable[[], str], warn: Warn
) -> tuple[hardware.Gpu, ...]:
    """Return the GPUs that get a worker each.

    Parameters
    ----------
    gpus
        GPUs that this process may use.
    problem
        Returns why they cannot be used; called only if there are any.
    warn
        Called with one line if ``device = "auto"`` does not use them.

    Raises
    ------
    ConfigError, ClusterError
        If ``device = "cuda"`` and there are none, too few, or they cannot be used.

    Examples
    --------
    >>> choose_gpus(ClusterSection(device="cuda"), (), str, print)
    Traceback (most recent call last):
    daskxml.core.errors.ConfigError: [cluster] device = 'cuda': no GPU was found here (nvidia-smi -L
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


def choose_protocol(section: ClusterSection, gpus: int) -> str:
    """Return the workers' protocol: the run file's, else UCX between GPUs, else Dask's default.

    One GPU has no other to send to, and UCX would cost it speed: Dask's part of it polls. Dask's
    default is its setting ``distributed.comm.default-scheme``, ``tcp`` unless changed.

    Raises
    ------
    ConfigError
        If that is UCX, and it is not installed.

    Examples
    --------
    >>> choose_protocol(ClusterSection(), gpus=0)
    'tcp'
    """
    if section.protocol == "auto" and gpus > 1 and has_ucx():
        return "ucx"
    chosen, where = section.protocol, f"[cluster] protocol = {section.protocol!r}"
    if chosen == "auto":
        chosen = dask.config.get("distributed.comm.default-scheme")
        where = f"Dask's distributed.comm.default-scheme = {chosen!r}"
    if chosen in SCHEMES and not has_ucx():
        raise ConfigError(ucx_missing(where))
    return chosen


@dataclass(frozen=True)
class LocalProcesses:
    """The processes of a local cluster.

    Attributes
    ----------
    cores, folder
        Of the machine; where workers keep their files.
    gpus
        Which have a worker each.
    dashboard
        Whether there is a page for what Dask measures of them, which holds up short merges.
    """

    section: ClusterSection
    cores: int
    folder: str
    gpus: Sequence[hardware.Gpu] = ()
    protocol: str = "tcp"
    dashboard: bool = False

    def start(self) -> SpecCluster:
        """Return a cluster of them."""
        address = f"{HOST}:{DASHBOARD_PORT if self.dashboard else 0}"
        if self.protocol in SCHEMES:
            silence_ucx()  # the scheduler is in this process
        try:
            if self.gpus:
                return self._start_on_gpus(address if self.dashboard else None)
            options = {"host": HOST, "port": 0, "protocol": self.protocol}
            options |= {"http_prefix": self.section.dashboard_prefix}
            options |= {"dashboard": self.dashboard, "dashboard_address": address}
            return SpecCluster(
                workers=self.workers(),
                scheduler={"cls": Scheduler, "options": options},
                silence_logs=SILENT,
                name="daskxml",
            )
        except (RuntimeError, OSError) as error:
            problem = f"the local workers cannot start over {self.protocol} ({error})"
            raise ClusterError(f"{problem}; {_remedy(error, self.folder)}") from error

    def _start_on_gpus(self, dashboard_address: str | None) -> SpecCluster:
        """Return a cluster with a worker for each GPU, and others beside them on the CPU."""
        from dask_cuda import LocalCUDACluster

        others = self.workers()
        cluster = LocalCUDACluster(
            dashboard_address=dashboard_address,
            scheduler_kwargs={"http_prefix": self.section.dashboard_prefix},
            **self.gpu_options(len(others)),
        )
        if others:
            cluster.worker_spec.update(others)
            cluster.sync(cluster._correct_state)  # as dask-cuda itself starts its workers
        return cluster

    def gpu_options(self, others: int) -> dict[str, Any]:
        """Return the arguments of ``dask_cuda.LocalCUDACluster``, with so many workers on the CPU.

        The choice of transports (NVLink, InfiniBand, shared memory) is left to UCX.

        Examples
        --------
        >>> gpu = hardware.Gpu(index=1, uuid="GPU-a", name="", memory_bytes=0, driver="")
        >>> options = LocalProcesses(ClusterSection(), 4, "/tmp", [gpu], "ucx").gpu_options(1)
        >>> options["CUDA_VISIBLE_DEVICES"], options["rmm_pool_size"], options["memory_limit"]
        ([1], 0.7, 0.5)
        """
        gpus, section = self.gpus, self.section
        is_cut = any(gpu.is_slice for gpu in gpus)  # then all by UUID: dask-cuda sorts these names
        return {
            "CUDA_VISIBLE_DEVICES": [gpu.uuid if is_cut else gpu.index for gpu in gpus],
            "threads_per_worker": 1,
            "device_memory_limit": section.device_memory_limit,
            "rmm_pool_size": section.rmm_pool or None,
            "rmm_allocator_external_lib_list": ["cupy"] if section.rmm_pool else None,
            "rmm_track_allocations": bool(section.rmm_pool),  # to report how much is free
            **self._common(len(gpus) + others),
        }

    def workers(self) -> dict[int | str, Any]:
        """Return Dask's specification of each CPU process by its name: pools come last.

        Examples
        --------
        >>> workers = LocalProcesses(ClusterSection(workers=1, pools=1), 4, "/tmp").workers()
        >>> list(workers), workers["pool-0"]["options"]["resources"]
        ([0, 'pool-0'], {'cpu-pool': 3})
        >>> workers[0]["options"]["config"]["distributed"]["worker"]["profile"]["enabled"]
        False
        >>> gpu = hardware.Gpu(index=1, uuid="GPU-a", name="", memory_bytes=0, driver="")
        >>> list(LocalProcesses(ClusterSection(workers=3), 4, "/tmp", [gpu]).workers())
        ['cpu-0', 'cpu-1']
        """
        section, gpus = self.section, len(self.gpus)
        is_free = not (section.workers or section.pool_threads)  # leave a core to each GPU worker
        usable = max(1, self.cores - gpus) if is_free else self.cores
        count = section.workers - gpus if gpus else section.workers_on(self.cores)
        replicas: list[int | str] = [f"cpu-{i}" if gpus else i for i in range(max(0, count))]
        pools = [f"pool-{number}" for number in range(section.pools)]
        settings = dask.config.get("distributed")
        common = {
            **self._common(gpus + len(replicas) + len(pools)),
            "nthreads": 1,
            # No GPU, so UCX must not look for one either, as dask-cuda has it do.
            "env": {hardware.VISIBLE: ""},
            "config": {
                "distributed": settings if self.dashboard else dask.config.merge(settings, UNSEEN),
                "distributed-ucxx": {"create-cuda-context": False},
            },
        }
        pool = {**common, "resources": {POOL: section.pool_threads_on(usable)}} if pools else {}
        kinds = dict.fromkeys(replicas, common) | dict.fromkeys(pools, pool)
        return {name: {"cls": Nanny, "options": options} for name, options in kinds.items()}

    def _common(self, workers: int) -> dict[str, Any]:
        """Return the options of every worker, of so many that share the machine's memory."""
        return {
            "host": HOST,
            "protocol": self.protocol,
            "memory_limit": self.section.memory_limit or 1.0 / workers,
            "local_directory": self.folder,
            "silence_logs": SILENT,
            "preload": [IGNORE_INTERRUPTS, SILENCE_UCX],
        }


def _remedy(error: BaseException | None, folder: str) -> str:
    """Return what to do about local workers that do not start."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"free space on the disk of {folder}, or set TMPDIR to another"
        error = error.__cause__ or error.__context__
    return (
        "a script must call daskxml.train below 'if __name__ == \"__main__\":', since each worker "
        "imports it"
    )
