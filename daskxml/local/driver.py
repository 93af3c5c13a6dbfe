"""Drives a run loop by a clock, from a session's first command to its last.

The next event is the earliest of these: the end of something under way, a worker that is lost or
arrives by the script, a candidate that has the model, the end of the time that the run may take. At
equal times results come before losses, and losses before arrivals. In real time what is under way
is done in its turn, and nobody is lost or arrives.
"""

from __future__ import annotations

import contextlib
import math
from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from daskxml.core.errors import ConfigError
from daskxml.core.signals import Request, first_signal_asks
from daskxml.local.cost import TICK_S, whole_ticks
from daskxml.local.executor import LocalExecutor
from daskxml.local.worker import LocalWorker, WorkerFactory
from daskxml.session.commands import INTERRUPTED, STOP, Command, MergeReplicas, StopRequest
from daskxml.session.run_loop import ANSWER_S, PROBE_S, SILENT_S, RunLoop
from daskxml.session.session import Session
from daskxml.strategies.protocol import Measure, Rebase, WorkerSilent

NOBODY_COMES = "every worker was lost, and no other comes; let one arrive, or lose less"


@dataclass(frozen=True)
class _Change:
    at_s: float
    worker: str

    def __post_init__(self) -> None:
        for name in ("at_s", "seconds"):
            if not 0.0 <= (time_s := getattr(self, name, 0.0)) < math.inf:
                raise ConfigError(f"{name} = {time_s}: must be at least 0")


@dataclass(frozen=True)
class Loss(_Change):
    """``worker`` is lost at ``at_s`` virtual seconds.

    Examples
    --------
    >>> Loss(1.5, "0").worker
    '0'
    """


@dataclass(frozen=True)
class Arrival(_Change):
    """``worker`` arrives at ``at_s`` virtual seconds."""

    speed: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.speed < math.inf:
            raise ConfigError(f"worker {self.worker}: speed = {self.speed}: must be above 0")


@dataclass(frozen=True)
class Freeze(_Change):
    """``worker`` does nothing for ``seconds`` from ``at_s`` on, and then goes on."""

    seconds: float


@dataclass(frozen=True)
class _Silence(_Change):
    """``worker`` has not been heard of for `SILENT_S` seconds, or not answered in a merge."""


Change = Loss | Arrival | Freeze
_Scripted = Change | _Silence


def check_changes(names: Collection[str], changes: Iterable[Change]) -> None:
    """Refuse losses of nobody, and arrivals of workers that are there.

    Raises
    ------
    ConfigError
        Naming the worker.

    Examples
    --------
    >>> check_changes(["0", "1"], [Loss(0.5, "1"), Arrival(0.6, "2")])
    """
    changes = tuple(changes)
    arriving = [change.worker for change in changes if isinstance(change, Arrival)]
    known = Counter([*names, *arriving])
    for name in arriving:
        if known[name] > 1:
            raise ConfigError(f"worker {name} arrives, but there is one of this name: give another")
    for change in changes:
        if change.worker not in known:
            raise ConfigError(
                f"worker {change.worker} is lost or freezes, but there is none of this name"
            )


class Script:
    """Changes that are still to happen, the earliest first, arrivals last."""

    def __init__(self, changes: tuple[Change, ...]) -> None:
        self._changes: list[tuple[float, bool, _Scripted]] = []
        for change in changes:
            self.push(change, whole_ticks(change.at_s))

    @property
    def next_s(self) -> float:
        """When the next change happens; infinite if there is none."""
        return self._changes[0][0] if self._changes else math.inf

    def push(self, change: _Scripted, at_s: float) -> None:
        """Schedule a change."""
        entry = at_s, isinstance(change, Arrival), change
        insort(self._changes, entry, key=lambda each: each[:2])

    def pop(self) -> _Scripted:
        """Return the next change."""
        return self._changes.pop(0)[2]


@dataclass
class Candidate:
    """A worker that prepares to join, or to rejoin: it has a model at ``ready_s``."""

    worker: LocalWorker
    ready_s: float
    generation: int = -1


class LocalDriver:
    """Drives a session by the clock of its executor, and prepares workers that arrive.

    Parameters
    ----------
    session, executor
        From the beginning of the run, or from a checkpoint.
    factory
        Creates workers that arrive.
    script
        Losses and arrivals; those that have happened are removed.
    publish
        See `RunLoop`.
    ends_at_merge
        Ctrl-C ends the run at a merge, and a second one at once; else the first one does.

    Attributes
    ----------
    candidates
        Workers that have arrived, until they take part.
    """

    def __init__(
        self,
        session: Session,
        executor: LocalExecutor,
        factory: WorkerFactory,
        script: Script,
        publish: Callable[..., Any],
        *,
        ends_at_merge: bool = True,
    ) -> None:
        self.session, self.executor = session, executor
        self._loop, self._publish = RunLoop(session, executor, self, publish), publish
        self._factory, self._script = factory, script
        self.candidates: list[Candidate] = []
        self._ends_at_merge, self._is_interrupted = ends_at_merge, False

    def speeds(self) -> dict[str, float]:
        """Return the speeds of all workers, candidates last."""
        return {worker.name: worker.speed for worker in self._workers()}

    def _workers(self) -> list[LocalWorker]:
        candidates = (candidate.worker for candidate in self.candidates)
        return [*dict.fromkeys((*self.executor.workers.values(), *candidates))]

    def run(self) -> str:
        """Run until the session ends; return why."""
        commands, reason = self._loop.start(self.executor.workers, self.executor.clock.now_s), ""
        asks = first_signal_asks() if self._ends_at_merge else contextlib.nullcontext(Request())
        with asks as request:
            while not reason:
                reason = self._loop.execute(commands)
                self._probe(commands)
                commands = [] if reason else self._next_commands()
                if request.is_made:
                    request.is_made, self._is_interrupted = False, True
                    self._publish("warning", text=INTERRUPTED)
        return reason

    def close(self) -> None:
        """End the threads of pools, and close shared models."""
        for worker in self._workers():
            worker.training.close()
        del self._loop  # it refers to this: rows and replicas would stay until a collection

    def _next_commands(self) -> list[Command]:
        """Advance to the next event; return the commands that follow from it."""
        executor, script, clock = self.executor, self._script, self.executor.clock
        if self._is_interrupted:
            self._is_interrupted = False
            return self.session.handle(StopRequest("interrupt"), clock.now_s)
        if self._loop.is_stop_asked:
            self._loop.is_stop_asked = False
            return self.session.handle(StopRequest(STOP.value), clock.now_s)
        times = [executor.next_s, script.next_s, self._ready_s(), self._deadline_s()]
        if min(times) == math.inf:
            raise RuntimeError(f"nothing is under way in stage {self.session.stage!r}")
        clock.advance(min(times))
        commands: list[Command] = []
        match times.index(min(times)):
            case 0:
                result = executor.finish_next()
                commands = [] if result is None else self.session.handle(result, clock.now_s)
            case 1:
                commands = self._change(script.pop())
            case 3:
                commands = self.session.tick(clock.now_s)
        return [*commands, *self._loop.admit(clock.now_s)]

    def _deadline_s(self) -> float:
        """Return when the session is to be told the time: a whole tick, not before it is due."""
        due_s = self.session.deadline_s()
        return math.ceil(due_s / TICK_S) * TICK_S if due_s < math.inf else due_s

    def _change(self, change: _Scripted) -> list[Command]:
        name = change.worker
        if isinstance(change, Arrival):
            worker = self._factory.create(name, change.speed)
            self.candidates.append(Candidate(worker, self.executor.clock.now_s))
        elif isinstance(change, Freeze):
            self.executor.freeze(name, whole_ticks(change.seconds))
            self._notice(name, SILENT_S)
            if self.session.stage == "merge":
                self._notice(name, PROBE_S + ANSWER_S)
        elif isinstance(change, _Silence):
            return self._silence(change, name)
        elif name in self.executor.workers:
            return self._lose(change, name)
        else:
            self._forget_candidate(name)
        return []

    def _probe(self, commands: Iterable[Command]) -> None:
        """Let it be noticed that a worker has frozen before a merge."""
        if any(isinstance(command, Measure | MergeReplicas) for command in commands):
            for name in self.session.strategy.merging(self.session.state):
                self._notice(name, PROBE_S + ANSWER_S)

    def _notice(self, name: str, after_s: float) -> None:
        """Let a worker be silent then, if it is still frozen, and others need not wait for it."""
        worker, silent_s = self.executor.workers.get(name), self.executor.clock.now_s + after_s
        if worker and worker.wakes_s > silent_s and self.session.strategy.quorum < 1.0:
            self._script.push(_Silence(silent_s, name), whole_ticks(silent_s))

    def _silence(self, silence: _Silence, name: str) -> list[Command]:
        """Let others with its model go on without a frozen worker, after what stands anyway."""
        present, now_s = self.session.present(), self.executor.clock.now_s
        settled_s = self.executor.settled_until(now_s)
        if settled_s > now_s:
            self._script.push(silence, settled_s)
            return []
        workers = self.executor.workers
        waited_for = self.session.strategy.merging(self.session.state) or present
        if name not in waited_for or all(workers[other].wakes_s > now_s for other in present):
            return []
        self.executor.give_up(name)
        return self.session.handle(WorkerSilent(name), now_s)

    def _forget_candidate(self, name: str) -> None:
        self.candidates = [each for each in self.candidates if each.worker.name != name]

    def _lose(self, loss: Loss, name: str) -> list[Command]:
        """Handle a loss, after the end of what it cannot undo any more."""
        now_s = self.executor.clock.now_s
        settled_s = self.executor.settled_until(now_s)
        if settled_s > now_s:
            self._script.push(loss, settled_s)
            return []
        self._forget_candidate(name)  # if it was late
        return self._loop.lose(name, now_s)

    # ------------------------------------------------------------ workers that arrive

    def _ready_s(self) -> float:
        """Return when the next candidate receives its model; others wait for a merge."""
        now_s = self.executor.clock.now_s
        times = (candidate.ready_s for candidate in self.candidates)
        return min((ready_s for ready_s in times if ready_s > now_s), default=math.inf)

    def rebase(self, command: Rebase) -> None:
        """Let a late worker get the global model."""
        self._forget_candidate(command.worker)
        late = self.executor.workers[command.worker]
        late.keeps_change = command.keeps_change
        self.candidates.append(Candidate(late, self.executor.clock.now_s))

    def admit(self, generation: int, may_join: bool) -> list[LocalWorker]:
        """Let candidates with the model of ``generation`` join; send it to others."""
        admitted = []
        for candidate in list(self.candidates):
            if candidate.ready_s > self.executor.clock.now_s:
                continue
            if candidate.generation != generation:
                self._send_model(candidate, generation)
            elif may_join:
                self.candidates.remove(candidate)
                self._join(candidate.worker)
                admitted.append(candidate.worker)
        return admitted

    def _send_model(self, candidate: Candidate, generation: int) -> None:
        nbytes, network = candidate.worker.training.model_bytes, self.executor.network
        candidate.generation = generation
        takes_s = network.transfer_s(nbytes) + whole_ticks(network.latency_s + network.message_s)
        candidate.ready_s = max(self.executor.clock.now_s, candidate.worker.wakes_s) + takes_s

    def _join(self, worker: LocalWorker) -> None:
        donors = (other.training for other in self.executor.workers.values())
        donor = max(donors, key=lambda training: training.generation)
        generation, models = donor.host_models()
        if worker.name in self.executor.workers and worker.keeps_change:
            worker.keeps_change = worker.training.rebase(models, generation, donor.best)
        else:
            worker.training.set_models(models, generation, donor.best)
        self.executor.workers[worker.name] = worker
