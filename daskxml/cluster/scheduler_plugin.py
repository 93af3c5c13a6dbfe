"""The scheduler plugin, which executes runs in the scheduler.

It gives each run an asynchronous client on the scheduler's own loop, passes the scheduler's events
on (arrivals and losses of workers, failed tasks, reports of leases), and answers clients, which
start runs, read their event logs, list and stop them. A run ends with the client that owns it. A
detached run has no owner, and its record is kept for a while after its end.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import dask
from distributed import Client, Scheduler, SchedulerPlugin
from distributed.scheduler import TaskGroup, TaskState, WorkerState, heartbeat_interval

from daskxml.cluster.connection import OURS, RUNS
from daskxml.cluster.data_loading import SharedRows
from daskxml.cluster.fit_driver import FitDriver
from daskxml.cluster.run_driver import RunDriver
from daskxml.cluster.worker_group import LOOK_S, BackgroundTasks, LostBeforeAnswer
from daskxml.cluster.worker_info import WorkerInfo, device_of, probe_workers
from daskxml.cluster.worker_plugin import PLUGIN, TOPIC, RunWorkerPlugin
from daskxml.config import load_run_config
from daskxml.core.errors import ClusterError
from daskxml.core.work_stats import WorkStats
from daskxml.session.commands import WorkResult
from daskxml.session.run_loop import SILENT_S

BATCH_INTERVAL_S = 0.001  # Dask's 10 ms between messages are longer than a short lease
MAX_CONNECTIONS = 1 << 14  # a merge needs one to each worker at once; Dask's limit is 512
KEPT_RUNS = 20  # detached runs that are over; older ones are forgotten
READ_TIMEOUT_S = 10.0  # for a client that waits for new events
GIVE_UP_S = 15.0  # without a heartbeat: a worker that holds a run up is started again
RESTART_S = 10.0  # for its nanny to do that; else the scheduler removes it


class RunSchedulerPlugin(SchedulerPlugin):
    """All runs of a scheduler."""

    name = PLUGIN
    idempotent = True  # every client registers it; the first one stays

    async def start(self, scheduler: Scheduler) -> None:
        """Register the handlers for clients."""
        self.scheduler = scheduler
        self.drivers: dict[str, RunDriver] = {}
        self._closing: dict[RunDriver, asyncio.Event] = {}  # runs that are being forgotten
        self.owners: dict[str, str] = {}  # by run: the client that it ends with; "": which is gone
        self.watchers: list[Callable[[RunDriver], None]] = []  # called with every new run
        self.shared = SharedRows()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._given_up = set[str]()  # runs that were forgotten before they had begun
        self._background = BackgroundTasks(lambda work: work)
        self._background.start(self._watch())
        self._client: Client | None = None
        self._opening = asyncio.Lock()
        scheduler.handlers |= {
            "daskxml_start": self.start_run,
            "daskxml_read": self.read_run,
            "daskxml_stop": self.stop_run,
            "daskxml_detach": self.detach_run,
            "daskxml_runs": self.list_runs,
            "daskxml_holder": self.holder_of,
            "daskxml_forget": self.forget_run,
        }

    async def close(self) -> None:
        """End every run, and close the client."""
        for task in self._tasks.values():
            task.cancel()
        for driver in self.drivers.values():
            if driver.writer is not None:
                driver.writer.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._background.cancel()
        if self._client is not None:
            await self._client.close()
            # Asynchronous clients keep the loop that they were started on from ending, with the
            # pages that were open on it: a local cluster's thread would outlive it.
            self._client._loop_runner.stop()

    # ----------------------------------------------------------------- clients

    async def start_run(
        self,
        run: str,
        config: str,
        scattered: dict[str, list[str]],
        owner: str,
        run_dir: str | None,
        checkpoint: str | None,
        is_detached: bool = False,
        stages: list[dict[str, Any]] | None = None,
    ) -> None:
        """Start a run of this name from a resolved run file in TOML.

        ``scattered`` holds the keys of partitions to use instead of files, ``stages`` says how
        those were made. A detached run ends with its owner as well until `detach_run`.
        """
        async with self._opening:
            client = await self._own_client()
            capabilities = await probe_workers(client)
            await client.register_plugin(RunWorkerPlugin())  # also for later workers
            if run_dir is not None:  # two users may resume at once: the second finds the first's
                await self._forget_orphans(run_dir)
        if run in self._given_up or owner not in self.scheduler.clients:
            self._given_up.discard(run)
            raise ClusterError("the client that started the run has left it")
        resolved = load_run_config(tomllib.loads(config))
        kind = RunDriver if resolved.has_strategy else FitDriver
        place = run_dir, checkpoint, is_detached, self.shared
        driver = kind(client, run, resolved, scattered, *place, stages or ())
        driver.group.capabilities |= capabilities
        driver.group.send = self.scheduler.worker_send
        for state in self.scheduler.workers.values():
            driver.worker_added(_info(state))
        self.drivers[run], self.owners[run] = driver, owner
        for watcher in self.watchers:
            watcher(driver)
        self._tasks[run] = asyncio.create_task(self._drive(run, driver))

    async def _drive(self, run: str, driver: RunDriver) -> None:
        with driver.client.as_current(), dask.annotate(span=RUNS):
            await driver.drive()
            if driver.event_log.has_failed:
                await driver.clean_up()
        if self.owners.get(run) == "":
            self._background.start(self.forget_run(run))
        ended = [n for n, d in self.drivers.items() if d.is_detached and d.event_log.is_over]
        for old in ended[:-KEPT_RUNS]:
            self._background.start(self.forget_run(old))

    async def _own_client(self) -> Client:
        """Return the client on this loop."""
        if self._client is None:
            self._client = await Client(
                self.scheduler.address,
                asynchronous=True,
                name="daskxml",
                security=self.scheduler.security,
                set_as_default=False,
                connection_limit=MAX_CONNECTIONS,
            )
            self._client.scheduler_comm.interval = BATCH_INTERVAL_S
        return self._client

    async def read_run(self, run: str, since: int, version: int) -> dict[str, Any]:
        """Return new events of a run, and wait for them if there are none."""
        return await self._driver(run).event_log.read(since, version, READ_TIMEOUT_S)

    async def stop_run(self, run: str, reason: str) -> None:
        """End a run at the next merge; a detached one that is loading data ends at once."""
        driver = self._driver(run)
        if driver.is_loading and driver.is_detached and not driver.event_log.is_over:
            await self._cancel(run)
            driver.event_log.end_badly(ClusterError("stopped before the first mega-batch"))
            await driver.clean_up()
        elif not driver.event_log.is_over:
            driver.stop(reason)

    async def detach_run(self, run: str) -> None:
        """Let a run continue without the client that started it."""
        self._driver(run)
        self.owners.pop(run, None)

    async def list_runs(self) -> list[dict[str, Any]]:
        """Return the fields of a `RunHandle` for every run, in the order in which they began."""
        return [driver.summary() for driver in self.drivers.values()]

    async def holder_of(self, run: str) -> dict[str, Any]:
        """Return the address of a worker that holds the model of a run that is over."""
        driver = self._driver(run)
        while (handle := driver.model_holder()) is not None:
            with suppress(LostBeforeAnswer):
                await driver.group.commit(handle)
                return {"address": handle.address, "header": driver.header("").as_dict()}
        raise ClusterError("every worker was lost before the model was fetched")

    async def forget_run(self, run: str) -> None:
        """Release all resources of a run, and remove it; one that is not there must not begin."""
        driver = self.drivers.pop(run, None)
        self.owners.pop(run, None)
        if driver is None:
            self._given_up.add(run)
            return
        closed = self._closing[driver] = asyncio.Event()
        try:
            await self._cancel(run)
            with dask.annotate(span=RUNS):
                await driver.close()
        finally:
            del self._closing[driver]
            closed.set()

    async def _forget_orphans(self, run_dir: str) -> None:
        """Forget runs under way of clients that are gone, which were to write this directory.

        They would continue to their next merge, and write a checkpoint beside those of the new run.

        Raises
        ------
        ClusterError
            If the run is detached, or its client is connected: the lock of the directory is with
            nobody for a moment, the machine of one of both does not see it, or the client has died
            with its machine, which was not noticed yet.
        """
        for run, driver in list(self.drivers.items()):
            if driver.run_dir != run_dir or driver.event_log.is_over:
                continue
            if self.owners.get(run) != "":
                raise ClusterError(
                    f"{run_dir}: run {run} of another client writes there: end it with "
                    f"'daskxml stop {run}', or choose another folder"
                )
            await self.forget_run(run)
        for driver, closed in list(self._closing.items()):
            if driver.run_dir == run_dir:
                await closed.wait()

    async def _cancel(self, run: str) -> None:
        task = self._tasks.pop(run, None)
        if task is not None and not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self) -> None:
        """Tell runs which workers are silent, and have those started again that hold one up.

        Silence counts in looks: who was suspended with the scheduler is not silent.
        """
        heard: dict[str, tuple[float, float]] = {}  # by address: when, and silence since
        longest_s = 0.0  # that ended
        giving_up: asyncio.Task[None] | None = None
        while True:
            await asyncio.sleep(LOOK_S)
            before, heard = heard, {}
            for address, worker in self.scheduler.workers.items():
                at_s, silence_s = before.get(address, (0.0, 0.0))
                is_silent = worker.last_seen == at_s
                heard[address] = worker.last_seen, (silence_s + LOOK_S) * is_silent
                longest_s = longest_s if is_silent else max(longest_s, silence_s)
            late_s = max(SILENT_S, 4.0 * heartbeat_interval(len(heard)))
            late = {address for address, (_, silence_s) in heard.items() if silence_s > late_s}
            for driver in self.drivers.values():
                driver.note_silent(late)
            limit_s = max(GIVE_UP_S, late_s, 4.0 * longest_s)
            gone = [self.scheduler.workers[at] for at in late if heard[at][1] > limit_s]
            # Not waited for: a nanny may be slow, or fail.
            if gone and len(late) < len(heard) and (giving_up is None or giving_up.done()):
                giving_up = asyncio.create_task(self._give_up(gone))

    async def _give_up(self, workers: Sequence[WorkerState]) -> None:
        """Have workers started again that hold a run up, as Dask does after its ``worker-ttl``.

        One that has tasks of pipelines or of other programs as well may be busy with one that keeps
        Python's lock; and what they have put in its memory alone would be gone.
        """
        own = {*RUNS["ids"]}
        gone = [it for it in workers if {task.group.span_id for task in _bound_to(it)} <= own]
        runs = [driver for driver in self.drivers.values() if driver.needs_all]
        if gone and (runs or self._closing or self._opening.locked()):
            names = ", ".join(str(worker.name) for worker in gone)
            for driver in runs:
                driver.group.warn(f"the run waits for worker {names}, which is silent: restarted")
            await self.scheduler.restart_workers(
                [worker.address for worker in gone], timeout=RESTART_S, wait_for_workers=False,
                on_error="return", stimulus_id="daskxml-silent",
            )  # fmt: skip

    def _driver(self, run: str) -> RunDriver:
        if run not in self.drivers:
            raise ClusterError(f"no run {run} on this scheduler; 'daskxml runs' lists those it has")
        return self.drivers[run]

    # ---------------------------------------------------- events of the scheduler

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Pass on that a worker was added: it may get the lock of a run that is being forgotten."""
        info = _info(scheduler.workers[worker])
        for driver in (*self.drivers.values(), *self._closing):
            driver.worker_added(info)

    def remove_worker(
        self, scheduler: Scheduler, worker: str, *, stimulus_id: str, **kwargs: Any
    ) -> None:
        """Pass on that a worker was removed."""
        for driver in (*self.drivers.values(), *self._closing):
            driver.worker_removed(worker)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """End the runs of a client that is gone; only their checkpoints remain."""
        for run in [run for run, owner in self.owners.items() if owner == client]:
            driver, self.owners[run] = self.drivers[run], ""
            driver.stop("client gone")
            if driver.event_log.is_over or driver.is_loading:
                self._background.start(self.forget_run(run))

    def transition(self, key: str, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Pass on that a task failed or is done; the span of the runs forgets what Dask forgets."""
        if finish == "erred" or (start, finish) == ("processing", "memory"):
            spans = kwargs.get("startstops") or ()
            busy_s = sum(
                span["stop"] - span["start"] for span in spans if span["action"] == "compute"
            )
            for driver in self.drivers.values():
                driver.task_ended(key, kwargs.get("worker", ""), busy_s, finish == "erred")
        elif finish == "forgotten" and self.scheduler.tasks[key].group.span_id in OURS:
            self._forget_groups(self.scheduler.tasks[key].group)

    def _forget_groups(self, newest: TaskGroup) -> None:
        """Remove groups whose tasks are all forgotten, but for one: Dask shows its times.

        Dask also notes for each task that it came from a future, which nobody asks for.
        """
        span = self.scheduler.extensions["spans"].spans[newest.span_id]
        known, groups = self.scheduler.task_groups, span.groups
        groups -= {
            group for group in groups if group is not newest and known.get(group.name) is not group
        }
        if span.metadata is not None:
            span.metadata["collections"].clear()

    def log_event(self, topic: str, msg: Any) -> None:
        """Pass on the result of a lease, and that a worker compiles kernels."""
        if topic == TOPIC and "compiling" in msg:
            for driver in self.drivers.values():
                driver.compiling()
        elif topic == TOPIC and msg.get("run") in self.drivers:
            work = (WorkStats(**msg["work"]),)
            result = WorkResult(msg["lease"], work, msg["squared_norm"])
            self.drivers[msg["run"]].lease_reported(result)


def _bound_to(worker: WorkerState) -> Iterator[TaskState]:
    """Yield the tasks of a worker, and the values that are nowhere else and cannot be computed."""
    yield from worker.processing
    for task in worker.has_what:
        if not task.run_spec and len(task.who_has or ()) == 1:
            yield task


def _info(state: WorkerState) -> WorkerInfo:
    device = device_of(state.resources)
    return WorkerInfo(str(state.name), state.address, device, state.nthreads, state.server_id)
