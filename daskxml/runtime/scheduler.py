"""The scheduler plugin: runs live here, whoever started them.

It gives each run an asynchronous client on the scheduler's own loop, passes on what the scheduler
sees (workers that come and go, tasks that fail, reports of leases), and answers clients, which
start runs, read their journals, list and stop them. A run ends with the client that owns it; one
that is detached has no owner, and is remembered when it is over.
"""

from __future__ import annotations

import asyncio
import secrets
import tomllib
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

from distributed import Client, Scheduler, SchedulerPlugin
from distributed.scheduler import WorkerState

from daskxml.config import load_run_config
from daskxml.errors import ClusterError
from daskxml.runtime.driver import Driver
from daskxml.runtime.equipment import look_at_all
from daskxml.runtime.loading import Given
from daskxml.runtime.machines import Arrival, device_of
from daskxml.runtime.records import record_of
from daskxml.runtime.remote import HOLDERS
from daskxml.runtime.seats import PLUGIN, TOPIC, MembersPlugin
from daskxml.training.orders import LeaseReport

MESSAGES_S = 0.001  # Dask's clients collect messages for 10 ms: longer than a short lease takes
CONNECTIONS = 1 << 14  # a merge needs one to each worker, all at once; Dask's limit is 512
ENDED = 20  # detached runs that are over and remembered; older ones are forgotten
NEWS_S = 10.0  # how long a client that reads a journal waits for news


class RunsPlugin(SchedulerPlugin):
    """All runs of a scheduler."""

    name = PLUGIN
    idempotent = True  # every client registers it; the first one stays

    async def start(self, scheduler: Scheduler) -> None:
        """Answer clients from now on."""
        self.scheduler = scheduler
        self.drivers: dict[str, Driver] = {}
        self.owners: dict[str, str] = {}  # run to the client that it ends with; "": that is gone
        self.watchers: list[Callable[[Driver], None]] = []  # called with every run that starts
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._forgetting: set[asyncio.Task[None]] = set()
        self._client: Client | None = None
        self._opening = asyncio.Lock()
        scheduler.handlers |= {
            "daskxml_start": self.start_run,
            "daskxml_read": self.read_run,
            "daskxml_stop": self.stop_run,
            "daskxml_detach": self.detach_run,
            "daskxml_runs": self.list_runs,
            "daskxml_settings": self.settings_of,
            "daskxml_holder": self.holder_of,
            "daskxml_forget": self.forget_run,
            HOLDERS: self.holders_of,
        }

    async def close(self) -> None:
        """End every run, and the client that belongs to them."""
        for task in self._tasks.values():
            task.cancel()
        for driver in self.drivers.values():
            if driver.detached is not None:
                driver.detached.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    # ----------------------------------------------------------------- clients

    async def start_run(
        self,
        config: str,
        given: dict[str, list[str]],
        owner: str,
        run_dir: str | None,
        checkpoint: str | None,
        is_detached: bool = False,
    ) -> str:
        """Start a run from a resolved run file in TOML; return its name.

        ``given`` has the keys of partitions that take the place of files. A run that is to be
        detached ends with its owner until `detach_run`.
        """
        async with self._opening:
            client = await self._own_client()
            equipped = await look_at_all(client)
            await client.register_plugin(MembersPlugin())  # for workers that come later, too
        run = secrets.token_hex(4)
        resolved = load_run_config(tomllib.loads(config))
        rows = Given(**{name: tuple(keys) for name, keys in given.items()})
        driver = Driver(client, run, resolved, rows, run_dir, checkpoint, is_detached)
        driver.crew.equipped |= equipped
        for state in self.scheduler.workers.values():
            driver.worker_added(_arrival(state))
        self.drivers[run], self.owners[run] = driver, owner
        for watcher in self.watchers:
            watcher(driver)
        self._tasks[run] = asyncio.create_task(self._drive(run, driver))
        return run

    async def _drive(self, run: str, driver: Driver) -> None:
        with driver.client.as_current():
            await driver.drive()
            if driver.journal.has_failed:
                await driver.wind_up()
        if self.owners.get(run) == "":
            self._forget_soon(run)
        ended = [name for name, it in self.drivers.items() if it.detached and it.journal.is_over]
        for old in ended[:-ENDED]:
            self._forget_soon(old)

    async def _own_client(self) -> Client:
        """Return the client on this loop."""
        if self._client is None:
            self._client = await Client(
                self.scheduler.address,
                asynchronous=True,
                name="daskxml",
                security=self.scheduler.security,
                set_as_default=False,
                connection_limit=CONNECTIONS,
            )
            self._client.scheduler_comm.interval = MESSAGES_S
        return self._client

    async def read_run(self, run: str, since: int, version: int) -> dict[str, Any]:
        """Return what is new in a run's journal; waits a while for news."""
        return await self._driver(run).journal.read(since, version, NEWS_S)

    async def stop_run(self, run: str, reason: str) -> None:
        """End a run at a merge, soon; one that is still loading ends at once."""
        driver = self._driver(run)
        if driver.is_loading and driver.detached is not None and not driver.journal.is_over:
            await self._cancel(run)
            driver.journal.end_badly(ClusterError("stopped before the first mega-batch"))
            await driver.wind_up()
        elif not driver.journal.is_over:
            driver.stop(reason)

    async def detach_run(self, run: str) -> None:
        """Let a run go on without the client that started it."""
        self._driver(run)
        self.owners.pop(run, None)

    async def list_runs(self) -> list[dict[str, Any]]:
        """Return a `RunRecord` of every run, as plain values, those begun first before."""
        return [asdict(record_of(run, driver)) for run, driver in self.drivers.items()]

    async def settings_of(self, run: str) -> dict[str, Any]:
        """Return a run's resolved run file in TOML, and the checkpoint that it began with."""
        driver = self._driver(run)
        return {"config": driver.config.to_toml(), "checkpoint": driver.checkpoint}

    async def holder_of(self, run: str) -> dict[str, Any]:
        """Return the address of a worker that has the model of a run that is over."""
        driver = self._driver(run)
        kept = driver.detached.keepers if driver.detached else []
        hand = next(iter([*driver.crew.hands.values(), *kept]), None)
        if hand is None:
            raise ClusterError("every worker was lost before the model was fetched")
        return {"address": hand.address, "header": driver.header("").as_dict()}

    async def holders_of(self, run: str) -> list[str]:
        """Return the addresses of the workers that have a run's shared model in memory."""
        driver = self.drivers.get(run)
        return [hand.address for hand in driver.crew.holders()] if driver else []

    async def forget_run(self, run: str) -> None:
        """Free what a run that is over still holds."""
        driver = self.drivers.pop(run, None)
        self.owners.pop(run, None)
        await self._cancel(run)
        if driver is not None:
            await driver.close()

    async def _cancel(self, run: str) -> None:
        task = self._tasks.pop(run, None)
        if task is not None and not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _forget_soon(self, run: str) -> None:
        task = asyncio.create_task(self.forget_run(run))
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)

    def _driver(self, run: str) -> Driver:
        if run not in self.drivers:
            raise ClusterError(f"no run {run} on this scheduler; 'daskxml runs' lists those it has")
        return self.drivers[run]

    # ------------------------------------------------------ what the cluster does

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Tell the runs of a worker that came."""
        arrival = _arrival(scheduler.workers[worker])
        for driver in self.drivers.values():
            driver.worker_added(arrival)

    def remove_worker(
        self, scheduler: Scheduler, worker: str, *, stimulus_id: str, **kwargs: Any
    ) -> None:
        """Tell the runs of a worker that is gone."""
        for driver in self.drivers.values():
            driver.worker_removed(worker)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """End the runs of a client that is gone; they leave a checkpoint, and nothing else."""
        for run in [run for run, owner in self.owners.items() if owner == client]:
            driver, self.owners[run] = self.drivers[run], ""
            driver.stop("client gone")
            if driver.journal.is_over or driver.is_loading:
                self._forget_soon(run)

    def transition(self, key: str, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Tell the runs of a task that failed."""
        if finish == "erred":
            for driver in self.drivers.values():
                driver.task_failed(key)

    def log_event(self, topic: str, msg: Any) -> None:
        """Pass on the report of a lease."""
        if topic == TOPIC and msg.get("run") in self.drivers:
            told = {field.name: msg[field.name] for field in fields(LeaseReport)}
            self.drivers[msg["run"]].lease_reported(LeaseReport(**told))


def _arrival(state: WorkerState) -> Arrival:
    return Arrival(str(state.name), state.address, device_of(state.resources))
