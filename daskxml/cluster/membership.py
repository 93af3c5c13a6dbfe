"""How a worker joins a run: it creates a `TrainingWorker`, loads rows, and gets the model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Literal

from daskxml.cluster import worker_tasks as tasks
from daskxml.cluster.executor import CandidateReady, Executor
from daskxml.cluster.worker_group import (
    LOOK_S,
    Answers,
    BackgroundTasks,
    LostBeforeAnswer,
    WorkerGroup,
    WorkerHandle,
    heard,
    is_unreachable,
    remaining,
    wait_for_loss,
)
from daskxml.cluster.worker_info import (
    RunWorkers,
    WorkerInfo,
    choose_model_host,
    probe_process,
    unfit_workers,
)
from daskxml.config import RunConfig
from daskxml.core.errors import ClusterError, DaskxmlError
from daskxml.strategies.protocol import Rebase, natural_order
from daskxml.worker.settings import DataFacts, WorkerSettings, WorkerSlot

MAX_OVERTAKEN = 3  # merges committed while a worker copies the model, before the run waits for it
CATCH_UP_S = 5.0


class Admission:
    """Decides which workers can take part in a run, also of those that come later.

    Parameters
    ----------
    group, config
        The workers, and the run file.
    ready
        Called with a worker that came later and can take part.
    """

    def __init__(
        self,
        group: WorkerGroup,
        config: RunConfig,
        ready: Callable[[WorkerHandle], None] = lambda worker: None,
    ) -> None:
        self.group, self.config, self._ready_to_join = group, config, ready
        self._tasks = BackgroundTasks(self._guard)

    def prepare(self, info: WorkerInfo, present: Sequence[WorkerInfo]) -> None:
        """Start to prepare a worker that arrives during the run."""
        worker = WorkerHandle(info)
        self.group.candidates[info.address] = worker
        self._tasks.start(self._prepare(worker, present))

    async def _prepare(self, worker: WorkerHandle, present: Sequence[WorkerInfo]) -> None:
        if worker.address not in self.group.capabilities:
            await self.probe(worker)
        if problem := self.problem(worker, present):
            raise problem
        self._ready_to_join(worker)

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except LostBeforeAnswer:
            pass
        except (DaskxmlError, OSError, ValueError, MemoryError) as error:
            self.group.warn(f"a worker cannot join: {error}")

    async def close(self) -> None:
        """Stop preparing workers."""
        await self._tasks.cancel()

    async def fit_workers(self, present: Sequence[WorkerInfo]) -> list[WorkerHandle]:
        """Begin with these workers: probe those that are not known, return who can take part.

        Raises
        ------
        DaskxmlError
            If none can: why the first one cannot.
        """
        workers = sorted(map(WorkerHandle, present), key=lambda worker: natural_order(worker.name))
        self.group.workers = {worker.name: worker for worker in workers}
        known = self.group.capabilities
        unknown = [worker for worker in workers if worker.address not in known]
        (await Answers.of(unknown, map(self.probe, unknown))).raise_failure()
        return self.without_problem(workers, present)

    def without_problem(
        self, workers: Sequence[WorkerHandle], present: Sequence[WorkerInfo]
    ) -> list[WorkerHandle]:
        """Return the workers that can take part; a warning says why others cannot."""
        problems = {worker: self.problem(worker, present) for worker in remaining(workers)}
        fit = [worker for worker, problem in problems.items() if problem is None]
        for problem in filter(None, problems.values()):
            if not fit:
                raise problem
            self.group.warn(f"a worker is left out: {problem}")
        return fit

    def problem(self, worker: WorkerHandle, present: Sequence[WorkerInfo]) -> DaskxmlError | None:
        """Return why a worker cannot take part; None if it can."""
        return self._run_workers(present).problem(worker.info, self.group.model_host)

    def _run_workers(self, present: Sequence[WorkerInfo]) -> RunWorkers:
        return RunWorkers(self.config, present, self.group.capabilities)

    async def probe(self, worker: WorkerHandle) -> None:
        """Get the capabilities of a worker.

        Raises
        ------
        LostBeforeAnswer, ClusterError
            If it is lost, or has another version of daskxml.
        """
        try:
            found = await self.group.ask(worker, "start", probe_process)
        except (ImportError, AttributeError, TypeError) as error:  # another version, or none
            found = error
        problem = unfit_workers({worker.address: found})
        if problem:
            raise ClusterError(problem)
        self.group.capabilities[worker.address] = found

    def kernels_of(
        self, info: WorkerInfo, present: Sequence[WorkerInfo]
    ) -> tuple[Literal["cpu", "cuda"], int]:
        """Return the device of a worker's kernels, and their threads on a CPU."""
        workers = self._run_workers(present)
        return workers.kernel_device(info), workers.kernel_threads(info)

    def publish_hardware(self, workers: Iterable[WorkerHandle]) -> None:
        """Publish the capabilities of workers that take part."""
        known = self.group.capabilities
        found = {w.name: known[w.address].as_record() for w in workers if w.address in known}
        if found:
            self.group.publish("equipment", workers=found)


class Membership(Admission):
    """Prepares workers to take part in a session, and admits them.

    Parameters
    ----------
    executor
        Executes the session's commands, and loads rows onto workers.
    """

    def __init__(self, executor: Executor) -> None:
        super().__init__(executor.group, executor.config)
        self.executor = executor
        self._ready: dict[WorkerHandle, None] = {}  # hold rows, and asked for a model
        self._copies: dict[WorkerHandle, asyncio.Task[None]] = {}  # of a newer model

    async def create_first(self, present: Sequence[WorkerInfo]) -> list[WorkerHandle]:
        """Prepare the workers of a new session; return those that are not lost meanwhile.

        Return none if the worker is lost that created a shared model.
        """
        workers = await self._choose(present)
        creators = workers[:1] if self.group.model_host else []
        if not await self._create(workers, creators, present):
            return []
        left = remaining(workers)
        self.executor.session.placement.spread({worker.name: worker.speed for worker in left})
        (await Answers.of(left, map(self.executor.load_rows, left))).raise_failure()
        await self._load_model(remaining(workers))
        self.group.workers = {worker.name: worker for worker in remaining(workers)}
        for worker in self.group.workers.values():
            self.executor.employ(worker)
        return [] if creators != remaining(creators) else list(self.group.workers.values())

    async def _choose(self, present: Sequence[WorkerInfo]) -> list[WorkerHandle]:
        """Return the workers that can take part, and choose the machine of a shared model."""
        self.group.model_host = ""
        fit = await self.fit_workers(present)
        if fit and self.executor.session.strategy.shares_model:
            self.group.model_host = choose_model_host(worker.info for worker in fit)
        return self.without_problem(fit, present)

    async def _create(
        self,
        workers: Sequence[WorkerHandle],
        creators: Sequence[WorkerHandle],
        present: Sequence[WorkerInfo],
    ) -> bool:
        """Create each `TrainingWorker`, first the creator's, which creates a shared model.

        Return False if the creator was lost.
        """
        for wave in (creators, [worker for worker in workers if worker not in creators]):
            handles = [worker.shared for worker in creators if worker.is_created]
            args = [(self.group.run, self._settings(worker, present), handles) for worker in wave]
            speeds = await self.group.ask_each(wave, "start", tasks.create_worker, args)
            failure = speeds.failure
            if creators and failure is not None and is_unreachable(failure):
                await wait_for_loss(creators)
            if creators != remaining(creators):
                return False
            speeds.raise_failure()
            for worker in remaining(wave):
                worker.created(speeds[worker.name])
        return True

    async def _load_model(self, workers: list[WorkerHandle]) -> None:
        """Load the checkpoint's model if there is one; a new worker has the seed's."""
        stored, generation = self.executor.stored, self.executor.session.generation
        if stored is not None:
            session, path = stored
            run, local = self.group.run, session.get("local", {})
            args = [(run, path, generation, local.get(worker.name)) for worker in workers]
            answers = await self.group.ask_each(workers, "start", tasks.load_checkpoint, args)
            answers.raise_failure()
        for worker in workers:
            worker.generation = generation

    async def _prepare(self, worker: WorkerHandle, present: Sequence[WorkerInfo]) -> None:
        await super()._prepare(worker, present)
        await self._create_newcomer(worker, present)
        await self.executor.load_rows(worker)
        self.executor.employ(worker)
        await self._copy_model(worker)

    async def _create_newcomer(self, worker: WorkerHandle, present: Sequence[WorkerInfo]) -> None:
        """Create the `TrainingWorker` of a newcomer, with the shared model if there is one."""
        holders = self.group.model_holders()
        if self.group.model_host and not holders:
            raise LostBeforeAnswer(worker.name)  # the run restarts, with this worker
        handles = [holder.shared for holder in holders]
        args = (self.group.run, self._settings(worker, present), handles)
        try:
            worker.created(await self.group.ask(worker, "start", tasks.create_worker, *args))
        except ClusterError:
            if not holders or not await wait_for_loss(holders):
                raise
            await self._create_newcomer(worker, present)

    async def _copy_model(self, worker: WorkerHandle) -> None:
        """Copy the global model from some worker; `admit` repeats it for an older model."""
        is_late = self.group.workers.get(worker.name) is worker
        while worker.silent.is_set() and not worker.is_lost:
            await asyncio.sleep(LOOK_S)
        donors = heard(self.executor.current())
        await Answers.of(donors, map(self.group.commit, donors))
        for donor in donors:
            args = (self.group.run, donor.address, is_late and worker.keeps_change)
            try:
                copied = await self.group.ask(worker, "start", tasks.copy_model, *args)
                worker.generation, is_finite = copied
                worker.keeps_change &= is_finite
                break
            except OSError:  # the donor is gone
                continue
            except LostBeforeAnswer:
                if not worker.silent.is_set():
                    raise
                return await self._copy_model(worker)
        self._ready[worker] = None
        if worker.generation == self.executor.session.generation:
            self.executor.emit(CandidateReady())  # otherwise the result of a merge follows anyway

    def rebase(self, command: Rebase) -> None:
        """Start to bring a late worker to the global model, after what is under way for that."""
        late = self.group.workers.get(command.worker)
        if late is not None:
            self._copies[late] = self._tasks.start(
                self._rebase(late, command.keeps_change, self._copies.get(late))
            )

    async def _rebase(
        self, late: WorkerHandle, keeps_change: bool, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await asyncio.wait({before})
        late.generation, late.overtaken = -1, 0
        late.keeps_change, late.squared_norm = keeps_change, None
        await self._copy_model(late)

    def admit(self, generation: int, may_join: bool) -> list[WorkerHandle]:
        """Return the workers with the model of this generation and take part from now on.

        Workers with an older model copy the newer one. A worker with the name of a lost one waits
        until the session has handled that loss, as it identifies workers by name; one that is to be
        rebased once more waits for that.
        """
        if not may_join:
            return []
        waiting, workers = remaining(self._ready), self.group.workers
        ready = [worker for worker in waiting if workers.get(worker.name, worker) is worker]
        ready = [worker for worker in ready if not self._is_copying(worker)]
        self._ready = dict.fromkeys(worker for worker in waiting if worker not in ready)
        for worker in ready:
            if worker.generation != generation:
                worker.overtaken += 1
                self._copies[worker] = self._tasks.start(self._copy_model(worker))
        fresh = [worker for worker in ready if worker.generation == generation]
        for worker in fresh:
            self.group.candidates.pop(worker.address, None)
            self._copies.pop(worker, None)
            self.group.workers[worker.name] = worker
        self.publish_hardware(fresh)
        return fresh

    def _is_copying(self, worker: WorkerHandle) -> bool:
        return worker in self._copies and not self._copies[worker].done()

    async def catch_up(self, generation: int) -> None:
        """Wait, for a limited time, for workers whose copies of the model were outdated repeatedly.

        This happens where merges are quicker than a copy. To be called while no merge can begin.
        """
        candidates = remaining(dict.fromkeys([*self.group.candidates.values(), *self._copies]))
        overtaken = [worker for worker in candidates if worker.overtaken >= MAX_OVERTAKEN]
        for worker in overtaken:
            update = self._update(worker, generation, self._copies.get(worker))
            self._copies[worker] = self._tasks.start(update)
        if overtaken:
            copies = [self._copies[worker] for worker in overtaken]
            await asyncio.wait(copies, timeout=CATCH_UP_S)

    async def _update(
        self, worker: WorkerHandle, generation: int, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await asyncio.wait({before})
        if worker in self._ready and worker.generation != generation:
            del self._ready[worker]
            await self._copy_model(worker)

    def _settings(self, worker: WorkerHandle, present: Sequence[WorkerInfo]) -> WorkerSettings:
        placement, data = self.executor.session.placement, self.executor.data
        facts = DataFacts.of(data.spec, placement, data.rows.facts)
        device, threads = self.kernels_of(worker.info, present)
        slot = WorkerSlot(
            device=device,
            threads=threads,
            pool_threads=worker.device.pool_threads,
            host=worker.host,
            process=worker.info.process,
        )
        return WorkerSettings.of(self.config, facts, slot)
