"""What the dashboard keeps of one run: its whole course, in bounded memory.

A `RunSeries` reads the run's event log at its own pace into a `RunView`, a bounded `Course`, and
the latest events as text, beside samples of memory. It outlives the run, whose other memory is
freed when the run is forgotten.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from daskxml.cluster.event_log import EventLog
from daskxml.cluster.timeline import Timeline
from daskxml.config import RunConfig
from daskxml.observe.course import POINTS, Course, Thinned
from daskxml.observe.figures import MemorySample
from daskxml.observe.run_view import Event, RunView
from daskxml.observe.wording import ending, event_lines
from daskxml.session.stopping import limits_of

LINES = 200  # of text


class RunSeries:
    """One run.

    Parameters
    ----------
    run, config
        Its name and its run file.
    log, timeline
        Its events, released when it ends, and the work of its workers.
    out
        Its directory, as the workers see it; "" if it has none.
    stop
        Ends it at the next merge; None where its page may not.

    Attributes
    ----------
    view, course
        The state of the run, and what its charts show.
    memory
        What its workers use.
    lines
        The latest events: when (seconds since the epoch), and a line of text.
    version
        Changes with everything that is shown, except for work and memory.
    """

    def __init__(
        self,
        run: str,
        config: RunConfig,
        log: EventLog,
        timeline: Timeline,
        out: str = "",
        stop: Callable[[], None] | None = None,
    ) -> None:
        self.run, self.config, self.timeline = run, config, timeline
        self.out, self.stop = out, stop
        self.begun_s = time.time()
        self.view = RunView(limits=limits_of(config))
        self.course = Course(self.title, is_bounded=True)
        self.memory: Thinned[MemorySample] = Thinned(POINTS)
        self.lines: deque[tuple[float, str]] = deque(maxlen=LINES)
        self.version = 0
        self._log: EventLog | None = log
        self._read = 0

    @property
    def title(self) -> str:
        """The run's name in its run file, or that of its algorithm."""
        return self.config.run.name or self.config.algorithm

    @property
    def state(self) -> str:
        """What the run does now, or how it ended."""
        return ending(self.view.ended) if self.view.ended else self.view.state

    def now_s(self) -> float:
        """Return the time up to which the run is shown: now, or when it ended."""
        return float(self.view.ended["at_s"]) if self.view.ended else time.time()

    def left_s(self, now_s: float) -> float | None:
        """Return the seconds left at a moment (since the epoch); None where unknown."""
        if self.view.is_over or not self.view.row:
            return None
        return self.view.left_s(max(0.0, now_s - self.view.row_at_s))

    def update(self) -> None:
        """Read the new events of the log."""
        if self._log is None:
            return
        for event in self._log.events[self._read :]:
            self._read += 1
            self._apply(event)
        self.view.apply(self._log.status)
        if self.view.is_over:
            self._log = None

    def give_up(self) -> None:
        """End the series of a run that is gone without an ``ended`` event."""
        self.update()
        if not self.view.is_over:
            self._apply({"kind": "ended", "at_s": time.time(), "reason": "given up"})
            self._log = None

    def _apply(self, event: Event) -> None:
        self.version += 1
        self.lines.extend((event["at_s"], line) for line in event_lines(event))
        self.view.apply(event)
        self.course.apply(event, self.view)
