"""The loop of a run: events in, a session's commands out to an executor.

It has two backends: the workers of a Dask cluster (`daskxml.cluster`) and those of this process,
in real or in virtual time (`daskxml.local`). Each decides when the next event comes and drives the
loop with it; what happens then is the same for both, and written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from daskxml.session.commands import STOP, Command, EndRun, Restart
from daskxml.session.session import Session
from daskxml.strategies.protocol import Rebase, WorkerDevice, WorkerJoined, WorkerLost

# Without a heartbeat, after which others go on without a worker; longer where many send them.
SILENT_S = 2.5
# In a merge by a quorum: how often those in it are asked for a sign of life, and how long they have
# to answer.
PROBE_S, ANSWER_S = 0.1, 0.4
RESTART = "restart"  # why a session ends that has lost all workers
STATES = {
    "idle": "starting",
    "train": "training",
    "merge": "merging",
    "evaluate": "evaluating",
    "keep": "keeping the best model",
    "checkpoint": "writing a checkpoint",
    "lost": "waiting for workers",
    "over": "ending",
}


class Participant(Protocol):
    """A backend's worker that takes part in a run."""

    @property
    def name(self) -> str:
        """Its name in the history."""

    @property
    def device(self) -> WorkerDevice:
        """Whether it is a replica or a pool of threads."""

    @property
    def keeps_change(self) -> bool:
        """Whether a worker that was late brings what it changed."""


class Executor(Protocol):
    """Executes commands; results come back as events."""

    def execute(self, command: Command) -> None:
        """Start a command."""

    def remove(self, worker: str) -> None:
        """Forget a lost worker and its work."""


class Membership(Protocol):
    """Prepares workers that arrive during the run, and those that were late."""

    def rebase(self, command: Rebase) -> None:
        """Start to bring a late worker to the global model, after what is under way for that."""

    def admit(self, generation: int, may_join: bool) -> Iterable[Participant]:
        """Let candidates with the model of ``generation`` join, and return them.

        None where no worker may join; candidates with an older model are sent the newer one.
        """


class RunLoop:
    """A session and the backend that executes its commands.

    Parameters
    ----------
    session, executor, membership
        From the beginning of the run, or from a checkpoint, to its end or to a restart.
    publish
        Called with the kind and the values of every event for the user; may return `STOP`.
    publish_state
        Called with the run's state and progress.

    Attributes
    ----------
    published
        Mega-batches whose rows have been published.
    is_stop_asked
        Whether a listener has asked to end the run; the backend then handles a `StopRequest`.
    """

    def __init__(
        self,
        session: Session,
        executor: Executor,
        membership: Membership,
        publish: Callable[..., Any],
        publish_state: Callable[..., None] = lambda state, **values: None,
    ) -> None:
        self.session, self.executor, self.membership = session, executor, membership
        self._publish, self._publish_state = publish, publish_state
        self.published = session.generation
        self.is_stop_asked = False

    def start(self, participants: Mapping[str, Participant], now_s: float) -> list[Command]:
        """Begin with these workers, whose replicas equal the global model."""
        devices = {name: participant.device for name, participant in participants.items()}
        return self.session.start(devices, now_s)

    def execute(self, commands: Sequence[Command]) -> str:
        """Start commands; return why the session ended, `RESTART`, or "" while it continues."""
        for command in commands:
            if isinstance(command, EndRun):
                self._publish_progress()
                return command.reason
            if isinstance(command, Restart):
                return RESTART
            if isinstance(command, Rebase):
                self.membership.rebase(command)
            else:
                self.executor.execute(command)
        self._publish_progress()
        return ""

    def lose(self, worker: str, now_s: float) -> list[Command]:
        """Return the commands that follow from the loss of a worker that took part."""
        self._publish("worker", event="lost", worker=worker)
        self.executor.remove(worker)
        return self.session.handle(WorkerLost(worker), now_s)

    def admit(self, now_s: float) -> list[Command]:
        """Let workers with the global model join, unless a merge is under way."""
        commands: list[Command] = []
        session = self.session
        for worker in self.membership.admit(session.generation, session.may_join):
            self._publish("worker", event="joined", worker=worker.name)
            joined = WorkerJoined(worker.name, worker.device, worker.keeps_change)
            commands += session.handle(joined, now_s)
        return commands

    def _publish_progress(self) -> None:
        session = self.session
        for row in session.history[self.published : session.closed_rows]:
            self.is_stop_asked |= self._publish("megabatch", row=row) is STOP
        self.published = max(self.published, session.closed_rows)
        self._publish_state(
            STATES[session.stage],
            megabatch=session.generation + 1,
            rows=session.rows_done,
            epoch=session.epoch,
        )
