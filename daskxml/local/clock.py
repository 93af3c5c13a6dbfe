"""The clocks of runs in this process: real time, and virtual time, which takes what work costs.

On a virtual clock collective operations are one program per endpoint, run in strict time order. The
programs are those of `daskxml.collectives.messages`, which the cluster drives over sockets;
here a discrete-event loop drives all of them. A batch advances its endpoint's clock by its cost. A
message waits until the sender's outgoing port and the receiver's incoming port are free, occupies
both for its bytes over the bandwidth, and arrives a latency later; messages leave a port in the
order in which they were sent. Endpoints on one machine (a parameter server beside the first rank)
share its ports, and messages between them take no time.

At equal times bytes move first, then messages arrive, then programs continue, the lowest number
first; a `ReceiveAny` is answered last, when no earlier message can arrive any more.
"""

from __future__ import annotations

import heapq
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from daskxml.collectives.messages import (
    Flush,
    Op,
    Program,
    ProgramResult,
    Receive,
    ReceiveAny,
    Send,
    Worked,
)
from daskxml.core.arrays import Array
from daskxml.local.cost import Network, whole_ticks
from daskxml.transport.channels.protocol import Payload, copy_payload, payload_of, write_payload

WorkTime = Callable[[int, Worked], float]  # seconds that an endpoint's batch takes

_MOVED, _ARRIVED, _STEP, _ANSWER_ANY = range(4)


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedResult(ProgramResult[Any]):
    """The result of an endpoint's program, which returned at ``end_s``."""

    end_s: float


@dataclass(slots=True)
class _Message:
    source: int
    to: int
    kind: tuple[tuple[int, ...], str]  # of the array: its shape and dtype
    payload: Payload
    arrived_s: float = 0.0


@dataclass
class _Endpoint:
    number: int
    machine: int
    program: Program[Any]
    inboxes: dict[int, deque[_Message]] = field(default_factory=lambda: defaultdict(deque))
    sources: set[int] = field(default_factory=set)  # `ReceiveAny` considers these
    waiting: Op | None = None
    answer: int | None = None  # to `ReceiveAny`
    unsent: int = 0
    busy_s: float = 0.0
    sent_bytes: int = 0
    finished: TimedResult | None = None

    def take(self, source: int, into: Array) -> bool:
        """Take the next message of an endpoint, if one is there."""
        if not self.inboxes[source]:
            return False
        message = self.inboxes[source].popleft()
        if message.kind != _kind_of(into):
            raise RuntimeError(
                f"{self.number} expects {_kind_of(into)} of {source}, not {message.kind}"
            )
        write_payload(message.payload, into)
        self.sources.add(source)
        return True

    def first_arrived(self) -> int | None:
        """Return the sender of the earliest message that `ReceiveAny` may take."""
        boxes = [(self.inboxes[s][0].arrived_s, s) for s in self.sources if self.inboxes[s]]
        return min(boxes)[1] if boxes else None


@dataclass
class _Ports:
    """One machine's: messages to send, machines that wait to send to it, and what is occupied."""

    outgoing: deque[_Message] = field(default_factory=deque)
    senders: deque[int] = field(default_factory=deque)
    is_sending: bool = False
    is_receiving: bool = False


def run_programs(
    programs: Sequence[Program[Any]],
    work_s: WorkTime,
    network: Network,
    begun_s: float = 0.0,
    machines: Sequence[int] = (),
) -> list[TimedResult]:
    """Run programs that exchange messages; return their results.

    Parameters
    ----------
    programs
        One for each endpoint, in the order of their numbers.
    work_s
        Seconds that an endpoint's batch takes.
    network
        What messages cost.
    begun_s
        When all begin.
    machines
        That of every endpoint; empty: each has its own.

    Raises
    ------
    RuntimeError
        If all programs that have not ended wait for each other.

    Examples
    --------
    >>> import numpy as np
    >>> def exchange(rank):
    ...     yield Worked(rows=rank + 1, nonzeros=0)
    ...     yield Send(1 - rank, np.full(2, float(rank)))
    ...     received = np.empty(2)
    ...     yield Receive(1 - rank, received)
    ...     return received.tolist()
    >>> network = Network(bandwidth_bytes_s=16.0, latency_s=0.5)
    >>> done = run_programs([exchange(0), exchange(1)], lambda rank, batch: batch.rows, network)
    >>> [(end.result, end.end_s) for end in done]
    [([1.0, 1.0], 3.5), ([0.0, 0.0], 2.5)]
    """
    where = machines or range(len(programs))
    return _Loop(programs, where, work_s, network).run(begun_s)


def run_together(programs: Sequence[Program[Any]]) -> list[Any]:
    """Run programs in this process at once, and return their results, one for each rank.

    Examples
    --------
    >>> import numpy as np
    >>> def swap(rank, value):
    ...     theirs = np.empty(1)
    ...     yield Send(1 - rank, np.array([value]))
    ...     yield Receive(1 - rank, theirs)
    ...     return float(theirs[0])
    >>> run_together([swap(0, 3.0), swap(1, 4.0)])
    [4.0, 3.0]
    """
    here = [0] * len(programs)  # on one machine, so that no message takes time
    return [end.result for end in run_programs(programs, lambda *_: 0.0, Network(), 0.0, here)]


class VirtualClock:
    """A clock that stands still until it is advanced.

    Examples
    --------
    >>> clock = VirtualClock()
    >>> clock.advance(2.5)
    >>> clock.advance(1.0)
    >>> clock.now_s
    2.5
    """

    def __init__(self) -> None:
        self.now_s = 0.0

    def advance(self, to_s: float) -> None:
        """Let the time be ``to_s``, unless that is past."""
        self.now_s = max(self.now_s, to_s)

    run = staticmethod(run_programs)


class WallClock:
    """Real time: what is under way is done when its turn comes."""

    @property
    def now_s(self) -> float:
        """Seconds of the machine's steady clock."""
        return time.monotonic()

    def advance(self, to_s: float) -> None:
        """Do nothing: time passes by itself."""

    def run(
        self,
        programs: Sequence[Program[Any]],
        work_s: WorkTime,
        network: Network,
        begun_s: float = 0.0,
        machines: Sequence[int] = (),
    ) -> list[TimedResult]:
        """Run the programs of one worker, which is busy for as long as they take."""
        before_s = time.perf_counter()
        results = run_together(programs)
        took_s = time.perf_counter() - before_s
        return [
            TimedResult(result=result, end_s=begun_s, busy_s=took_s, sent_bytes=0)
            for result in results
        ]


Clock = VirtualClock | WallClock


class _Loop:
    def __init__(
        self,
        programs: Sequence[Program[Any]],
        machines: Sequence[int],
        work_s: WorkTime,
        network: Network,
    ) -> None:
        self._ends = [
            _Endpoint(number, machine, program)
            for number, (machine, program) in enumerate(zip(machines, programs, strict=True))
        ]
        self._ports = {machine: _Ports() for machine in machines}
        self._work_s, self._network = work_s, network
        self._heap: list[tuple[float, int, int, int, Any]] = []
        self._pushed = 0
        self._now_s = 0.0

    def run(self, begun_s: float) -> list[TimedResult]:
        for end in self._ends:
            self._at(begun_s, _STEP, end.number)
        while self._heap:
            self._now_s, kind, number, _, message = heapq.heappop(self._heap)
            end = self._ends[number]
            if kind == _MOVED:
                self._moved(message)
            elif kind == _ARRIVED:
                self._arrived(end, message)
            elif kind == _ANSWER_ANY:
                self._answer_any(end)
            else:
                self._continue(end)
        done = [end.finished for end in self._ends if end.finished is not None]
        if len(done) < len(self._ends):
            raise RuntimeError(f"deadlock: {self._describe()}")
        return done

    def _at(self, time_s: float, kind: int, number: int, message: _Message | None = None) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (time_s, kind, number, self._pushed, message))

    def _describe(self) -> str:
        stuck = [end for end in self._ends if end.finished is None]
        return "; ".join(f"{end.number} waits in {_name_of(end.waiting)}" for end in stuck)

    # ---------------------------------------------------------------- programs

    def _continue(self, end: _Endpoint) -> None:
        """Run a program until it must wait."""
        try:
            while True:
                end.waiting, answer, end.answer = None, end.answer, None
                end.waiting = end.program.send(answer)
                if not self._is_done(end, end.waiting):
                    return
        except StopIteration as stop:
            end.finished = TimedResult(
                result=stop.value, end_s=self._now_s, busy_s=end.busy_s, sent_bytes=end.sent_bytes
            )

    def _is_done(self, end: _Endpoint, op: Op) -> bool:
        """Begin an operation; return whether it is over at once."""
        match op:
            case Send(to, array):
                self._send(end, to, array)
                return True
            case Flush():
                return end.unsent == 0
            case Receive(source, into):
                return end.take(source, into)
            case ReceiveAny():
                self._at(self._now_s, _ANSWER_ANY, end.number)
                return False
            case Worked():
                taken_s = whole_ticks(self._work_s(end.number, op))
                end.busy_s += taken_s
                self._at(self._now_s + taken_s, _STEP, end.number)
                return False
        raise TypeError(f"{op!r} is no operation")

    def _answer_any(self, end: _Endpoint) -> None:
        """Give the earliest message to a program that waits in `ReceiveAny`."""
        if not isinstance(end.waiting, ReceiveAny):
            return
        source = end.first_arrived()
        if source is not None:
            end.take(source, end.waiting.into)
            end.answer = source
            self._continue(end)

    # ---------------------------------------------------------------- messages

    def _send(self, end: _Endpoint, to: int, array: Array) -> None:
        payload = copy_payload(payload_of(array, is_direct=True))
        message = _Message(end.number, to, _kind_of(array), payload)
        end.sent_bytes += array.nbytes
        if end.machine == self._ends[to].machine:
            self._at(self._now_s, _ARRIVED, to, message)
            return
        end.unsent += 1
        self._ports[end.machine].outgoing.append(message)
        self._serve(end.machine)

    def _serve(self, machine: int) -> None:
        """Begin the next transfer from a machine, or queue for the receiver's port."""
        ports = self._ports[machine]
        if ports.is_sending or not ports.outgoing:
            return
        message = ports.outgoing[0]
        target = self._ports[self._ends[message.to].machine]
        if target.is_receiving:
            if machine not in target.senders:
                target.senders.append(machine)
            return
        ports.is_sending = target.is_receiving = True
        lasts_s = self._network.transfer_s(len(message.payload))
        self._at(self._now_s + lasts_s, _MOVED, message.source, message)

    def _moved(self, message: _Message) -> None:
        """Free the ports after a message's last byte, and begin the next transfers."""
        sender = self._ends[message.source]
        ports, machine = self._ports[sender.machine], self._ends[message.to].machine
        target = self._ports[machine]
        ports.outgoing.popleft()
        ports.is_sending = target.is_receiving = False
        message.arrived_s = self._now_s + whole_ticks(self._network.latency_s)
        self._at(message.arrived_s, _ARRIVED, message.to, message)
        sender.unsent -= 1
        if isinstance(sender.waiting, Flush) and sender.unsent == 0:
            sender.waiting = None
            self._at(self._now_s, _STEP, sender.number)
        if target.senders:
            self._serve(target.senders.popleft())
        self._serve(sender.machine)

    def _arrived(self, end: _Endpoint, message: _Message) -> None:
        message.arrived_s = self._now_s
        end.inboxes[message.source].append(message)
        match end.waiting:
            case Receive(source, into) if source == message.source:
                end.take(source, into)
                end.waiting = None
                self._at(self._now_s, _STEP, end.number)
            case ReceiveAny() if message.source in end.sources:
                self._at(self._now_s, _ANSWER_ANY, end.number)


def _name_of(op: Op | None) -> str:
    match op:
        case Receive(source):
            return f"Receive({source})"
        case None:
            return "nothing"
    return type(op).__name__


def _kind_of(array: Array) -> tuple[tuple[int, ...], str]:
    return array.shape, str(array.dtype)
