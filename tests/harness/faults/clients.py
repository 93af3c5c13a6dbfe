"""Users' processes: they start a run and follow it or leave it, attach to it, or stop it.

Each calls the product's public functions in a thread of its own, with a client that has what these
use of Dask's. A user presses Ctrl-C while such a call waits for the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.faults.loop import Process, VirtualThread, this_thread
from harness.faults.machines import Cluster, SchedulerRpc

ROWS = "/rows.txt"  # which nobody reads: rows are on the workers


class Client:
    """What the product uses of a synchronous Dask client."""

    dashboard_link = ""

    def __init__(self, cluster: Cluster, process: User) -> None:
        self.id, self._cluster, self._process = f"Client-{process}", cluster, process
        self.scheduler = SchedulerRpc(cluster, process)

    def sync(self, send: Callable[..., Any], **values: Any) -> Any:
        """Send a message, and wait for the answer, unless Ctrl-C comes before."""
        loop, user, thread = self._cluster.loop, self._process, this_thread()
        assert thread is not None
        answer = loop.create_task(send(**values), context=user.context)
        answer.add_done_callback(lambda _: user.wake())
        while not answer.done():
            user.check_interrupts()
            user.wake = thread.waker()
            thread.wait(None)
        user.check_interrupts()
        return answer.result()

    def run_on_scheduler(self, function: Callable[[], Any]) -> Any:
        """Call a function, as the scheduler would."""
        return function()

    def register_plugin(self, plugin: Any) -> None:
        """Do nothing: the scheduler has the plugin."""


class User(Process):
    """A process that makes one call.

    Attributes
    ----------
    events
        Those that its call has passed on.
    result, error
        What the call has returned or raised, once `ended` is done; None if the process died.
    ended
        Done when the process has ended.
    """

    def __init__(self, cluster: Cluster, name: str, call: Callable[..., Any]) -> None:
        super().__init__(name)
        self.events: list[dict[str, Any]] = []
        self.result: Any = None
        self.error: BaseException | None = None
        self.ended = cluster.loop.create_future()
        self.wake: Callable[[], Any] = lambda: None  # the thread, if it waits for an answer
        self._interrupts = 0
        client = Client(cluster, self)
        self.id = client.id
        cluster.scheduler.clients.add(self.id)
        work = lambda: call(client=client, on_event=self.events.append)  # noqa: E731
        self.context.run(VirtualThread, cluster.loop, work, self._end)

    def _end(self, result: Any, error: BaseException | None) -> None:
        self.result, self.error = result, error
        if not self.ended.done():
            self.ended.set_result(None)

    def die(self) -> None:
        """End, as by SIGKILL."""
        super().die()
        if not self.ended.done():
            self.ended.set_result(None)

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._interrupts += 1
        self.wake()

    def check_interrupts(self) -> None:
        """Raise what Ctrl-C raises."""
        if self._interrupts:
            self._interrupts -= 1
            raise KeyboardInterrupt
