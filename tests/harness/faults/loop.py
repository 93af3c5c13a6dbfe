"""An event loop on a virtual clock, the processes in it, and threads that take turns.

Time passes only while everything waits. A callback or a task belongs to the process in whose
context it was started: those of a dead process never run again, as after SIGKILL, and those of a
frozen one wait. A thread of the product is a greenlet here: it runs until it waits for a condition
(a future, a queue, another thread), so that a run depends on its seed alone.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import thread as pools
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import IO, Any
from unittest import mock
from weakref import WeakKeyDictionary

from greenlet import GreenletExit, getcurrent, greenlet

LONGEST_S = 8_000.0  # of virtual time; no run takes nearly as long
MOST_EVENTS = 60_000  # of the loop; a run takes some thousands

PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)
_condition_wait, _thread_start, _thread_join = (
    threading.Condition.wait,
    threading.Thread.start,
    threading.Thread.join,
)


class Stuck(Exception):  # noqa: N818 - a finding
    """Nothing is due any more, or it goes on for too long, and the run is not over."""


class Killed(BaseException):
    """The process of this thread is dead: it must not do anything any more."""


class Process:
    """What dies or freezes as a whole."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = self.is_frozen = False
        self._context = copy_context()
        self._context.run(PROCESS.set, self)
        self._parked: list[Handle] = []
        self.locks: list[IO[str]] = []  # files, which it has locked

    @property
    def context(self) -> Context:
        """A context for what runs in this process."""
        return self._context.copy()

    def die(self) -> None:
        """End, as by SIGKILL: nothing of it runs any more, and the system unlocks its files."""
        self.is_dead = True
        for lock in self.locks:
            lock.close()

    def park(self, handle: Handle) -> None:
        """Keep a callback until the process goes on."""
        self._parked.append(handle)

    def thaw(self, loop: VirtualLoop) -> None:
        """Go on after a freeze."""
        self.is_frozen, parked, self._parked = False, self._parked, []
        for handle in parked:
            loop.call_soon(handle.run_late, context=self.context)

    def __repr__(self) -> str:
        return self.name


class Handle:
    """A callback that runs if its process does; of those of one time, the first one first."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_loop", "_number", "_when")

    def __init__(
        self, loop: VirtualLoop, when: float, callback: Any, args: Any, context: Context | None
    ) -> None:
        self._loop, self._when, self._callback, self._args = loop, when, callback, args
        self._context = copy_context() if context is None else context
        self._cancelled = False

    def __lt__(self, other: Handle) -> bool:
        if self._when != other._when:
            return self._when < other._when
        return self._number < other._number

    def when(self) -> float:
        """Return the time at which it runs."""
        return self._when

    def cancelled(self) -> bool:
        """Whether it will not run."""
        return self._cancelled

    def cancel(self) -> None:
        """Let it not run."""
        self._cancelled, self._callback, self._args = True, None, ()

    def run(self) -> None:
        """Run it in its context, or park it with its process."""
        process = None if self._loop.is_closing else self._context.get(PROCESS)
        if process is None or not (process.is_dead or process.is_frozen):
            try:
                self._context.run(self._callback, *self._args)
            except (KeyboardInterrupt, Stuck):
                raise
            except BaseException as error:
                self._loop.call_exception_handler({"message": "a callback", "exception": error})
        elif process.is_frozen and not process.is_dead:
            process.park(self)

    def run_late(self) -> None:
        """Run after a freeze, in the context that it already has."""
        if not self._cancelled:
            self._callback(*self._args)


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time passes only while everything waits.

    It holds its tasks: those of a dead process are never closed, which would run what is left
    of them.
    """

    _ready: deque[Handle]
    _scheduled: list[Handle]

    def __init__(self) -> None:
        super().__init__()
        self.now_s, self.wall_offset_s, self.events = 0.0, 1.7e9, 0
        self.longest_s = LONGEST_S
        self._timers = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self.hub, self.is_closing = getcurrent(), False
        self.threads: dict[VirtualThread, None] = {}
        self.watched: dict[VirtualThread, tuple[Callable[[], Any], Callable[[], None]]] = {}
        self.set_exception_handler(self._note_failure)
        self.failures: list[dict[str, Any]] = []

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self.now_s

    def _run_once(self) -> None:
        """Run what is due; advance the clock instead of waiting."""
        self.events += 1
        if self.now_s > self.longest_s or self.events > MOST_EVENTS:
            raise Stuck(f"not over after {self.now_s:.0f} s and {self.events} events")
        ready, timers = self._ready, self._scheduled
        if not ready and self.watched:
            self._look()
        if not ready:
            while timers and timers[0]._cancelled:
                heapq.heappop(timers)
            if not timers:
                raise Stuck("nothing is due any more")
            self.now_s = max(self.now_s, timers[0]._when)
        while timers and timers[0]._when <= self.now_s:
            ready.append(heapq.heappop(timers))
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle.run()

    def _look(self) -> None:
        """Wake the threads that wait for a file which is ready."""
        for thread, (ask, wake) in list(self.watched.items()):
            if ask():
                del self.watched[thread]
                wake()

    def _write_to_self(self) -> None:
        pass

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = Handle(self, self.now_s, callback, args, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        if when <= self.now_s:
            return self.call_soon(callback, *args, context=context)
        handle = Handle(self, when, callback, args, context)
        self._timers += 1
        handle._number = self._timers
        heapq.heappush(self._scheduled, handle)
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def create_task(self, work: Any, *, name: Any = None, context: Any = None) -> Any:
        task = asyncio.Task(work, loop=self, name=name, context=context)
        self._tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, work: Any, *args: Any) -> asyncio.Future[Any]:
        """Run a function in a thread of its own."""
        future = self.create_future()

        def finish(result: Any, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        VirtualThread(self, partial(work, *args), finish)
        return future

    def _note_failure(self, loop: Any, context: dict[str, Any]) -> None:
        if not self.is_closing and not isinstance(context.get("exception"), Killed):
            self.failures.append(context)

    def forget_done(self) -> None:
        """Keep no task that is done, and count the events of the next run anew."""
        self._tasks = [task for task in self._tasks if not task.done()]
        self.events = 0

    def stop_everything(self) -> None:
        """End the tasks and threads that are left, also those of dead processes."""
        self.is_closing, self.now_s = True, 0.0
        logging.disable()  # of thread pools, whose threads end as no thread does
        for thread in list(self.threads):
            thread.throw()
        asyncio._set_running_loop(self)  # else what they still start would be in another, for ever
        for task in self._tasks:
            if not task.done():
                with suppress(Exception):  # it would wait where it cleans up
                    task.get_coro().close()
        asyncio._set_running_loop(None)
        logging.disable(logging.NOTSET)
        self.close()


class VirtualThread:
    """A thread: it runs until it waits, and goes on when what it waits for is there."""

    def __init__(
        self, loop: VirtualLoop, work: Callable[[], Any],
        finish: Callable[[Any, BaseException | None], None] = lambda result, error: None,
    ) -> None:  # fmt: skip
        self._loop, self._work, self._finish = loop, work, finish
        self.ended: list[Callable[[], None]] = []
        self.is_alive = True
        self.slot: Any = None  # of a Dask worker
        self._greenlet = greenlet(self._run, loop.hub)
        self._greenlet.gr_context = copy_context()
        self._greenlet.virtual = self
        self._context, self._waits = copy_context(), 0
        self.process = PROCESS.get()
        loop.threads[self] = None
        loop.call_soon(self._resume, 0, True, context=self._context)

    def _run(self, first: Any = None) -> None:
        result = error = None
        try:
            result = self._work()
        except (Killed, GreenletExit):
            return
        except BaseException as raised:
            error = raised
        finally:
            self.is_alive = False
            self._loop.threads.pop(self, None)
        self._finish(result, error)
        for callback in self.ended:
            callback()

    def _resume(self, number: int, value: Any) -> None:
        if self.is_alive and number == self._waits and not self._loop.is_closing:
            self._waits += 1
            self._greenlet.switch(value)

    def wait(self, timeout: float | None) -> Any:
        """Return what `wake` is given, or False when time is up; called in the thread."""
        if self._loop.is_closing:
            raise GreenletExit
        number = self._waits
        if timeout is not None:
            self._loop.call_later(timeout, self._resume, number, False, context=self._context)
        return self._loop.hub.switch()

    def watch(self, ask: Callable[[], Any], timeout: float | None) -> None:
        """Wait until ``ask`` returns something true, or time is up."""
        self._loop.watched[self] = ask, self.waker()
        try:
            self.wait(timeout)
        finally:
            self._loop.watched.pop(self, None)

    def waker(self) -> Callable[[], None]:
        """Return what ends the next `wait`."""
        number = self._waits
        return lambda: self._loop.call_soon(self._resume, number, True, context=self._context)

    def throw(self) -> None:
        """End the thread where it waits."""
        self.is_alive = False
        self._loop.threads.pop(self, None)
        self._greenlet.throw(GreenletExit)


def this_thread() -> VirtualThread | None:
    """Return the virtual thread that runs now; None on the event loop."""
    return getattr(getcurrent(), "virtual", None)


def pause(seconds: float) -> None:
    """Let time pass in a thread."""
    thread = this_thread()
    assert thread is not None, "the event loop would block"
    thread.wait(seconds)


class _Waiter:
    """What `threading.Condition.notify` releases."""

    def __init__(self, thread: VirtualThread) -> None:
        self.release = thread.waker()


def _wait(condition: Any, timeout: float | None = None) -> Any:
    thread = this_thread()
    if thread is None:
        if isinstance(asyncio._get_running_loop(), VirtualLoop):
            raise AssertionError("the event loop would block")
        return _condition_wait(condition, timeout)
    if timeout is not None and timeout <= 0.0:
        return False  # it may hold other locks
    waiter = _Waiter(thread)
    condition._waiters.append(waiter)
    saved, is_notified = condition._release_save(), False
    try:
        is_notified = thread.wait(timeout)
    finally:
        condition._acquire_restore(saved)
        if not is_notified and waiter in condition._waiters:
            condition._waiters.remove(waiter)
    return is_notified


def _start(thread: Any) -> None:
    loop = asyncio._get_running_loop()
    if not isinstance(loop, VirtualLoop):
        _thread_start(thread)
        return
    thread.virtual = VirtualThread(loop, thread.run)
    thread._started.set()


def _join(thread: Any, timeout: float | None = None) -> None:
    virtual, waiting = getattr(thread, "virtual", None), this_thread()
    if virtual is None:
        _thread_join(thread, timeout)
    elif virtual.is_alive:
        assert waiting is not None, "the event loop would block"
        virtual.ended.append(waiting.waker())
        waiting.wait(timeout)


@contextmanager
def virtual_time(loop: VirtualLoop) -> Iterator[None]:
    """Let the clock and the threads of the `threading` module be those of a loop."""
    with (
        mock.patch.multiple(
            time,
            monotonic=loop.time,
            perf_counter=loop.time,
            time=lambda: loop.now_s + loop.wall_offset_s,
        ),
        mock.patch.object(threading, "_time", loop.time),
        mock.patch.multiple(threading.Condition, wait=_wait),
        mock.patch.multiple(threading.Thread, start=_start, join=_join),
        mock.patch.object(queue, "SimpleQueue", queue._PySimpleQueue),
        mock.patch.object(pools, "_threads_queues", WeakKeyDictionary()),
    ):
        yield
