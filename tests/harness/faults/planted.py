"""Faults put into the product one at a time: a simulation that finds none of them proves nothing.

Each is a change of a function's source, made in memory while a `Plant` is open.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any


@dataclass(frozen=True)
class Plant:
    """One fault.

    Attributes
    ----------
    name
        In a few words.
    where
        Module and function, as ``cluster.executor:Executor.remove``.
    old, new
        Text of its source, and what takes its place.
    matters
        An expression of the function's names: whether what takes its place does anything else.
    """

    name: str
    where: str
    old: str
    new: str
    matters: str = "True"

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Have the fault in the product.

        Raises
        ------
        LookupError
            If the text is not there, once.
        """
        function = self.function()
        before = function.__code__
        function.__code__ = self._changed(function)
        try:
            yield
        finally:
            function.__code__ = before

    def function(self) -> FunctionType:
        """Return the function that it is in."""
        module, _, path = self.where.partition(":")
        found: Any = importlib.import_module(f"daskxml.{module}")
        for name in path.split("."):
            found = inspect.getattr_static(found, name)
        found = getattr(found, "__func__", found)
        return inspect.unwrap(found)

    def _changed(self, function: FunctionType) -> Any:
        return self._compiled(function, self._source(function).replace(self.old, self.new))

    def _source(self, function: FunctionType) -> str:
        source = textwrap.dedent(inspect.getsource(function))
        if source.count(self.old) != 1:
            raise LookupError(f"{self.name}: {self.where} has {source.count(self.old)} of it")
        return source

    def _compiled(self, function: FunctionType, source: str) -> Any:
        lines = [line for line in source.splitlines() if not line.startswith("@")]
        names = dict[str, Any]()
        head = "from __future__ import annotations\n"
        exec(compile(head + "\n".join(lines), self.where, "exec"), function.__globals__, names)
        code = names[function.__name__].__code__
        assert code.co_freevars == function.__code__.co_freevars
        return code


@contextmanager
def watched(plants: Sequence[Plant]) -> Iterator[set[str]]:
    """Yield what becomes the names of those plants whose statements have run where they matter.

    A run that reaches no statement of a fault is the same with it: it need not be made.
    """
    reached, before = set[str](), dict[FunctionType, Any]()
    by_function: dict[FunctionType, list[Plant]] = {}
    for plant in plants:
        by_function.setdefault(plant.function(), []).append(plant)
    try:
        for function, those in by_function.items():
            source = those[0]._source(function)
            module = ast.parse(source)
            for plant in those:
                line = source[: source.index(plant.old)].count("\n") + 1
                marker = f"if {plant.matters}: {_REACHED}({plant.name!r})"
                _insert_before(module.body, line, ast.parse(marker).body[0])
            function.__globals__[_REACHED] = reached.add
            code = those[0]._compiled(function, ast.unparse(module))
            before[function], function.__code__ = function.__code__, code
        yield reached
    finally:
        for function, code in before.items():
            function.__code__ = code
            function.__globals__.pop(_REACHED, None)


_REACHED = "_reached_by_a_simulation"


def _insert_before(body: list[ast.stmt], line: int, marker: ast.stmt) -> None:
    """Insert a statement before the innermost one that a line is in."""
    for at, statement in enumerate(body):
        if not statement.lineno <= line <= (statement.end_lineno or 0):
            continue
        inner = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        inner += [it.body for name in ("handlers", "cases") for it in getattr(statement, name, [])]
        for part in inner:
            if any(it.lineno <= line <= (it.end_lineno or 0) for it in part):
                _insert_before(part, line, marker)
                return
        body.insert(at, marker)
        return


# fmt: off
PLANTS = (
    # --------------------------------------------------------- what the session decides
    Plant("the first rows of a lost worker are forgotten", "session.ledger:Ledger.take_back",
          "extend(spans)", "extend(spans[1:])"),
    Plant("a lost worker's rows stay counted", "session.ledger:Ledger.give_back",
          "self.held.pop(worker, [])", "self.held.get(worker, [])"),
    Plant("a row is leased twice at the end of a lease", "session.ledger:Ledger._next_span",
          "self.cursors[stream] = stop", "self.cursors[stream] = max(start + 1, stop - 1)"),
    Plant("the last row of an epoch is never leased", "session.ledger:Ledger._next_stream",
          "if not any(left):", "if sum(left) < 2:"),
    Plant("a lost worker's lease stays open", "session.allocator:WorkAllocator.lose",
          "self._open.pop(number)", "self._open[number]"),
    Plant("a lost worker's work is merged", "session.history:MegabatchLog._drop",
          "(self.work, ", "("),
    Plant("a gang that was undone does not rewind", "session.allocator:WorkAllocator.roll_back",
          "self._rewinds = self._rewinds or rows > 0", "pass"),
    Plant("an evaluation waits for a lost worker", "session.allocator:EvaluationRound.reassign",
          "if each.worker == lost]", "if each.worker == lost][1:]"),
    Plant("nobody writes the checkpoint of a lost worker", "session.session:Session._reassign",
          "self._checkpoint() if lost == self._writer else []", "[]"),
    Plant("a stopped run waits for a lost worker's rows", "session.session:Session._worker_lost",
          "self.inform(protocol.Drain(), now_s)", "pass",
          matters="self.ledger.returned and not self.state.is_draining"),
    Plant("a resumed run publishes its history again", "session.run_loop:RunLoop.__init__",
          "self.published = session.generation", "self.published = 0"),
    Plant("a loss in a merge leaves the stage", "session.session:Session._worker_lost",
          'self.stage = "train"', "pass"),
    # --------------------------------------------------------------- what the driver does
    Plant("the second of two losses is forgotten", "cluster.run_driver:RunDriver._settle",
          "losses.append(event)", "losses[:] = [event]"),
    Plant("a task for leases that was cancelled at once waits for its worker",
          "cluster.executor:Executor._start", "future.release()", "None"),
    Plant("who stops a run that another forgets does not hear of a lost worker",
          "cluster.run_driver:RunDriver.clean_up", "self._turn", "contextlib.nullcontext()"),
    Plant("a lease of a lost worker is kept", "cluster.executor:Executor.remove",
          "self.lease_ended(lease)", "pass"),
    Plant("a failed merge is not aborted", "cluster.collectives:Collectives._attempt",
          "if not await self._end(running, workers):",
          "if await self._end(running, workers) is None:"),
    Plant("a broken merge is not tried again", "cluster.collectives:Collectives._combine",
          "for _ in range(ATTEMPTS):", "for _ in range(1):"),
    Plant("a message is not repeated", "cluster.worker_group:WorkerGroup.call",
          "for _ in range(CALLS):", "for _ in range(1):"),
    Plant("a lost worker hides the next one at its address", "cluster.worker_group:WorkerGroup.at",
          "remaining(self.workers.values())", "self.workers.values()",
          matters="len(list(remaining(self.workers.values()))) < len(self.workers)"),
    Plant("a worker joins under a name that is taken", "cluster.membership:Membership.admit",
          "ready = [worker for worker in waiting if workers.get(worker.name, worker) is worker]",
          "ready = list(waiting)",
          matters="any(workers.get(worker.name, worker) is not worker for worker in waiting)"),
    Plant("a worker joins with an old model", "cluster.membership:Membership.admit",
          "fresh = [worker for worker in ready if worker.generation == generation]",
          "fresh = list(ready)"),
    Plant("a worker that is ready to join wakes nobody",
          "cluster.membership:Membership._copy_model",
          "self.executor.emit(CandidateReady())", "pass"),
    # ----------------------------------------------------------------- what a worker does
    Plant("a repeated commit fails", "worker.training_worker:TrainingWorker.commit",
          "if generation <= self.generation:", "if False:"),
    Plant("a commit forgets the model before", "worker.training_worker:TrainingWorker.commit",
          "self.current, self.previous, self.scratch = models",
          "self.current, self.scratch = models[:2]"),
    Plant("a replica does not follow the merge", "worker.training_worker:TrainingWorker.commit",
          "self.kernels.copy(self.replica.flat, self.current)", "pass"),
    Plant("all replicas are merged with one weight", "worker.merge_program:_Merge.combine_models",
          "factors.replicas[self.rank]", "factors.replicas[0]"),
    Plant("a lease wakes nobody", "cluster.worker_plugin:LeaseQueue.put",
          "self.changed.notify_all()", "pass"),
    Plant("a lease goes before an earlier one whose rows are fetched",
          "cluster.worker_plugin:LeaseQueue.put", "self._leases[lease[0]]",
          "self._leases[self._taken + len(self._leases)]"),
    Plant("a lease does not commit the merge before it",
          "cluster.worker_tasks:execute_leases", "queue.worker.commit(generation)", "pass"),
    Plant("a task does not wait until its worker has committed",
          "cluster.worker_group:WorkerGroup.ask", "await self.commit(worker)", "pass"),
    Plant("a closed queue wakes nobody", "cluster.worker_plugin:LeaseQueue.close",
          "self.changed.notify_all()", "pass"),
    Plant("a worker that was created too late is kept",
          "cluster.worker_plugin:RunWorkerPlugin.add_queue",
          "if not removal.is_set():", "if True:"),
    Plant("connections outlive their run", "transport.communicator:Communicator.forget",
          "self._dismiss(lambda key: key.run == run)", "pass"),
    Plant("a stale collective is taken part in", "transport.communicator:Communicator._is_stale",
          "return self._is_closed or collective.number < lowest", "return False",
          matters="self._is_closed or collective.number < lowest"),
    Plant("a pool's threads outlive their run", "worker.training_worker:TrainingWorker.close",
          "self.runner.close()", "pass"),
    Plant("a thread of a pool leaves out its part", "worker.pool:Pool.run",
          "if part:", "if part and thread == 0:"),
    Plant("a shared model is not gone back to", "worker.training_worker:TrainingWorker.set_model",
          "np.copyto(self.shared.flat, current)", "pass"),
    Plant("the pieces of a tree are in the order in which they are there",
          "session.fit_run:FitRun._submit_pieces",
          '"put_together", order, plan, member.pieces',
          '"put_together", order, plan, member.pieces[::-1]'),
    Plant("a tree is put together before its pieces are there", "session.task_pool:TaskPool.fill",
          "if not all(needed.is_done for needed in task.needs()):",
          "if sum(not needed.is_done for needed in task.needs()) > 1:"),
    Plant("trees of a run that goes on are in no order", "records.checkpoint:stored_members",
          'f"{len(found) + 1:06d}.safetensors"', 'f"{max(1, len(found)):06d}.safetensors"'),
    Plant("arrays are overwritten before they are read",
          "transport.channels.shared_memory:ShmSender.flush",
          "while self._unread:", "while False:"),
    Plant("memory of a dead process is taken for another's",
          "worker.shared_model:_check",
          "if not name.startswith(handle.name or _PREFIX) or", "if",
          matters="not name.startswith(handle.name or _PREFIX)"),
    # ----------------------------------------------------------------- merges by a quorum
    Plant("a late worker's change is dropped", "worker.training_worker:TrainingWorker.rebase",
          "axpby(flat, self.current, 1.0, changed, 1.0)", "copy(flat, self.current)"),
    Plant("a late worker's change counts twice", "worker.training_worker:TrainingWorker.rebase",
          "axpby(flat, self.current, 1.0, changed, 1.0)",
          "axpby(flat, self.current, 1.0, changed, 2.0)"),
    Plant("a worker that was given up keeps its change",
          "cluster.membership:Membership._copy_model", "is_late and worker.keeps_change", "is_late",
          matters="is_late and not worker.keeps_change"),
    Plant("a worker that is given up while it is rebased keeps its change",
          "session.session:Session._worker_joined",
          "if event.keeps_change and event.worker in self._allocator.given_up:", "if False:",
          matters="event.keeps_change and event.worker in self._allocator.given_up"),
    Plant("rows that others do again are counted for the late worker as well",
          "session.allocator:WorkAllocator.give_up", "is_void=True", "is_void=False"),
    Plant("rows that were given up are held on to", "session.allocator:WorkAllocator.give_up",
          "self.ledger.give_back(worker)", "pass"),
    Plant("a merge settles rows of late workers", "session.session:Session._finish_merge",
          "self.ledger.settle(log.late)", "self.ledger.settle()"),
    Plant("a merge forgets what late workers have done", "session.history:MegabatchLog.following",
          "log.work = {name: work for name, work in self.work.items() if name in self.late}",
          "log.work = {}"),
    Plant("rows that late workers hold are leased again at the end",
          "session.session:Session._rows_left", "- self.rows_merged - held)",
          "- self.rows_merged)", matters="held"),
    Plant("a checkpoint forgets rows that late workers hold", "session.ledger:Ledger.plain",
          "(*self.returned, *held)", "self.returned", matters="held"),
    Plant("a late worker evaluates", "session.session:Session._evaluate",
          "self.speeds(self.present())", "self.speeds()"),
    Plant("a late worker writes the checkpoint", "session.session:Session._checkpoint",
          "self.present()[0]", "next(iter(self.workers))"),
    Plant("the result is a late worker's model", "cluster.run_driver:RunDriver._set_late_aside",
          "self.group.candidates |=", "_ =", matters="late"),
    Plant("the grace never ends", "session.grace:Grace.wait",
          "self.until_s = now_s + grace_s", "self.until_s = math.inf"),
    Plant("a silent worker is not left behind", "cluster.executor:Executor.leave_behind",
          "self.emit(HandleLost(worker))", "pass"),
    Plant("a silent worker is waited for a minute",
          "cluster.scheduler_plugin:RunSchedulerPlugin._watch",
          "max(SILENT_S,", "max(24.0 * SILENT_S,"),
    Plant("the scheduler is given all tasks of a tree at once",
          "cluster.fit_driver:DaskPool.choose", "room[best] > 0", "True"),
    Plant("a model that a merge has overtaken is taken for the newest",
          "cluster.membership:Membership._copy_model", "worker.generation, is_finite = copied",
          "worker.generation, is_finite = self.executor.session.generation, copied[1]",
          matters="copied[0] != self.executor.session.generation"),
    Plant("a late worker is rebased twice at once", "cluster.membership:Membership._rebase",
          "if before is not None:", "if False:", matters="before is not None"),
    Plant("a worker is admitted while it is rebased once more",
          "cluster.membership:Membership.admit", "if not self._is_copying(worker)", "if True",
          matters="any(map(self._is_copying, ready))"),
    # ------------------------------------------------------------------------- the record
    Plant("a file is renamed before it is flushed", "core.files:replace_durably",
          "flush(source)", "pass"),
    Plant("a rename is not flushed", "core.files:replace_durably",
          "flush(target.parent)", "pass"),
    Plant("one checkpoint too many is removed", "records.checkpoint:_prune",
          "checkpoints(run_dir)[:-keep]", "checkpoints(run_dir)[-keep:]"),
    Plant("the history is not cut before it goes on", "records.run_dir:extend_history",
          "file.truncate(offset)", "pass"),
    Plant("a rewound history keeps a row too many",
          "cluster.detached:HistoryWriter._write_event",
          'del self._ends[event["megabatch"] :]', 'del self._ends[event["megabatch"] + 1 :]'),
    Plant("the last rows of the history are not waited for", "cluster.detached:HistoryWriter.close",
          "self._written < len(self._event_log.events)", "False"),
    Plant("a run that has failed stays locked", "records.run_dir:RunDir.release",
          "self.unlock()", "pass"),
    # ------------------------------------------- mended because a simulation has found them
    Plant("a history whose last row was not written ends well",
          "cluster.detached:HistoryWriter.close",
          "if error is not None and not has_failed:", "if False:"),
    Plant("a full disk under a model is a traceback", "core.files:replace_durably",
          "raise unwritten(target, error) from error", "raise"),
    Plant("a full disk under a run file is a traceback", "records.run_dir:RunDir.begin",
          "replace_text(self.path / RUN_FILE, config.to_toml())",
          "(self.path / RUN_FILE).write_text(config.to_toml())"),
    Plant("a directory that Dask let the next worker at an address lock ends the run",
          "cluster.detached:HistoryWriter._next_worker", "self._refused % len(infos)", "0",
          matters="self._refused"),
    Plant("checkpoints of a history that was given up stay", "records.checkpoint:_drop_later",
          "> megabatch", "> megabatch + 9999"),
    Plant("a writer that was frozen removes the checkpoints of others",
          "records.checkpoint:_drop_later", "if _attempt(path) < attempt", ""),
    Plant("who attaches gets the rows that the run's user has written",
          "api.runs:RunFollower._begin", "self.history = _with_lists(history)", "pass"),
    Plant("a user who has launched a run writes beside the worker",
          "api.runs:RunFollower.leave_directory", "self.place = NOWHERE", "pass"),
    Plant("a directory that Dask let the next worker at an address lock stays locked",
          "cluster.detached:HistoryWriter._release", "self._asked[info.address].is_lost", "False"),
    Plant("a checkpoint brings a directory back that a user has removed",
          "records.checkpoint:make_folder", "        folder.mkdir(exist_ok",
          "        folder.mkdir(parents=True, exist_ok",
          matters="not folder.parent.exists()"),
    Plant("a directory with a checkpoint under way is removed",
          "records.run_dir:RunDir.release", "(HISTORY_FILE, CHECKPOINTS)", "(HISTORY_FILE,)"),
    Plant("the result of a merge is sent once", "cluster.worker_plugin:RunWorkerPlugin.merge",
          "last != peers.id", "True",
          matters="result is not None and merge == peers.id"),
    Plant("a checkpoint that may not be on the disk is resumed from", "records.run_dir:RunDir.open",
          "flush(checkpoint.parent)", "pass"),
    Plant("Ctrl-C while a directory is locked leaves it locked",
          "cluster.detached:HistoryWriter.close", "self._locking is not None", "False"),
    Plant("Ctrl-C while a run is started leaves it there",
          "cluster.scheduler_plugin:RunSchedulerPlugin.start_run", "run in self._given_up or ", ""),
    Plant("a tree that is still being stored when its run is resumed has no row",
          "api.runs:RunFollower._begin", "self.history = _with_lists(history)", "pass",
          matters="self.place.checkpoint is not None and self.history != _with_lists(history)"),
    Plant("a run begins after its user is gone",
          "cluster.scheduler_plugin:RunSchedulerPlugin.start_run",
          " or owner not in self.scheduler.clients", "",
          matters="owner not in self.scheduler.clients"),
    Plant("a run whose user is gone goes on beside the one that resumes it",
          "cluster.scheduler_plugin:RunSchedulerPlugin.start_run",
          "await self._forget_orphans(run_dir)", "pass",
          matters="any(it.run_dir == run_dir for it in (*self.drivers.values(), *self._closing))"),
    Plant("two users who resume at once both start",
          "cluster.scheduler_plugin:RunSchedulerPlugin.start_run",
          "        if run_dir is not None:  # two", "    if run_dir is not None:  # two"),
    Plant("a detached run is resumed while it is under way",
          "cluster.scheduler_plugin:RunSchedulerPlugin._forget_orphans",
          "driver.run_dir != run_dir", "driver.run_dir != run_dir or driver.is_detached",
          matters="any(it.is_detached and it.run_dir == run_dir and not it.event_log.is_over "
                  "for it in self.drivers.values())"),
    Plant("a failed run whose directory cannot be written stays on its workers",
          "cluster.run_driver:RunDriver.close", "self.event_log.has_failed or ", ""),
    Plant("a worker that is lost after the last message to it ends the run",
          "cluster.worker_group:WorkerGroup.call",
          "if await wait_for_loss([worker]):",
          "if await wait_for_loss([worker]) and False:"),
    Plant("a run that is being forgotten waits for a lost worker",
          "cluster.scheduler_plugin:RunSchedulerPlugin.remove_worker",
          "(*self.drivers.values(), *self._closing)", "self.drivers.values()"),
    Plant("a run that is being forgotten does not see who comes",
          "cluster.scheduler_plugin:RunSchedulerPlugin.add_worker",
          "(*self.drivers.values(), *self._closing)", "self.drivers.values()",
          matters="self._closing"),
    Plant("a worker is created by the next process at an address",
          "cluster.worker_tasks:create_worker",
          "if settings.slot.process != get_worker().id:", "if False:",
          matters="settings.slot.process != get_worker().id"),
    Plant("a task that was given up writes beside one of the next run",
          "cluster.worker_plugin:RunWorkerPlugin.writing",
          "self._writers.setdefault(run_dir, threading.Semaphore())", "threading.Semaphore()",
          matters="run_dir in self._writers and not self._writers[run_dir]._value"),
    Plant("a run is forgotten while a worker writes its files",
          "cluster.worker_tasks:remove_worker",
          "await asyncio.to_thread(plugin.await_writing, run_dir)", "pass",
          matters="not plugin.writing(run_dir)._value"),
    Plant("a lease of a session that is over counts in the next one",
          "cluster.worker_plugin:LeaseQueue.report", "if not self.is_closed:", "if True:",
          matters="self.is_closed"),
    Plant("a warning after its end hides how a run ended",
          "cluster.event_log:EventLog._summarize_state",
          'next(event for event in reversed(self.events) if event["kind"] == "ended")',
          "self.events[-1]", matters='self.is_over and self.events[-1]["kind"] != "ended"'),
    Plant("a checkpoint with rows of two epochs is refused", "records.row_schema:_check_leases",
          "<= epoch + _MOST_AHEAD", "<= epoch"),
    Plant("of a lost worker's evaluation only the first piece is done again",
          "session.allocator:EvaluationRound.reassign",
          "for command in undone for piece in command.pieces]",
          "for command in undone for piece in command.pieces][:1]"),
    Plant("a replica that has trained on is evaluated",
          "worker.training_worker:TrainingWorker.global_model",
          "self.kernels.copy(self.replica.flat, self.current)", "pass"),
    Plant("two evaluations at once share a replica", "cluster.worker_tasks:evaluate_pieces",
          "with queue_of(run).evaluation:", "if True:",
          matters="not queue_of(run).evaluation._value"),
)
