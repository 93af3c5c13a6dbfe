"""One run, driven on the scheduler's loop: load the data, enlist workers, carry out a session.

The driver owns the futures and the events of a run, so a run does not need the client that
started it. What it decides itself is only how workers come and go; everything else is the
session's.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from typing import Any

from distributed import Client

from daskxml.config import RunConfig
from daskxml.errors import ClusterError, DaskxmlError
from daskxml.model.store import ModelHeader
from daskxml.runtime import worker as tasks
from daskxml.runtime.crew import Crew, WorkerGone, result_of
from daskxml.runtime.detached import Detached
from daskxml.runtime.enlisting import Enlister
from daskxml.runtime.executor import Executor
from daskxml.runtime.journal import Journal, explained
from daskxml.runtime.loading import Given, describe, load
from daskxml.runtime.machines import Arrival, check_workers, crowded_gpus
from daskxml.runtime.play import RESTART, Play
from daskxml.runtime.waiting import some_worker
from daskxml.training import orders
from daskxml.training.session import Session
from daskxml.training.setup import make_session, model_header
from daskxml.training.sources import Placed


class Driver:
    """Drives one run.

    Parameters
    ----------
    client
        Asynchronous client on the scheduler's loop.
    run
        Name of the run.
    config
        The resolved run file; its paths are seen by the workers.
    given
        Rows that the client has put on the workers, instead of files.
    run_dir
        Where checkpoints and the model go; None for nowhere.
    checkpoint
        Path of the checkpoint to go on from.
    is_detached
        Nobody follows the run: it writes its directory, or keeps its model, itself.
    """

    def __init__(
        self,
        client: Client,
        run: str,
        config: RunConfig,
        given: Given,
        run_dir: str | None = None,
        checkpoint: str | None = None,
        is_detached: bool = False,
    ) -> None:
        self.client, self.run, self.config, self.run_dir = client, run, config, run_dir
        self.given = given
        self.crew = Crew(client, run, self._warn)
        self.journal = Journal()
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.stored: tuple[dict[str, Any], str] | None = None
        self.executor: Executor | None = None
        self.enlister: Enlister | None = None
        self.is_loading, self._is_ready = True, False
        told = (self.crew, self.journal, config, run_dir, checkpoint)
        reached = (lambda: self._arrivals, self.queue.put_nowait)
        self.detached = Detached(*told, *reached) if is_detached else None
        self.checkpoint = checkpoint
        self._stop_reason = ""
        self._told = 0  # mega-batches that the journal has
        self._present: dict[str, Arrival] = {}  # by address, every worker of the cluster
        self._arrived = asyncio.Event()

    # -------------------------------------------- what the scheduler tells us

    def worker_added(self, arrival: Arrival) -> None:
        """Take note of a worker; it is enlisted if the run is under way."""
        self._present[arrival.address] = arrival
        self._arrived.set()
        if self.enlister is not None:
            self.enlister.enlist(arrival, self._arrivals)

    def worker_removed(self, address: str) -> None:
        """Take note of a lost worker."""
        self._present.pop(address, None)
        hand = self.crew.at(address)
        if hand is not None and not hand.is_lost:
            hand.lost.set()
            self.queue.put_nowait(hand)
        self.crew.equipped.pop(address, None)
        if self.detached is not None:
            self.detached.worker_removed(address)

    def task_failed(self, key: str) -> None:
        """Hear that a lease raised."""
        future = self.executor.lease_of(key) if self.executor else None
        if future is not None:
            self.queue.put_nowait(future)

    def lease_reported(self, report: orders.LeaseReport) -> None:
        """Hear that a lease is done."""
        self.queue.put_nowait(report)

    def stop(self, reason: str) -> None:
        """End the run at a merge, soon."""
        self._stop_reason = self._stop_reason or reason
        self.queue.put_nowait(orders.StopRequest(reason))

    # ------------------------------------------------------------- life cycle

    async def drive(self) -> None:
        """Go from files to a model; the journal tells how it ended."""
        try:
            await self._drive()
        except DaskxmlError as error:
            self.journal.end_badly(error)
        except Exception as error:
            known = explained(error)
            self.journal.end_badly(known or error, "" if known else traceback.format_exc())

    async def _drive(self) -> None:
        await self._await_workers()
        check_workers(self.config, self._arrivals, self.crew.equipped)
        for text in crowded_gpus(self.config, self._arrivals, self.crew.equipped):
            self._warn(text)
        await self._check_run_dir()
        if self.detached is not None:
            await self.detached.open()
        if self.checkpoint:
            session = await self._anywhere(tasks.read_session, self.checkpoint)
            self.stored = (session, self.checkpoint)
        self.journal.state("loading")
        placed = Placed(**self.stored[0]["placed"]) if self.stored else None
        self.data = await load(
            self.client, self.config, self.run, len(self._present), self.given, placed
        )
        self.is_loading = False
        told = describe(self.config, self.data, self._arrivals)
        self.journal.event("started", run=self.run, **told)
        reason = RESTART
        while reason == RESTART:
            await self._await_workers()
            reason = await self._play()
            if reason == RESTART or self.run_dir is not None:
                await self.pack_up()
        if self.detached is not None:
            await self.wind_up()
        self.journal.end_well(reason, run_dir=self.run_dir)

    async def _await_workers(self) -> None:
        if not self._present:
            self.journal.state("waiting for workers")
            await some_worker(self.client, self._present, self._arrived)

    @property
    def _arrivals(self) -> list[Arrival]:
        return list(self._present.values())

    async def _anywhere(self, task: Any, *args: Any) -> Any:
        """Run a small task on some worker."""
        return await result_of(self.client.submit(task, *args, pure=False))

    async def _check_run_dir(self) -> None:
        if self.run_dir is None:
            return
        path = f"{self.run_dir}/run.toml"
        if not await self._anywhere(tasks.sees_file, path):
            raise ClusterError(
                f"the workers do not see {path}: choose a folder that they share with this machine"
            )

    # ---------------------------------------------------------------- session

    async def _play(self) -> str:
        """Go from the last checkpoint to the end of the run; return why it ended."""
        session = self.session = self._new_session()
        executor = self.executor = self._new_executor(session)
        enlister = Enlister(self.crew, executor, self.config, self.data, self._warn)
        hands = await enlister.enlist_first(self._arrivals)
        self.enlister = enlister
        if not hands:
            return RESTART
        self._get_ready()
        for text in dict.fromkeys(hand.memory for hand in hands):
            self.journal.event("memory", text=text)
        known = {hand.address for hand in hands}
        for address in self._present.keys() - known:  # arrived while the first got ready
            enlister.enlist(self._present[address], self._arrivals)
        if self._stop_reason:
            self.queue.put_nowait(orders.StopRequest(self._stop_reason))
        play = Play(session, executor, enlister, self.crew, self.journal, self.queue)
        devices = {hand.name: hand.device for hand in hands}
        reason = await play.carry_out(session.start([*devices], time.monotonic(), devices))
        self._told, self.stored = play.told, executor.stored
        if reason == RESTART:
            self._warn(f"{self.crew.loss()}; going back to the last checkpoint")
        else:
            await self._store_model(reason)
        return reason

    def _get_ready(self) -> None:
        """Let the directory of a run that goes on be changed: its workers have the checkpoint."""
        if not self._is_ready:
            self._is_ready = True
            self.journal.event("ready")
            if self.detached is not None:
                self.detached.begin(self.stored[0]["history"] if self.stored else [])

    def _new_executor(self, session: Session) -> Executor:
        put = self.queue.put_nowait
        executor = Executor(self.crew, session, self.data, self.config.run.seed, put, self._warn)
        executor.stored = self.stored
        executor.store = (self.run_dir, self.config.checkpoint.keep) if self.run_dir else None
        return executor

    def _new_session(self) -> Session:
        session = make_session(
            self.config,
            self.data.spec,
            self.data.placement(),
            can_checkpoint=self.run_dir is not None,
            stored=self.stored[0] if self.stored else None,
        )
        if self._told > session.generation:
            self.journal.event("rewound", megabatch=session.generation)
        self._told = session.generation
        return session

    def _warn(self, text: str) -> None:
        self.journal.event("warning", text=text)

    # ----------------------------------------------------------------- result

    async def _store_model(self, reason: str) -> None:
        """Write the model from whichever worker answers."""
        if self.run_dir is None:
            return
        self.journal.state("writing the model")
        header = self.header(reason)
        for hand in list(self.crew.hands.values()):
            try:
                args = (self.run, self.run_dir, header)
                return await self.crew.ask(hand, "model", tasks.store_model, *args)
            except WorkerGone:
                continue
        raise ClusterError("every worker was lost before the model was written; resume the run")

    def header(self, reason: str) -> ModelHeader:
        """Return what is written beside the model."""
        return model_header(
            self.config,
            self.data.spec,
            training_rows=sum(self.data.train.rows),
            feature_base=self.data.facts.feature_base,
            ended=reason,
            megabatches=len(self.session.history),
        )

    async def wind_up(self) -> None:
        """End what a run still does, of itself; what is left is its model and its record."""
        if self.detached is not None:
            await self.detached.end(self.journal.has_failed)
            if not self.is_loading:
                self.data.release()
        await self.pack_up()

    async def close(self) -> None:
        """Leave the workers, and let them forget the rows."""
        if self.detached is not None:
            await self.detached.end(has_failed=not self.journal.is_over)
            await self.detached.forget()
        await self.pack_up()
        if not self.is_loading:
            self.data.release()

    async def pack_up(self) -> None:
        """Stop what is under way and leave the workers."""
        if self.enlister is not None:
            await self.enlister.close()
        if self.executor is not None:
            await self.executor.close()
        self.enlister = self.executor = None
        hands = [*self.crew.hands.values(), *self.crew.candidates.values()]
        await self.crew.call_all(hands, "daskxml_close")  # a lease may wait for what never comes
        await self.crew.ask_all(hands, "end", tasks.stand_up, self.run)
        self.crew.hands, self.crew.candidates = {}, {}
        while not self.queue.empty():
            self.queue.get_nowait()
